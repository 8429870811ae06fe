"""Classic slaves of a DLedger group: the stream that its members serve, and who may follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from harness.broker import response_bodies
from harness.dledger_group import Group, Member

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.cli import main as rmqpy
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.store.commitlog.classic_view import ClassicView
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import read_span
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.testing.blocking_connection import pull_request, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block

DEADLINE_S = 120
FILE_SIZE = 65536
TIMEOUT_MS = 30_000


def view_of(member: Member) -> ClassicView:
    assert member.store is not None
    log = member.store.log
    assert isinstance(log, JoinedCommitLog | DLedgerCommitLog)
    return ClassicView(log)


class Streams:
    """What a slave of each member has received."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.streams = {member.number: b"" for member in group.members}

    def receive(self) -> None:
        for member in self.group.members:
            if member.store is None:
                continue
            view, stream = view_of(member), self.streams[member.number]
            end = view.confirm_offset
            if end > len(stream):
                self.streams[member.number] += read_span(view, len(stream), end - len(stream))

    def agree(self) -> bool:
        longest = max(self.streams.values(), key=len)
        return all(longest.startswith(stream) for stream in self.streams.values())


def test_every_member_serves_the_same_stream_whoever_leads() -> None:
    """Through two changes of leader, and entries that only a former leader had."""
    group = Group.of()
    group.start(0, 1, 2)
    streams = Streams(group)
    for number in range(3):
        leader = group.elect()
        for count in range(1, 8):
            group.send(leader, *[b"%d" % number * 40 * count] * count)
            streams.receive()
        group.cut = {leader.number}
        group.send(leader, *[b"lost %d" % number * 50] * (number + 1), wait_ms=2000)
        streams.receive()
        group.elect()
        group.run(8000)
        streams.receive()
        group.cut = set()
        group.run(10_000)
        streams.receive()
        assert streams.agree()
    assert min(map(len, streams.streams.values())) > 4 * 4096
    restarted = group.members[0]
    group.kill(restarted.number)
    group.start(restarted.number)
    group.run(5000)
    view = view_of(restarted)
    assert read_span(view, 0, view.confirm_offset).startswith(streams.streams[0])


class Brokers:
    """Brokers in this loop: a group of one member, and classic slaves."""

    def __init__(self, root: Path, scheduler: AsyncioScheduler) -> None:
        self.root = root
        self.scheduler = scheduler
        self.blocks: list[PortBlock] = []
        self.running: list[BrokerRuntime] = []
        self.client = RemotingClient(scheduler)
        self.server: NamesrvProcess | None = None

    async def start(self, name: str, **settings: str) -> BrokerRuntime:
        self.blocks.append(free_port_block(BROKER_PORT_COUNT))
        own = {
            "brokerName": "broker-a",
            "listenPort": str(self.blocks[-1].broker_port),
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(self.root / name),
            "mappedFileSizeCommitLog": str(FILE_SIZE),
            "haFetchFromBeginning": "true",
        }
        loaded = load_broker_configuration(None, own | settings, {"HOME": str(self.root)})
        broker = BrokerRuntime(loaded.configuration, self.scheduler)
        await broker.start()
        self.running.append(broker)
        return broker

    async def member(self, **settings: str) -> BrokerRuntime:
        self.blocks.append(free_port_block(1))
        own = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "broker-a",
            "dLegerSelfId": "n0",
            "dLegerPeers": f"n0-127.0.0.1:{self.blocks[-1][0]}",
            "haServeEntries": "true",
        }
        broker = await self.start("member", **own | settings)
        await until(lambda: not broker.broker.identity.is_slave)
        return broker

    async def slave(
        self, master: BrokerRuntime, name: str = "slave", **settings: str
    ) -> BrokerRuntime:
        own = {"brokerRole": "SLAVE", "brokerId": "10"}
        own["haMasterAddress"] = master.broker.identity.ha_address
        return await self.start(name, **own | settings)

    async def namesrv(self) -> str:
        self.blocks.append(free_port_block(1))
        port = self.blocks[-1][0]
        settings = {"listenPort": str(port), "kvConfigPath": str(self.root / "kv.json")}
        loaded = load_namesrv_configuration(None, settings, {"HOME": str(self.root)})
        self.server = NamesrvProcess(loaded.configuration, self.scheduler)
        await self.server.start()
        return f"127.0.0.1:{port}"

    async def end(self, *brokers: BrokerRuntime) -> None:
        for broker in brokers:
            self.running.remove(broker)
            await broker.stop()

    async def send(self, broker: BrokerRuntime, count: int) -> list[bytes]:
        """Send messages to one queue and return their bodies."""
        bodies = [b"%d," % number * (1 + number % 200) for number in range(count)]
        for body in bodies:
            request = send_request("T", 0, [body], "KEYS\x01k")
            answer = await self.client.invoke(broker.address, request, TIMEOUT_MS)
            assert answer.code == 0, answer.remark
        return bodies

    async def read(self, broker: BrokerRuntime, count: int) -> list[bytes]:
        """Return the bodies of ``count`` messages, as a consumer gets them."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            request = pull_request("T", 0, len(bodies))
            answer = await self.client.invoke(broker.address, request, TIMEOUT_MS)
            bodies += response_bodies(answer)
            await asyncio.sleep(0.01)
        return bodies

    async def stop(self) -> None:
        await self.client.close()
        for broker in reversed(self.running):
            await broker.stop()
        if self.server is not None:
            await self.server.stop()
        for block in self.blocks:
            block.release()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def with_brokers(root: Path, main: Callable[[Brokers], Coroutine[Any, Any, None]]) -> None:
    async def whole(scheduler: AsyncioScheduler) -> None:
        brokers = Brokers(root, scheduler)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await main(brokers)
        finally:
            await brokers.stop()

    run(whole)


def info(broker: BrokerRuntime) -> dict[str, str]:
    return broker.broker.replication.runtime_info()


def is_registered(broker: BrokerRuntime) -> bool:
    return broker.broker.registration.last_answer is not None


def log_of(broker: BrokerRuntime) -> bytes:
    log = broker.store.log
    return read_span(log, 0, log.confirm_offset)


def stream_of(member: BrokerRuntime) -> bytes:
    log = member.store.log
    assert isinstance(log, JoinedCommitLog | DLedgerCommitLog)
    view = ClassicView(log)
    return read_span(view, 0, view.confirm_offset)


@pytest.mark.slow
def test_a_classic_slave_follows_a_dledger_group(tmp_path: Path) -> None:
    """It gets the last message, too, its consumers get all of them, and it can be restarted."""

    async def main(brokers: Brokers) -> None:
        member = await brokers.member()
        first = await brokers.send(member, 150)
        slave = await brokers.slave(member)
        assert await brokers.read(slave, 150) == first
        assert info(slave)["haLogsCompared"] == "nothing to compare yet"
        second = await brokers.send(member, 150)
        assert await brokers.read(slave, 300) == first + second
        await until(lambda: log_of(slave) == stream_of(member))
        assert len(log_of(slave)) > 2 * FILE_SIZE
        await brokers.end(slave)
        third = await brokers.send(member, 100)
        slave = await brokers.slave(member)
        assert await brokers.read(slave, 400) == first + second + third
        assert info(slave)["haLogsCompared"].startswith("the same up to ")
        await until(lambda: log_of(slave) == stream_of(member))

    with_brokers(tmp_path, main)


@pytest.mark.slow
def test_a_slave_with_another_log_is_refused(tmp_path: Path) -> None:
    async def main(brokers: Brokers) -> None:
        member = await brokers.member()
        await brokers.send(member, 50)
        other = await brokers.start("slave")
        await brokers.client.invoke(
            other.address, send_request("T", 0, [b"foreign"], ""), TIMEOUT_MS
        )
        before = log_of(other)
        await brokers.end(other)
        slave = await brokers.slave(member)
        await until(lambda: "diverge at offset " in info(slave).get("haLastFault", ""))
        assert log_of(slave) == before

    with_brokers(tmp_path, main)


@pytest.mark.slow
def test_a_member_serves_slaves_only_with_the_setting(tmp_path: Path) -> None:
    async def main(brokers: Brokers) -> None:
        member = await brokers.member(haServeEntries="false")
        slave = await brokers.slave(member)
        await until(lambda: "haServeEntries=true" in info(slave).get("haLastFault", ""))

    with_brokers(tmp_path, main)


@pytest.mark.slow
def test_a_slave_of_the_classic_group_continues_at_the_divide(tmp_path: Path) -> None:
    async def main(brokers: Brokers) -> None:
        master = await brokers.start("member")
        slave = await brokers.slave(master)
        first = await brokers.send(master, 20)
        assert await brokers.read(slave, 20) == first
        await brokers.end(slave, master)
        member = await brokers.member()
        assert member.store.opened.divided_offset == FILE_SIZE
        slave = await brokers.slave(member)
        second = await brokers.send(member, 20)
        assert await brokers.read(slave, 40) == first + second
        await until(lambda: log_of(slave) == stream_of(member))

    with_brokers(tmp_path, main)


def admin(*words: str) -> Coroutine[Any, Any, int]:
    """Run ``rmqpy admin`` in a thread, beside the brokers in this loop."""
    return asyncio.to_thread(rmqpy, ["admin", *words])


@pytest.mark.slow
def test_a_fence_leaves_members_and_slaves_level(tmp_path: Path) -> None:
    """The slave has all messages, but not the marker that has made the last one visible."""

    async def main(brokers: Brokers) -> None:
        server = await brokers.namesrv()
        member = await brokers.member(namesrvAddr=server)
        slave = await brokers.slave(member, namesrvAddr=server)
        await until(lambda: is_registered(member) and is_registered(slave))
        await until(lambda: info(slave)["haState"].startswith("connected"))
        sent = await brokers.send(member, 20)
        assert await admin("fence", "-n", server, "-m", "broker-a", "-s", "60") == 0
        assert slave.store.log.max_offset < member.store.log.max_offset
        assert await brokers.read(slave, 20) == sent
        assert await admin("fence", "-n", server, "-m", "broker-a", "--lift") == 0
        await brokers.send(member, 1)

    with_brokers(tmp_path, main)
