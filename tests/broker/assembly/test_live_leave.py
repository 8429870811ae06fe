"""A classic slave takes over from the DLedger group that it follows, while a producer sends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.broker import response_bodies

from rmqpy.broker.assembly.leave import member as leave_member
from rmqpy.broker.assembly.leave import slave as leave_slave
from rmqpy.broker.assembly.leave.record import leave_journal
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.broker.assembly.switch import completion
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.replication.leave_protocol import SLAVE as SLAVE_ID
from rmqpy.broker.replication.leave_protocol import LeaveCoordinator
from rmqpy.broker.replication.switch_protocol import SwitchPlan, SwitchRecord, SwitchStage
from rmqpy.cli import main as rmqpy
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import StoreError
from rmqpy.model.flags import PULL_SUSPEND
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.remoting.bodies import (
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    SubscriptionData,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import GetConsumerListByGroupRequestHeader, PullMessageRequestHeader
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import pull_request, send_request
from rmqpy.testing.in_process import registered
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.store_reader import read_store

PLAN = SwitchPlan(switch="", group="", coordinator=SLAVE_ID, peers="", brokers={})
DEADLINE_S = 120
PATIENT_MS = 30_000
"""Instead of the deadlines of a leave, which a busy machine may miss."""
SLAVE = 3
"""The number of the slave; the members are 0 to 2."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (leave_member, leave_slave):
        monkeypatch.setattr(module, "AGREE_MS", PATIENT_MS)
    for name in ("HELD_MS_MAX", "UNVOTED_MS"):
        monkeypatch.setattr(leave_member, name, 2 * PATIENT_MS)


@define(eq=False)
class FollowedGroup:
    """Three members, a slave, a name server, and producers, in this loop. ``codes`` are those of
    the producers' answers.
    """

    root: Path
    scheduler: AsyncioScheduler
    blocks: list[PortBlock] = field(factory=list)
    brokers: dict[int, BrokerRuntime] = field(factory=dict)
    acknowledged: int = 0
    codes: set[int] = field(factory=set)
    _numbers: Iterator[int] = field(factory=itertools.count)
    _ended: bool = False
    _producers: list[asyncio.Task[None]] = field(factory=list)
    _client: RemotingClient = field(init=False)
    _namesrv: NamesrvProcess = field(init=False)
    server: str = ""

    async def start(self) -> None:
        self._client = RemotingClient(self.scheduler)
        self.blocks = [free_port_block(BROKER_PORT_COUNT) for _ in range(4)]
        self.blocks.append(free_port_block(4))
        ports = self.blocks[-1]
        settings = {"listenPort": str(ports[3]), "kvConfigPath": str(self.root / "kv.json")}
        loaded = load_namesrv_configuration(None, settings, {"HOME": str(self.root)})
        self._namesrv = NamesrvProcess(loaded.configuration, self.scheduler)
        await self._namesrv.start()
        self.server = f"127.0.0.1:{ports[3]}"
        peers = ";".join(f"n{each}-127.0.0.1:{ports[each]}" for each in range(3))
        for number in range(4):
            own = {
                "brokerName": "broker-a",
                "listenPort": str(self.blocks[number].broker_port),
                "brokerIP1": "127.0.0.1",
                "namesrvAddr": self.server,
                "storePathRootDir": str(self.store(number)),
                "mappedFileSizeCommitLog": "65536",
                "haFetchFromBeginning": "true",
                "maxWaitAckTimeMs": str(PATIENT_MS),
            }
            if number == SLAVE:
                own |= {"brokerRole": "SLAVE", "brokerId": "9"}
            else:
                own |= {
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": "broker-a",
                    "dLegerSelfId": f"n{number}",
                    "dLegerPeers": peers,
                    "haServeEntries": "true",
                    "minVoteIntervalMs": "50",
                    "maxVoteIntervalMs": "200",
                }
            text = "".join(f"{key}={value}\n" for key, value in own.items())
            self.conf(number).write_text(text)
        await asyncio.gather(*(self.start_broker(number) for number in range(3)))
        await until(lambda: any(not each.broker.identity.is_slave for each in self.members))
        await self.start_broker(SLAVE)
        await asyncio.gather(*(registered(each) for each in self.brokers.values()))
        await until(lambda: self.slave_info()["haState"].startswith("connected"))

    def conf(self, number: int) -> Path:
        return self.root / f"n{number}.conf"

    def store(self, number: int) -> Path:
        return self.root / f"store{number}"

    def journal(self, number: int) -> SwitchJournal:
        return leave_journal(OsFileSystem(), str(self.store(number)))

    def stage(self, number: int) -> SwitchStage | None:
        record = self.journal(number).read()
        return None if record is None else record.stage

    async def start_broker(self, number: int) -> None:
        path = self.conf(number)
        loaded = load_broker_configuration(path, {}, {"HOME": str(self.root)})
        writer = DeferredFileWriter(str(path), OsFileSystem(), self.scheduler)
        broker = BrokerRuntime(
            loaded.configuration, self.scheduler, settings_file=SettingsFile(writer, {})
        )
        await broker.start()
        self.brokers[number] = broker

    async def start_as_slave(self, number: int) -> None:
        """Start a former member as a slave of the new master, with an empty store."""
        lines = self.conf(number).read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("enableDLeger", "dLeger", "store"))]
        slave = f"brokerRole=SLAVE\nbrokerId=1\nstorePathRootDir={self.root / 'fresh'}\n"
        self.conf(number).write_text("".join(kept) + slave)
        await self.start_broker(number)

    def ends_like_the_master(self, number: int) -> bool:
        return self.brokers[number].store.log.max_offset == self.slave.store.log.max_offset

    async def stop_broker(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    @property
    def members(self) -> list[BrokerRuntime]:
        return [broker for number, broker in self.brokers.items() if number != SLAVE]

    @property
    def slave(self) -> BrokerRuntime:
        return self.brokers[SLAVE]

    @property
    def leader(self) -> BrokerRuntime:
        (found,) = [each for each in self.members if not each.broker.identity.is_slave]
        return found

    def slave_info(self) -> dict[str, str]:
        return self.slave.broker.replication.runtime_info()

    def load(self, address: str) -> None:
        for number in range(4):
            client = RemotingClient(self.scheduler)
            self._producers.append(asyncio.create_task(self._send(client, address, number)))

    async def _send(self, client: RemotingClient, address: str, queue: int) -> None:
        while not self._ended:
            request = send_request("T", queue, [b"%d" % next(self._numbers)], "KEYS\x01k")
            answer = await client.invoke(address, request, PATIENT_MS)
            self.codes.add(answer.code)
            self.acknowledged += answer.code == 0
        await client.close()

    async def sent(self, count: int) -> None:
        """Wait until ``count`` more messages are acknowledged."""
        count += self.acknowledged
        while self.acknowledged < count:
            for each in self._producers:
                if each.done():
                    each.result()
            await asyncio.sleep(0.005)

    async def stop_load(self) -> None:
        self._ended = True
        await asyncio.gather(*self._producers)

    async def read(self, address: str, queue: int, count: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            request = pull_request("T", queue, len(bodies))
            bodies += response_bodies(await self._client.invoke(address, request, PATIENT_MS))
        return bodies

    async def leave(self, *words: str) -> int:
        """Run ``rmqpy admin leave`` in a thread, beside the brokers in this loop."""
        given = ["-n", self.server, "-m", "broker-a", "-t", self.slave.address, *words]
        return await asyncio.to_thread(rmqpy, ["admin", "leave", *given])

    async def stop(self) -> None:
        for task in self._producers:
            task.cancel()
        await self._client.close()
        for broker in self.brokers.values():
            await broker.stop()
        await self._namesrv.stop()
        for block in self.blocks:
            block.release()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def in_group(root: Path, main: Callable[[FollowedGroup], Coroutine[Any, Any, None]]) -> None:
    async def whole(scheduler: AsyncioScheduler) -> None:
        group = FollowedGroup(root, scheduler)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await group.start()
                await main(group)
        finally:
            await group.stop()

    run(whole)


@pytest.mark.slow
def test_a_slave_takes_over_while_a_producer_sends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request fails, also of a producer that knows only the former leader. A former member
    refuses the next start.
    """

    async def main(group: FollowedGroup) -> None:
        former = group.leader
        group.load(former.address)
        await group.sent(200)
        assert await group.leave() == 0
        assert "nothing was changed" in capsys.readouterr().out
        assert group.slave.broker.identity.broker_id == 9
        assert await group.leave("--apply", "--postpone") == 0
        assert "prepared and postponed; --resume continues" in capsys.readouterr().out
        await group.sent(100)
        assert await group.leave("--apply", "--resume") == 1
        capsys.readouterr()
        assert await group.leave("--resume") == 0
        printed = capsys.readouterr().out
        assert f"{group.slave.address} is the master of broker-a" in printed
        await group.sent(200)
        assert group.slave.broker.identity.broker_id == 0
        assert group.slave_info()["leavePhase"] == "complete"
        assert await group.leave("--postpone") == 1
        assert "too late to postpone it" in capsys.readouterr().err
        assert all(each.broker.identity.is_slave for each in group.members)
        await group.stop_load()
        assert group.codes == {0}
        await until(lambda: group.stage(SLAVE) is SwitchStage.COMPLETE)
        assert [group.stage(each) for each in range(3)] == [SwitchStage.COMMITTED] * 3
        assert "brokerRole=ASYNC_MASTER" in group.conf(SLAVE).read_text()
        ends = group.slave.broker.store.reader
        count = ends.max_queue_offset("T", 0)
        relayed = await group.read(former.address, 0, count)
        assert relayed == await group.read(group.slave.address, 0, count)
        for number in range(3):
            await group.stop_broker(number)
            with pytest.raises(StoreError, match=f"{group.slave.address} is its master now"):
                await group.start_broker(number)
        await group.start_as_slave(0)
        await until(lambda: group.ends_like_the_master(0))
        await group.stop_broker(SLAVE)
        messages = [each for each in read_store(group.store(SLAVE)).messages if each.topic == "T"]
        assert len({each.body for each in messages}) == len(messages) == group.acknowledged

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_slave_that_stops_before_its_settings_are_written_is_the_master_after_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(group: FollowedGroup) -> None:
        group.load(group.leader.address)
        await group.sent(50)
        with monkeypatch.context() as context:
            context.setattr(completion, "SAVE_AFTER_MS", 1000 * DEADLINE_S)
            assert await group.leave("--apply") == 0
            await group.stop_load()
            address = group.slave.address
            await group.stop_broker(SLAVE)
        assert group.stage(SLAVE) is SwitchStage.COMMITTED
        assert "ASYNC_MASTER" not in group.conf(SLAVE).read_text()
        await group.start_broker(SLAVE)
        assert group.slave.address == address and not group.slave.broker.identity.is_slave
        await until(lambda: group.stage(SLAVE) is SwitchStage.COMPLETE)
        assert "brokerRole=ASYNC_MASTER" in group.conf(SLAVE).read_text()
        await group.stop_broker(SLAVE)
        assert len(read_store(group.store(SLAVE)).messages) >= group.acknowledged

    in_group(tmp_path, main)


@pytest.mark.slow
def test_without_every_vote_the_group_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member cannot record its vote: the other members remove theirs, and nothing has changed."""

    def fails(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        if record is not None and record.self_id == "n1":
            raise OSError("no vote")
        write(journal, record)

    write = SwitchJournal.write

    async def main(group: FollowedGroup) -> None:
        monkeypatch.setattr(SwitchJournal, "write", fails)
        leader = group.leader
        group.load(leader.address)
        await group.sent(100)
        assert await group.leave("--apply") == 2
        assert "the leave was aborted: n1: the vote could not be recorded" in (
            capsys.readouterr().out
        )
        await group.sent(100)
        await until(lambda: not any(map(group.stage, range(4))))
        await group.stop_load()
        assert group.codes == {0}
        assert group.leader is leader and group.slave.broker.identity.is_slave
        assert await group.leave("--status") == 2
        monkeypatch.setattr(SwitchJournal, "write", write)
        assert await group.leave("--apply") == 0

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_member_that_has_voted_takes_no_part_until_it_knows_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave ends before its decision is on the disk, and all brokers are started again."""

    def fails(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        if record is not None and record.stage is SwitchStage.COMMITTED:
            raise OSError("no decision")
        write(journal, record)

    write = SwitchJournal.write

    async def main(group: FollowedGroup) -> None:
        group.load(group.leader.address)
        await group.sent(100)
        with monkeypatch.context() as patch:
            patch.setattr(SwitchJournal, "write", fails)
            left = asyncio.create_task(group.leave("--apply"))
            await until(lambda: group.slave.store.health.failure is not None)
            assert [group.stage(each) for each in range(3)] == [SwitchStage.PREPARED] * 3
            await left
            for number in range(4):
                await group.stop_broker(number)
        before = group.acknowledged
        for number in range(3):
            await group.start_broker(number)
        assert [group.stage(each) for each in range(3)] == [SwitchStage.PREPARED] * 3
        assert all(each.broker.identity.is_slave for each in group.members)
        await group.start_broker(SLAVE)
        await until(lambda: any(not each.broker.identity.is_slave for each in group.members))
        await until(lambda: not any(map(group.stage, range(4))))
        assert group.acknowledged == before

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_group_leaves_without_a_member_that_is_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When it is started again it finds no majority, and accepts nothing."""

    async def main(group: FollowedGroup) -> None:
        leader = group.leader
        down = next(each for each in range(3) if group.brokers[each] is not leader)
        running = next(each for each in range(3) if each != down)
        group.load(leader.address)
        await group.sent(100)
        await group.stop_broker(down)
        assert await group.leave("--apply") == 1
        assert f"leave --without n{down}" in capsys.readouterr().err
        assert await group.leave("--apply", "--without", f"n{running}") == 1
        assert "expected a member that does not run" in capsys.readouterr().err
        assert await group.leave("--apply", "--without", f"n{down},n7") == 1
        assert "--without n7: expected one of" in capsys.readouterr().err
        assert await group.leave("--apply", "--without", f"n{down}") == 0
        await group.sent(100)
        await group.stop_load()
        assert group.codes == {0}
        await group.start_broker(down)
        await group.read(group.slave.address, 0, group.acknowledged // 8)
        late = group.brokers[down]
        assert late.broker.identity.is_slave and not late.store.health.writeable
        assert not group.slave.broker.identity.is_slave
        await group.stop_broker(SLAVE)
        messages = [each for each in read_store(group.store(SLAVE)).messages if each.topic == "T"]
        assert len({each.body for each in messages}) == len(messages) == group.acknowledged

    in_group(tmp_path, main)


@define(eq=False)
class Consumer:
    """A push consumer that knows one broker, as far as a leave concerns it."""

    client: RemotingClient
    address: str
    client_id: str

    async def invoke(self, request: RemotingCommand) -> RemotingCommand:
        return await self.client.invoke(self.address, request, PATIENT_MS)

    async def register(self) -> None:
        data = ConsumerData(
            group_name="readers",
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
        )
        heartbeat = HeartbeatData(client_id=self.client_id, consumer_data_set=[data])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=heartbeat.encode())
        assert (await self.invoke(request)).code == ResponseCode.SUCCESS

    async def pull(self, queue: int, offset: int) -> RemotingCommand:
        """Pull messages, or wait for them for longer than this test takes."""
        header = PullMessageRequestHeader(
            consumer_group="readers",
            topic="T",
            queue_id=queue,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=1000 * 2 * DEADLINE_S,
            subscription=None,
            sub_version=0,
            expression_type="TAG",
        )
        return await self.invoke(RemotingCommand.request(RequestCode.PULL_MESSAGE, header))

    async def group_members(self) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group="readers")
        request = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        found = GetConsumerListByGroupResponseBody.decode((await self.invoke(request)).body)
        return sorted(found.consumer_id_list)


@pytest.mark.slow
def test_consumers_of_the_former_leader_continue_at_once(tmp_path: Path) -> None:
    """Pulls that wait at the former leader receive what the new master stores. It knows both
    consumers as two, until each of them has registered there, and knows when one leaves.
    """

    async def main(group: FollowedGroup) -> None:
        clients = [RemotingClient(group.scheduler) for _ in range(3)]
        address = group.leader.address
        one, other = (Consumer(clients[each], address, f"c{each}") for each in range(2))
        assert (await one.invoke(send_request("T", 0, [b"first"]))).code == 0
        for each in (one, other):
            await each.register()
        pulls = [asyncio.create_task(one.pull(0, 1)), asyncio.create_task(other.pull(1, 0))]
        leader = group.leader.broker
        await until(lambda: leader.hold.count == 2)
        assert await group.leave("--apply") == 0
        await until(lambda: group.slave.broker.hold.count == 2)
        assert leader.hold.count == 0
        for queue in range(2):
            request = send_request("T", queue, [b"%d" % queue])
            answer = await clients[2].invoke(group.slave.address, request, PATIENT_MS)
            assert answer.code == 0
        assert [response_bodies(await each) for each in pulls] == [[b"0"], [b"1"]]
        assert await one.group_members() == ["c0", "c1"]
        one.address = group.slave.address
        await one.register()
        for each in (one, other):
            assert await each.group_members() == ["c0", "c1"]
        assert response_bodies(await one.pull(0, 1)) == [b"0"]
        await clients[1].close()
        readers = group.slave.broker.clients.consumer_group("readers")
        assert readers is not None
        await until(lambda: len(readers.members) == 1)
        assert await one.group_members() == ["c0"]
        for client in clients:
            await client.close()

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_slave_that_lags_catches_up_before_requests_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is frozen before the slave has what the leader had. What it copies can be limited."""

    async def main(group: FollowedGroup) -> None:
        parts, address = group.slave._parts, group.leader.address
        assert parts.group is not None
        group.load(address)
        await group.sent(100)
        assert await group.leave("--rate", "x") == 1
        assert "--rate x: expected MiB per second" in capsys.readouterr().err
        parts.group.role.lock("the slave lags")
        await group.sent(100)
        leaving = asyncio.create_task(group.leave("--apply", "--rate", "7"))
        await until(lambda: coordinator_of(group).waits_for == ["slave"])
        assert parts.group.rate.bytes_per_second == 7 << 20
        await group.sent(100)
        assert await group.leave("--rate", "9") == 0
        assert "the leave is preparing" in capsys.readouterr().out
        assert parts.group.rate.bytes_per_second == 9 << 20
        assert not leaving.done()
        parts.group.role.unlock()
        assert await leaving == 0
        assert parts.group.rate.bytes_per_second == 0
        await group.stop_load()
        assert group.codes == {0}

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_slow_preparation_of_a_level_slave_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine every preparation took longer than two seconds, and began again. What the
    leader has ages only after its last member has answered.
    """
    monkeypatch.setattr(leave_slave, "AGED_MS", 0)
    prepare, prepared = leave_member.LeavingMember._prepare, 0

    def watched(member: leave_member.LeavingMember, plan: SwitchPlan, self_id: str) -> None:
        nonlocal prepared
        prepared += 1
        assert prepared <= 3, "one preparation of each member"
        prepare(member, plan, self_id)

    monkeypatch.setattr(leave_member.LeavingMember, "_prepare", watched)

    async def main(group: FollowedGroup) -> None:
        leaving, slave = group.leader._parts.leaving, group.slave.broker.store
        group.load(group.leader.address)
        await group.sent(100)
        await group.stop_load()
        assert isinstance(leaving, leave_member.LeavingMember)
        stream = leaving._parts.stream
        assert stream is not None
        await until(lambda: slave.reader.max_queue_offset("T", 0) > 0 and stream.is_complete)
        log = slave.opened.classic
        assert log is not None
        await until(lambda: log.max_offset == log.flushed_offset == stream.end)
        await until(lambda: not slave.dispatcher.behind_bytes)
        assert await group.leave("--apply") == 0
        assert prepared == 3

    in_group(tmp_path, main)


def coordinator_of(group: FollowedGroup) -> LeaveCoordinator:
    leaving = group.slave._parts.leaving
    assert isinstance(leaving, leave_slave.LeavingSlave)
    return leaving._coordinator or LeaveCoordinator(PLAN)
