"""Message traces: the bytes of Java's records, and their lookup by the id of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from harness.client import encode_record

from rmqpy.admin.commands.trace import Trace, decode_traces
from rmqpy.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushSettings,
)
from rmqpy.client.core.message import MessageExt
from rmqpy.client.trace import (
    NORMAL,
    WAITING_MAX,
    SendTrace,
    Tracer,
    TraceRecord,
    _sub_after,
    _sub_before,
)
from rmqpy.codec.message import decode_message
from rmqpy.model.errors import NetworkError
from rmqpy.testing.in_process import name_server_and_broker
from rmqpy.testing.manual_scheduler import ManualScheduler

TRACES = "RMQ_SYS_TRACE_TOPIC"
SENT = SendTrace(
    group="writers", topic="Orders", msg_id="ID", tags="new", keys="a b",
    store_host="10.0.0.1:10911", body_bytes=5, kind=NORMAL, offset_msg_id="OFF", success=True,
)  # fmt: skip


def test_the_record_of_a_send_has_javas_fields() -> None:
    record = SENT.record(1_700_000_000_000, 3)
    assert record.text == "\x01".join(
        ("Pub", "1700000000000", "DefaultRegion", "writers", "Orders", "ID", "new", "a b")
        + ("10.0.0.1:10911", "5", "3", "0", "OFF", "true\x02")
    )
    assert record.keys == ("ID", "a", "b")


def test_no_field_of_a_record_is_empty() -> None:
    """Java's reader drops empty fields at the end of a record."""
    record = evolve(SENT, tags="", keys="").record(1_700_000_000_000, 3)
    assert record.text.split("\x01")[6:8] == ["null", "null"]
    assert record.keys == ("ID",)
    stored = decode_message(encode_record(0, UNIQ_KEY="ID"))
    message = MessageExt(queue=MessageQueue("T", "a", 0), stored=stored)
    before = _sub_before("readers", "R", 1_700_000_000_000, message)
    after = _sub_after("readers", "R", (1_700_000_000_009, 9, 0), message)
    for text in (before.text, after.text):
        assert all(text.removesuffix("\x02").split("\x01"))


def test_records_are_sent_in_batches_and_their_number_is_bounded() -> None:
    sent: list[Message] = []

    async def main() -> Tracer:
        async def send(message: Message) -> None:
            sent.append(message)

        async def ended() -> None:
            pass

        tracer = Tracer(TRACES, ManualScheduler(), send, ended)
        for number in range(WAITING_MAX + 7):
            tracer.add(TraceRecord(f"{number}\x02", (f"id-{number}",)))
        await tracer.close()
        return tracer

    tracer = asyncio.run(main())
    assert tracer.lost == 7
    assert len(sent) == -(-WAITING_MAX // 100)
    assert bytes(sent[0].body) == b"".join(b"%d\x02" % number for number in range(100))
    assert sent[0].keys.split() == [f"id-{number}" for number in range(100)]


def test_records_that_cannot_be_sent_are_counted() -> None:
    async def main() -> int:
        async def send(_message: Message) -> None:
            raise NetworkError("planted")

        async def ended() -> None:
            pass

        tracer = Tracer(TRACES, ManualScheduler(), send, ended)
        tracer.add(SENT.record(0, 0))
        await tracer.close()
        return tracer.lost

    assert asyncio.run(main()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_the_traces_of_a_message_have_its_producer_and_consumer(
    tmp_path: Path, fails: bool
) -> None:
    received: list[str] = []

    async def listen(messages: Sequence[MessageExt]) -> None:
        received.extend(message.msg_id for message in messages)
        if fails:
            raise ValueError("planted")

    async def main() -> list[Trace]:
        async with (
            asyncio.timeout(60),
            name_server_and_broker(tmp_path, {"traceTopicEnable": "true"}) as running,
        ):
            server = running.name_server
            settings = ProducerSettings(trace_topic=TRACES)
            async with Producer("writers", server, settings=settings) as producer:
                sent = await producer.send(Message(topic="TBW102", body=b"m", keys="k", tags="t"))
            pushing = PushSettings(from_where="CONSUME_FROM_FIRST_OFFSET", trace_topic=TRACES)
            consumer = PushConsumer("readers", server, listener=listen, settings=pushing)
            consumer.subscribe("TBW102")
            async with consumer:
                while not received:
                    await asyncio.sleep(0.02)
            async with PullConsumer("lookup", server) as lookup:
                for key in (sent.msg_id, "k"):
                    found = await lookup.query_by_key(TRACES, key)
                    assert len(found) == 2, key
            return [trace for message in found for trace in decode_traces(message, sent.msg_id)]

    traces = {trace.kind: trace for trace in asyncio.run(main())}
    assert set(traces) == {"Pub", "Sub"}
    assert (traces["Pub"].group, traces["Pub"].success) == ("writers", True)
    assert (traces["Sub"].group, traces["Sub"].success) == ("readers", not fails)


def test_traces_are_off_by_default() -> None:
    assert ProducerSettings().trace_topic is None
    assert PushSettings().trace_topic is None
