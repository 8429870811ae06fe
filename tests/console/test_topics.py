"""Topics and messages: lists that cost requests per page, and content of unknown origin."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define
from harness.console import CountedBrokers, SetClock, browsing, collecting

from rmqpy.admin.api import Admin
from rmqpy.client import Message, Producer
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.core.message import MessageExt
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.console.facts import BrokerFacts
from rmqpy.console.views.messages import body_text, message_view, preview, shown
from rmqpy.console.views.paging import PAGE_ROWS, page_of
from rmqpy.model.errors import NetworkError
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.bodies import (
    MessageQueue,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)
from rmqpy.remoting.bodies.statistics import TopicOffset
from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.testing.in_process import InProcess, name_server_and_broker

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient

    from rmqpy.console.collecting.collector import Collector
else:
    Collector = collecting.Collector

HOSTILE = "<img src=x onerror=alert(1)>\"'\x1b[31m\u202e\x00"
TOPICS = 10_000


@define
class ManyTopics(CountedBrokers):
    """A broker with many topics, one more in each version of its table."""

    version: int = 0

    async def encoded_topics(self, _address: str) -> bytes:
        self.requests["encoded_topics"] += 1
        names = [f"topic-{number:05}" for number in range(TOPICS + self.version)]
        table = {name: TopicConfig(name, 4, 4) for name in names}
        return TopicConfigSerializeWrapper(DataVersion(self.version), table).encode()

    async def topic_stats(self, _address: str, topic: str) -> TopicStatsTable:
        self.requests["topic_stats"] += 1
        return TopicStatsTable(
            {MessageQueue(topic, "a", number): TopicOffset(2, 9, 5) for number in range(4)}
        )


@pytest.mark.slow
def test_a_list_of_many_topics_costs_requests_per_page() -> None:
    async def run() -> None:
        brokers: Any = ManyTopics({("a", 0): "x:1"}, {"x:1": {}})
        collector = Collector(brokers, SetClock())
        await collector.poll()
        brokers.requests.clear()
        async with browsing(collector) as client:
            page = await (await client.get("/topics")).text()
            assert "10,000 of 10,000 topics" in page and "Page 1 of 200" in page
            assert brokers.requests == {"encoded_topics": 1, "topic_stats": PAGE_ROWS}
            for _ in range(9):  # nine further viewers
                assert (await client.get("/topics")).status == 200
            assert brokers.requests == {"encoded_topics": 1, "topic_stats": PAGE_ROWS}
            page = await (await client.get("/topics?search=TOPIC-0999&page=7")).text()
            assert "10 of 10,000 topics" in page and "topic-09995" in page and "Page" not in page
            assert brokers.requests == {"encoded_topics": 1, "topic_stats": PAGE_ROWS + 10}

    asyncio.run(run())


@pytest.mark.slow
def test_topics_are_decoded_only_when_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = TopicConfigSerializeWrapper.decode

    def counted(data: bytes) -> TopicConfigSerializeWrapper:
        decoded.append(len(data))
        return decode(data)

    monkeypatch.setattr(TopicConfigSerializeWrapper, "decode", counted)

    async def run() -> None:
        brokers: Any = ManyTopics({("a", 0): "x:1"}, {"x:1": {}})
        clock = SetClock()
        collector = Collector(brokers, clock)
        await collector.poll()
        async with browsing(collector) as client:
            for version, count in ((0, 1), (0, 1), (1, 2)):
                brokers.version = version
                page = await (await client.get("/topics")).text()
                assert f"of {TOPICS + version:,} topics" in page and len(decoded) == count
                clock.time_ms += 60_000
            assert brokers.requests["encoded_topics"] == 3

    asyncio.run(run())


def test_paging_stays_inside() -> None:
    rows = [str(number) for number in range(101)]
    for number, expected in ((-5, 1), (0, 1), (3, 3), (99, 3)):
        assert page_of(rows, str, "", number).number == expected
    assert list(page_of(rows, str, "", 3).rows) == ["100"]
    assert page_of([], str, "x", 1).pages == 1


def test_shared_answers_are_asked_once_renewed_and_bounded(monkeypatch: Any) -> None:
    async def run() -> None:
        clock, asked = SetClock(), 0
        shared = SharedAnswers(clock)

        async def ask() -> int:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0)
            return asked

        async def refused() -> int:
            raise NetworkError("gone")

        assert await asyncio.gather(*(shared.get("a", 100, ask) for _ in range(5))) == [1] * 5
        clock.time_ms += 100
        assert await shared.get("a", 100, ask) == 2
        with pytest.raises(NetworkError):
            await shared.get("b", 100, refused)
        assert await shared.get("b", 100, ask) == 3
        for number in range(3000):
            await shared.get(number, 100, ask)
        assert len(shared) == 2048

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "form", "expected"),
    [
        (b'{"b":1,"a":[2]}', "auto", ("json", '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}')),
        (b"plain", "auto", ("text", "plain")),
        (b"42", "auto", ("text", "42")),
        (b"42", "json", ("json", "42")),
        (b"not json", "json", ("text", "not json")),
        ("café".encode(), "auto", ("text", "café")),
        (b"\x00\xff", "auto", ("hex", f"00000000  {'00 ff':<48} ..")),
        (b"a\x1b[2Jb", "text", ("text", "a\\u001b[2Jb")),
        (b"[" * 60_000, "auto", ("text", "[" * 60_000)),
        (b"", "auto", ("text", "")),
    ],
)
def test_bodies_are_shown_in_their_form(body: bytes, form: str, expected: tuple[str, str]) -> None:
    assert body_text(body, form) == expected


def test_characters_with_effects_are_shown_as_codes() -> None:
    assert shown("a\u202eb\x07\u2066\ud800") == "a\\u202eb\\u0007\\u2066\\ud800"


@asynccontextmanager
async def on_a_broker(
    root: Path, clock: SetClock | None = None
) -> AsyncIterator[tuple[InProcess, Collector, TestClient[Any, Any]]]:
    """Run a broker and a console, and yield them."""
    async with name_server_and_broker(root) as servers:
        instance = await ClientInstance.open(ClientSettings(name_servers=servers.name_server))
        try:
            async with PullConsumer("TOOLS_CONSUMER", instance=instance) as consumer:
                collector = Collector(Admin(instance, (servers.name_server,)), clock or SetClock())
                await collector.poll()
                async with browsing(collector, consumer) as client:
                    yield servers, collector, client
        finally:
            await instance.close()


@pytest.mark.slow
def test_messages_are_found_by_offset_time_key_and_id(tmp_path: Path) -> None:
    async def run() -> None:
        async with on_a_broker(tmp_path) as (servers, _, client):
            async with Producer("p", servers.name_server) as producer:
                sent = [
                    await producer.send(
                        Message(topic="orders", body=b'{"n": %d}' % number, keys=f"key-{number}")
                    )
                    for number in range(3)
                ]
                large = b"<script>alert(1)</script>" * 1000  # compressed by the producer
                await producer.send(
                    Message(topic="orders", body=large, keys="large", properties={"evil": HOSTILE})
                )
                await producer.send(Message(topic="orders", body=b"later"), sent[1].queue)
            page = await (await client.get("/topic?name=orders")).text()
            assert page.count(">first</a>") == 4
            queue = sent[1].queue
            place = f"topic=orders&broker={queue.broker_name}&queue={queue.queue_id}"
            page = await (await client.get(f"/messages?{place}&offset=0")).text()
            assert "{&#34;n&#34;: 1}" in page
            assert 'rel="next"' in page and 'rel="prev"' not in page
            page = await (await client.get(f"/messages?{place}&offset=1")).text()
            before = page.partition('rel="prev" href="')[2].partition('"')[0].replace("&amp;", "&")
            assert before == f"/messages?{place}&offset=0" and "{&#34;n&#34;: 1}" not in page
            page = await (await client.get(f"/messages?{place}&time=2001-01-01T00:00")).text()
            assert "{&#34;n&#34;: 1}" in page
            page = await (await client.get("/messages?topic=orders&key=key-2")).text()
            assert "{&#34;n&#34;: 2}" in page and "{&#34;n&#34;: 1}" not in page
            page = await (await client.get("/messages?topic=orders&key=large")).text()
            assert "<script>alert" not in page
            offset_id = page.partition("/message?id=")[2].partition('"')[0]
            page = await (await client.get(f"/message?id={offset_id}")).text()
            assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
            assert "<img" not in page and "\\u202e" in page and "\x1b" not in page
            assert "classic log" in page and f"commitlog/{0:020d}" in page
            page = await (await client.get(f"/message?id={offset_id}&as=hex")).text()
            assert "00000000  3c 73 63 72" in page

    asyncio.run(run())


@pytest.mark.slow
def test_wrong_places_are_answered_with_sentences(tmp_path: Path) -> None:
    async def run() -> None:
        async with on_a_broker(tmp_path) as (_, _, client):
            for target, sentence in (
                ("/messages?topic=none&broker=a&queue=0", "none"),
                ("/messages?topic=orders&broker=elsewhere&queue=0", "found no broker"),
                ("/messages?topic=orders&broker=a&queue=99999999999999999999", "orders"),
                ("/messages?topic=x&broker=a&time=yesterday", "expected a time in UTC"),
                ("/messages?id=xyz", "expected an offset id"),
                ("/message?id=" + "0" * 32, "expected one of a broker of this cluster"),
                ("/message?id=0A0000010000" + "0" * 20, "expected one of a broker"),
                ("/topic?name=" + "%3Cscript%3E", "No broker that answers"),
            ):
                answer = await client.get(target)
                page = await answer.text()
                assert answer.status in (200, 404) and sentence in page, (target, page)
                assert "<script>" not in page

    asyncio.run(run())


@pytest.mark.slow
def test_new_messages_arrive_in_the_tail(tmp_path: Path) -> None:
    async def run() -> None:
        clock = SetClock()
        async with (
            on_a_broker(tmp_path, clock) as (servers, collector, client),
            Producer("p", servers.name_server) as producer,
        ):
            await producer.send(Message(topic="orders", body=b"old"))
            await collector.poll()
            answer = await client.get("/tail?topic=orders")
            while not collector.history.samples(("queue", "a", "orders", 0)):
                await asyncio.sleep(0)  # until the tail knows the ends of the queues
            await producer.send(Message(topic="orders", body=b"<b>new</b>"))
            clock.time_ms += 5000
            await collector.poll()
            assert await answer.content.readline() == b"event: row\n"
            row = await answer.content.readline()
            assert b"&lt;b&gt;new&lt;/b&gt;" in row and b"old" not in row
            answer.close()

    asyncio.run(run())


def stored(body: bytes, sys_flag: int = 0, **changes: Any) -> MessageExt:
    values: dict[str, Any] = {
        "size": 200,
        "version": 1,
        "body_crc": 0,
        "queue_id": 3,
        "flag": 0,
        "queue_offset": 7,
        "physical_offset": 5000,
        "sys_flag": sys_flag,
        "born_timestamp_ms": 0,
        "born_host": (b"\x0a\0\0\1", 5),
        "store_timestamp_ms": 0,
        "store_host": (b"\x0a\0\0\1", 10911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": body,
        "topic": "t",
    }
    return MessageExt(queue=MessageQueue("t", "a", 3), stored=StoredMessage(**(values | changes)))


@pytest.mark.parametrize(
    ("offset", "divide", "side", "file"),
    [
        (5000, None, "DLedger log", "dledger-n0/data/00000000000000004096"),
        (
            5000,
            8192,
            "classic log, 3,192 bytes before the divide",
            "commitlog/00000000000000004096",
        ),
        (
            9000,
            8192,
            "DLedger log, 808 bytes after the divide",
            "dledger-n0/data/00000000000000008192",
        ),
    ],
)
def test_the_place_of_a_message_names_its_side_of_the_divide(
    offset: int, divide: int | None, side: str, file: str
) -> None:
    settings = {
        "mappedFileSizeCommitLog": "4096",
        "enableDLegerCommitLog": "true",
        "dLegerSelfId": "n0",
    }
    info = {"dividedCommitlogOffset": str(divide)} if divide is not None else {}
    broker = BrokerFacts(
        cluster="c", name="a", broker_id=0, address="x", settings=settings, info=info
    )
    view = message_view(stored(b"x", physical_offset=offset), broker, "auto")
    place = dict(view.place)
    assert (place["side"], place["file"]) == (side, file)
    assert dict(message_view(stored(b"x"), None, "auto").place)["broker"].startswith("not a")


def test_a_body_that_cannot_be_inflated_is_shown_as_stored() -> None:
    for body in (b"not zlib", zlib.compress(b"x" * 5000)[:-8]):
        view = message_view(stored(body, sys_flag=1), None, "auto")
        assert view.fault and view.form == "hex" and view.stored_bytes == len(body)
    assert preview(stored(b"not zlib", sys_flag=1)).startswith("(")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_only_the_beginning_of_a_large_body_is_inflated_and_shown(is_compressed: bool) -> None:
    body = b"x" * (4 << 20)
    message = stored(zlib.compress(body) if is_compressed else body, sys_flag=int(is_compressed))
    view = message_view(message, None, "auto")
    assert view.body == "x" * 65_536 and not view.is_whole
    assert preview(message) == "x" * 120
