"""The store maps of running brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.console import CountedBrokers, SetClock, browsing, collecting, page_of, readers

from rmqpy.admin.api import Admin
from rmqpy.client import Message, Producer
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.console.facts import BrokerFacts, Moment
from rmqpy.console.views.alarms import alarms_of
from rmqpy.console.views.store_maps import FILES_MAX, GroupMap
from rmqpy.console.views.store_maps import maps_of as maps_with
from rmqpy.ha.compare import CompareRange, digests
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import CompareLogRequestHeader
from rmqpy.testing.in_process import broker_in_process, name_server_in_process, registered

SETTINGS = {"mappedFileSizeCommitLog": "65536", "enableDLegerCommitLog": "true"}
JAVA = {"brokerRole": "SLAVE"}
OWN = {"securityMode": "compatible"}
SECONDS_MAX = 60


def maps_of(moment: Moment) -> list[GroupMap]:
    return maps_with(moment, {}, 0)


def broker(settings: Mapping[str, str] = SETTINGS, **info: str) -> BrokerFacts:
    return BrokerFacts(
        cluster="c", name="a", broker_id=0, address="x:1", info=info, settings=settings
    )


def test_a_running_member_has_both_sides_of_the_divide() -> None:
    member = broker(
        commitLogMinOffset="0", commitLogMaxOffset="500000", dividedCommitlogOffset="262144"
    )
    (found,) = maps_of(Moment(time_ms=0, brokers=[member]))
    (row,) = found.layout.rows
    kinds = [shape.kind for shape in row.files]
    assert (kinds.count("classic"), kinds.count("ledger"), kinds.count("rest")) == (4, 4, 1)
    assert row.facts[1:] == ["256.0 KiB before the divide", "232.3 KiB after it"]
    assert [mark.kind for mark in row.marks] == ["divide", "committed"]


def test_a_running_broker_reports_what_is_flushed() -> None:
    info = {"commitLogMinOffset": "65536", "commitLogMaxOffset": "90000", "flushedOffset": "80000"}
    (found,) = maps_of(Moment(time_ms=0, brokers=[broker({}, **info)]))
    (row,) = found.layout.rows
    assert [mark.title for mark in row.marks] == ["flushed: on the disk up to here, 80,000"]
    assert row.expired == "expired, or never here: offsets before 65,536"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"commitLogMinOffset": "-1", "commitLogMaxOffset": "5"},
        {"commitLogMinOffset": "9", "commitLogMaxOffset": "5"},
        {"commitLogMinOffset": "x", "commitLogMaxOffset": "5"},
    ],
)
def test_a_broker_that_reports_no_log_is_named(info: dict[str, str]) -> None:
    (found,) = maps_of(Moment(time_ms=0, brokers=[broker(SETTINGS, **info)]))
    assert found.silent == ["x:1"] and not found.layout.rows


@pytest.mark.parametrize("size", ["1", "0", "-5", "many"])
def test_a_wrong_file_size_costs_no_time(size: str) -> None:
    settings = {"mappedFileSizeCommitLog": size}
    odd = broker(settings, commitLogMinOffset="0", commitLogMaxOffset=str(1 << 60))
    (found,) = maps_of(Moment(time_ms=0, brokers=[odd]))
    assert 0 < len(found.layout.rows[0].files) < FILES_MAX


def test_the_page_escapes_names() -> None:
    async def run() -> None:
        hostile = "<script>alert(1)</script>"
        info = {"commitLogMinOffset": "0", "commitLogMaxOffset": "70000"}
        brokers = CountedBrokers({(hostile, 0): hostile}, {hostile: info})
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            page = await (await client.get("/map")).text()
            assert "<svg" in page and "<script>alert" not in page
            style = await client.get("/map.css")
            assert style.content_type == "text/css"

    asyncio.run(run())


@define
class ComparedBrokers(CountedBrokers):
    """Replicas of one group whose logs are ``logs`` by address; brokers of Java have none."""

    logs: dict[str, bytearray] = field(factory=dict)

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        if not isinstance(header, CompareLogRequestHeader) or address not in self.logs:
            return await super().call(address, code, header, body)
        self.requests[code.name] += 1
        span = CompareRange(header.begin_offset, header.end_offset, header.block_size)
        log = self.logs[address]
        if span.end > len(log):
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, "nothing to compare: <b>")
        return RemotingCommand(
            code=0, body=digests(span, lambda offset, size: bytes(log[offset : offset + size]))
        )


def replicas(*logs: bytes, java: int = 0) -> ComparedBrokers:
    """Return replicas of rmqpy with these logs, and ``java`` more of Java."""
    addresses = [f"x:{number}" for number in range(len(logs) + java)]
    info = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(len(logs[0]))}
    return ComparedBrokers(
        {("a", number): address for number, address in enumerate(addresses)},
        {address: dict(info) for address in addresses},
        {address: OWN if number < len(logs) else JAVA for number, address in enumerate(addresses)},
        logs={address: bytearray(log) for address, log in zip(addresses, logs, strict=False)},
    )


@asynccontextmanager
async def compared(brokers: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Yield a collector that has polled, and a comparer that has compared one range."""
    collector = collecting.Collector(brokers, SetClock())
    await collector.poll()
    found = readers.ClusterReaders.of(collector, None).logs
    await found.step()
    yield collector, found


def picture_of(collector: Any, comparer: Any) -> GroupMap:
    now_ms = collector.clock.now_ms()
    (found,) = maps_with(collector.moment, comparer.look(), now_ms)
    return found


def test_replicas_with_the_same_log_are_equal_and_the_proof_has_an_age() -> None:
    async def run() -> None:
        async with compared(replicas(*[b"m" * 300_000] * 3)) as (collector, comparer):
            assert comparer.different() == []
            collector.clock.time_ms += 65_000
            found = picture_of(collector, comparer)
            assert [shape.kind for shape in found.layout.agreement] == ["equal"]
            assert found.layout.verdict == (
                "The logs of 3 replicas are equal: compared all 293.0 KiB that they have in common,"
                " the oldest 1 min 5 s ago."
            )

    asyncio.run(run())


def test_a_damaged_replica_is_found_and_named() -> None:
    async def run() -> None:
        brokers = replicas(*[b"m" * 300_000] * 3)
        brokers.logs["x:1"][200_000] ^= 1
        async with compared(brokers) as (collector, comparer):
            found = picture_of(collector, comparer)
            assert "different" in [shape.kind for shape in found.layout.agreement]
            assert found.is_different
            critical = alarms_of(collector.moment, comparer.different())[0]
            assert (critical.subject, critical.text) == ("a", "The logs of its replicas differ.")
            assert "The logs differ in 4.6 KiB, first at offset 196,896" in (found.layout.verdict)
            first, damaged, last = (row.facts[-1] for row in found.layout.rows)
            assert damaged == "4.6 KiB differ from most replicas, first at 196,896"
            assert "differ" not in first + last
            brokers.infos["x:1"]["bootTimestamp"] = "2"  # It was repaired, and started again.
            await collector.poll()
            assert comparer.different() == []

    asyncio.run(run())


def test_a_member_of_java_is_named_and_not_asked() -> None:
    async def run() -> None:
        brokers = replicas(*[b"m" * 300_000] * 2, java=1)
        async with compared(brokers) as (collector, comparer):
            found = picture_of(collector, comparer)
            assert [shape.kind for shape in found.layout.agreement] == ["equal"]
            assert found.java == ["x:2"] and "logs of 2 replicas" in found.layout.verdict
            assert brokers.requests["RMQPY_COMPARE_LOG"] == 2
            async with browsing(collector) as client:
                page = await page_of(client, "/map")
                assert "Not compared, as brokers of Java report no digests" in page

    asyncio.run(run())


def test_brokers_of_java_alone_are_not_compared() -> None:
    async def run() -> None:
        brokers = replicas(b"m", java=2)
        del brokers.brokers["a", 0]
        async with compared(brokers) as (collector, comparer):
            found = picture_of(collector, comparer)
            assert found.java == ["x:1", "x:2"] and found.layout.verdict == ""
            assert not found.layout.agreement and not brokers.requests["RMQPY_COMPARE_LOG"]

    asyncio.run(run())


def test_a_refusal_is_shown_as_text_and_not_repeated_at_once() -> None:
    async def run() -> None:
        brokers = replicas(b"m" * 9000, b"m" * 10)
        async with compared(brokers) as (collector, comparer):
            await comparer.step()
            assert brokers.requests["RMQPY_COMPARE_LOG"] == 2
            async with browsing(collector) as client:
                await page_of(client, "/map")
            verdict = picture_of(collector, comparer).layout.verdict
            assert verdict == "The logs are not compared: x:1 refuses: nothing to compare: <b>."
            brokers.logs["x:1"] = bytearray(b"m" * 9000)
            collector.clock.time_ms += 30_000
            await comparer.step()
            assert not picture_of(collector, comparer).is_different
            assert "are equal" in picture_of(collector, comparer).layout.verdict

    asyncio.run(run())


def test_viewers_share_comparisons_which_end_when_everything_is_compared() -> None:
    async def run() -> None:
        brokers = replicas(*[bytes(2_500_000)] * 2)
        async with compared(brokers) as (_, comparer):
            for _ in range(5):
                comparer.look()
                await comparer.step()
            assert brokers.requests["RMQPY_COMPARE_LOG"] == 2 * 3

    asyncio.run(run())


def test_nothing_is_compared_before_somebody_looks() -> None:
    async def run() -> None:
        brokers = replicas(*[bytes(100)] * 2)
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        comparer = readers.ClusterReaders.of(collector, None).logs
        async with comparer.running():
            for _ in range(10):
                await asyncio.sleep(0)
            assert not brokers.requests["RMQPY_COMPARE_LOG"]
            comparer.look()
            async with asyncio.timeout(SECONDS_MAX):
                while not brokers.requests["RMQPY_COMPARE_LOG"]:
                    await asyncio.sleep(0)

    asyncio.run(run())


@pytest.mark.slow
def test_a_damaged_file_of_a_running_slave_is_found(tmp_path: Path) -> None:
    """A broker that runs does not notice: its pages, and those of its master, are read."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            names = await stack.enter_async_context(name_server_in_process(tmp_path))
            master = await stack.enter_async_context(broker_in_process(tmp_path / "m", names))
            slave = await stack.enter_async_context(
                broker_in_process(tmp_path / "s", names, {"brokerRole": "SLAVE", "brokerId": "1"})
            )
            await registered(master)
            await registered(slave)
            async with Producer("p", names) as producer:
                for _ in range(20):
                    await producer.send(Message(topic="T", body=b"b" * 4096))
            instance = await ClientInstance.open(ClientSettings(name_servers=names))
            stack.push_async_callback(instance.close)
            collector = collecting.Collector(Admin(instance, (names,)), SetClock())
            async with asyncio.timeout(SECONDS_MAX):
                while len({each.log_end for each in (await collector.poll()).brokers}) > 1:
                    await asyncio.sleep(0.05)  # The slave copies the log.
            comparer = readers.ClusterReaders.of(collector, None).logs
            await comparer.step()
            assert "logs of 2 replicas are equal" in picture_of(collector, comparer).layout.verdict

            log = tmp_path / "s" / "store" / "commitlog" / f"{0:020d}"
            with log.open("r+b") as file:
                file.seek(1_000)
                file.write(b"X")
            collector.clock.time_ms += 3_600_000
            await comparer.step()
            assert picture_of(collector, comparer).is_different

    asyncio.run(run())
