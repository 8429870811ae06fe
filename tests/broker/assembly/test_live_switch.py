"""Groups of brokers in one loop that become DLedger groups while a producer sends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.broker import response_bodies

from rmqpy.broker.assembly import process
from rmqpy.broker.assembly.member_modules import load_member_modules
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.broker.assembly.switch import live, local
from rmqpy.broker.assembly.switch.exchange import SwitchingBroker
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.replication.switch_protocol import SwitchPlan, SwitchRecord, SwitchStage
from rmqpy.config.loading import load_broker_configuration
from rmqpy.ha.frames import TransferReceiver, encode_report
from rmqpy.model.codes import RequestCode
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps, loads
from rmqpy.remoting.headers import FenceRequestHeader
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import pull_request, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.store_reader import read_store

DEADLINE_S = 120
PATIENT_MS = 30_000
"""Instead of the deadlines of a switch, which a busy machine may miss."""
FILE_SIZE = 65536
NAMES = ("n2", "n0", "n1")
"""The id of each broker in the group, the master's first: a slave keeps its brokerId."""


@define(eq=False)
class LiveGroup:
    """A master, its slaves, and a producer, in this loop. ``codes`` are those of its answers."""

    root: Path
    scheduler: AsyncioScheduler
    blocks: list[PortBlock] = field(factory=list)
    brokers: list[BrokerRuntime] = field(factory=list)
    acknowledged: int = 0
    codes: set[int] = field(factory=set)
    addresses: list[str] = field(factory=list)
    _numbers: Iterator[int] = field(factory=itertools.count)
    _ended: bool = False
    _producers: list[asyncio.Task[None]] = field(factory=list)
    _network: RemotingClient = field(init=False)

    async def start(self, count: int, **settings: str) -> None:
        self._network = RemotingClient(self.scheduler)
        for number in range(count):
            self.blocks += [free_port_block(BROKER_PORT_COUNT), free_port_block(1)]
            self._write_settings(number, settings)
            self.brokers.append(await self.start_broker(number))
            self.addresses.append(self.brokers[-1].address)

    def _write_settings(self, number: int, settings: Mapping[str, str]) -> None:
        own = {
            "brokerName": "broker-a",
            "brokerRole": "SLAVE" if number else "ASYNC_MASTER",
            "brokerId": str(number),
            "listenPort": str(self.blocks[2 * number].broker_port),
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(self.store(number)),
            "mappedFileSizeCommitLog": str(FILE_SIZE),
            "haFetchFromBeginning": "true",
            "syncFlushTimeout": str(PATIENT_MS),
            "maxWaitAckTimeMs": str(PATIENT_MS),
            **settings,
        }
        if number:
            own["haMasterAddress"] = f"127.0.0.1:{self.blocks[0].broker_port + 1}"
        text = "".join(f"{key}={value}\n" for key, value in own.items())
        (self.root / f"n{number}.conf").write_text(text)

    def store(self, number: int) -> Path:
        return self.root / f"store{number}"

    async def start_broker(self, number: int) -> BrokerRuntime:
        path = self.root / f"n{number}.conf"
        loaded = load_broker_configuration(path, {}, {"HOME": str(self.root)})
        writer = DeferredFileWriter(str(path), OsFileSystem(), self.scheduler)
        broker = BrokerRuntime(
            loaded.configuration, self.scheduler, settings_file=SettingsFile(writer, {})
        )
        await broker.start()
        return broker

    async def level(self) -> None:
        """Wait until every slave has what its master has."""
        logs = [each.store.log for each in self.brokers]
        await until(lambda: len({each.max_offset for each in logs}) == 1)

    # The producer

    def load(self, to: int = 0) -> None:
        """Send to a member from four connections."""
        for number in range(4):
            client = RemotingClient(self.scheduler)
            self._producers.append(
                asyncio.create_task(self._send(client, self.addresses[to], number))
            )

    async def _send(self, client: RemotingClient, address: str, number: int) -> None:
        while not self._ended:
            body = b"%d" % next(self._numbers)
            request = send_request("T", number, [body], "KEYS\x01k")
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
        self._producers.clear()

    # The switch

    def plan(self, switch: str = "s1") -> dict[str, Any]:
        names = NAMES[: len(self.brokers)] if len(self.brokers) > 1 else ("n0",)
        ports = {name: self.blocks[2 * each + 1][0] for each, name in enumerate(names)}
        return {
            "switch": switch,
            "group": "broker-a",
            "coordinator": names[0],
            "peers": ";".join(f"{name}-127.0.0.1:{ports[name]}" for name in sorted(ports)),
            "brokers": {name: address for name, address in zip(names, self.addresses, strict=True)},
        }

    async def ask(self, number: int, step: str, **more: object) -> RemotingCommand:
        body = dumps({"step": step, **more})
        return await self.call(number, RemotingCommand.request(RequestCode.RMQPY_SWITCH, body=body))

    async def call(self, number: int, request: RemotingCommand) -> RemotingCommand:
        return await self._network.invoke(self.addresses[number], request, PATIENT_MS)

    async def change_role(self, number: int, role: str, master: int) -> RemotingCommand:
        """Make a broker, with the log that it has, the master or a slave of ``master``."""
        request = RemotingCommand.request(RequestCode.RMQPY_CHANGE_ROLE)
        host, _, port = self.addresses[master].rpartition(":")
        request.ext_fields |= {
            "role": role,
            "end": str(self.brokers[number].store.log.max_offset),
            "brokerId": str(number + 1),
            "masterAddr": self.addresses[master],
            "haServerAddr": f"{host}:{int(port) + 1}",
        }
        return await self.call(number, request)

    async def fence(self, number: int) -> None:
        request = RemotingCommand.request(RequestCode.RMQPY_FENCE, FenceRequestHeader(seconds=60))
        answer = await self.call(number, request)
        assert answer.code == 0, answer.remark

    def forget_failures(self) -> None:
        """End the producers, whose last requests a broken master cannot answer."""
        for task in self._producers:
            task.cancel()
        self._producers.clear()

    async def switch(self) -> dict[str, Any]:
        """Switch, and return the status at the end."""
        plan = self.plan()
        answer = await self.ask(0, "start", plan=plan, member=plan["coordinator"])
        assert answer.code == 0, answer.remark
        while True:
            value = await self.status()
            if value["pause_ms"] is not None and value["phase"] != "committed":
                return value
            await asyncio.sleep(0.005)

    async def status(self) -> dict[str, Any]:
        value = loads((await self.ask(0, "status")).body)
        assert isinstance(value, dict)
        return value

    async def reaches(self, phase: str) -> dict[str, Any]:
        """Wait for a phase, and return the status."""
        while (value := await self.status())["phase"] != phase:
            await asyncio.sleep(0.005)
        return value

    async def stop(self) -> None:
        self._ended = True
        for task in self._producers:
            task.cancel()
        await self._network.close()
        for broker in self.brokers:
            await broker.stop()
        for block in self.blocks:
            block.release()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AGREE_MS", PATIENT_MS)
    monkeypatch.setattr(local, "HELD_MS_MAX", PATIENT_MS)


def in_group(root: Path, main: Callable[[LiveGroup], Coroutine[Any, Any, None]]) -> None:
    async def whole(scheduler: AsyncioScheduler) -> None:
        group = LiveGroup(root, scheduler)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await main(group)
        finally:
            await group.stop()

    run(whole)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def check_nothing_is_lost(group: LiveGroup) -> None:
    """Stop everything; each store contains what was acknowledged, once."""
    await group.stop_load()
    await group.level()
    assert group.codes == {0}
    for broker in group.brokers:
        await broker.stop()
    for number in range(len(group.brokers)):
        reading = read_store(group.store(number))
        bodies = [message.body for message in reading.messages if message.topic == "T"]
        assert len(bodies) == len(set(bodies)) == group.acknowledged


def settings_of(group: LiveGroup) -> list[str]:
    return [(group.root / f"n{each}.conf").read_text() for each in range(len(group.brokers))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "flush"), [(1, "SYNC_FLUSH"), (2, "ASYNC_FLUSH"), (3, "SYNC_FLUSH")]
)
def test_a_group_switches_while_a_producer_sends(tmp_path: Path, count: int, flush: str) -> None:
    async def main(group: LiveGroup) -> None:
        await group.start(count, flushDiskType=flush)
        group.load()
        await group.sent(300)
        ids = [each.broker.identity.broker_id for each in group.brokers]
        tables = [group.store(each) / "config" for each in range(count)]
        for each in tables:  # as in a group whose topics have never changed
            for path in each.glob("topics.json*"):
                path.unlink()
        status = await group.switch()
        assert all((each / "topics.json").exists() for each in tables)
        assert not group.brokers[0].broker.identity.is_slave, "the former master leads"
        assert (status["phase"], status["reason"]) == ("complete", "")
        print(f"messages waited for {status['pause_ms']} ms")
        await group.sent(300)
        assert [each.broker.identity.broker_id for each in group.brokers] == ids
        joined = "enableDLegerCommitLog=true\n"
        await until(lambda: all(joined in text for text in settings_of(group)))
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_readers_keep_queues_polls_and_delayed_messages(tmp_path: Path) -> None:
    async def main(group: LiveGroup) -> None:
        await group.start(2, messageDelayLevel="1s 2s")
        master = group.brokers[0]
        client = RemotingClient(group.scheduler)

        async def call(request: RemotingCommand) -> RemotingCommand:
            return await client.invoke(master.address, request, PATIENT_MS)

        assert (await call(send_request("T", 0, [b"old"], "KEYS\x01k"))).code == 0
        late = send_request("T", 0, [b"late"], "DELAY\x012\x02KEYS\x01k")
        assert (await call(late)).code == 0
        pull = pull_request("T", 0, 1)
        pull.ext_fields |= {"sysFlag": "6", "suspendTimeoutMillis": str(PATIENT_MS)}
        polled = asyncio.create_task(call(pull))
        await until(lambda: master.broker.hold.count > 0)
        status = await group.switch()
        assert status["phase"] == "complete", status
        answer = await call(send_request("T", 0, [b"new"], "KEYS\x01k"))
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
        assert response_bodies(await polled) == [b"new"]
        await until(lambda: master.store.reader.max_queue_offset("T", 0) == 3)
        found = await call(pull_request("T", 0, 0))
        assert response_bodies(found) == [b"old", b"new", b"late"]
        await client.close()
        # The same after a restart.
        for number, broker in enumerate(group.brokers):
            await broker.stop()
            group.brokers[number] = await group.start_broker(number)
        stores = [each.store for each in group.brokers]
        await until(lambda: all(s.reader.max_queue_offset("T", 0) == 3 for s in stores))
        assert len({store.opened.divided_offset for store in stores}) == 1

    in_group(tmp_path, main)


@pytest.mark.slow
def test_classic_slaves_can_follow_after_a_switch(tmp_path: Path) -> None:
    """The port for slaves stays; what it serves continues at the divide."""

    async def main(group: LiveGroup) -> None:
        await group.start(1, haServeEntries="true")
        broker = group.brokers[0]
        group.load()
        await group.sent(50)
        assert (await group.switch())["phase"] == "complete"
        divided = broker.store.opened.divided_offset
        assert divided is not None
        host, port = broker.broker.identity.ha_address.split(":")
        end = divided - 1
        while end < divided + 1000:  # The port is opened after the switch.
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(encode_report(end))
                receiver = TransferReceiver()
                while end < divided + 1000 and (data := await reader.read(4096)):
                    for transfer in receiver.receive(data):
                        assert transfer.offset == end
                        end = transfer.end
                writer.close()
            await asyncio.sleep(0.01)
        await group.stop_load()

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_switch_without_agreement_leaves_the_classic_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = SwitchingBroker.is_quiet

    async def main(group: LiveGroup) -> None:
        await group.start(3)
        group.load()
        await group.sent(100)
        slave = group.brokers[2].broker
        with monkeypatch.context() as patch:
            patch.setattr(live, "AGREE_MS", 100)
            patch.setattr(
                SwitchingBroker, "is_quiet", lambda self: self.broker is not slave and quiet(self)
            )
            status = await group.switch()
        assert status["phase"] == "aborted" and "100 ms" in status["reason"], status
        await group.sent(100)
        assert not any((group.store(each) / "rmqpy" / "switch.json").exists() for each in range(3))
        assert not any(list(group.store(each).glob("dledger-*")) for each in range(3))
        await group.level()  # The slaves follow again.
        status = await group.switch()
        assert status["phase"] == "complete", status
        await group.sent(100)
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_switch_is_throttled_postponed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PIECE_BYTES", FILE_SIZE)

    async def main(group: LiveGroup) -> None:
        async def value(number: int, step: str, **more: object) -> dict[str, Any]:
            answer = await group.ask(number, step, **more)
            assert answer.code == 0, answer.remark
            found = loads(answer.body)
            assert isinstance(found, dict)
            return found

        async def until_phase(phase: str) -> dict[str, Any]:
            while (found := await value(0, "status"))["phase"] != phase:
                await asyncio.sleep(0.005)
            return found

        await group.start(2, mappedFileSizeCommitLog=str(8 * FILE_SIZE))
        group.load()
        while group.brokers[0].store.log.max_offset < 3 * FILE_SIZE:
            await group.sent(50)
        assert (await value(1, "throttle", rate=1))["throttle_bytes"] == 1
        plan = group.plan()
        await value(0, "start", plan=plan, member="n2", postpone=True)
        while not (await value(1, "status"))["unread_bytes"]:
            await asyncio.sleep(0.005)
        while (await until_phase("preparing"))["waits_for"] != ["n0"]:
            await asyncio.sleep(0.005)
        await value(1, "throttle", rate=0)
        found = await until_phase("ready")
        assert found["postponed"] and found["pause_ms"] is None
        await group.sent(100)
        assert (await value(0, "resume"))["phase"] == "preparing"
        assert (await until_phase("complete"))["reason"] == ""
        answer = await group.ask(0, "postpone")
        assert answer.code == 1 and "too late" in (answer.remark or "")
        answer = await group.ask(0, "throttle", rate="fast")
        assert answer.code == 1 and "expected a rate" in (answer.remark or "")
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_nothing_is_held_before_the_log_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first flush after a start may take as long as the log is large."""
    held: list[int] = []
    freeze = local.LocalSwitch.freeze

    def watched(switch: local.LocalSwitch, drained: Callable[[], None]) -> None:
        log = switch._deps.running.store.opened.classic
        assert log is not None
        held.append(log.flushed_offset)
        freeze(switch, drained)

    monkeypatch.setattr(local.LocalSwitch, "freeze", watched)

    async def main(group: LiveGroup) -> None:
        await group.start(1, flushDiskType="ASYNC_FLUSH", flushIntervalCommitLog="600000")
        group.load()
        await group.sent(100)
        await group.stop_load()
        end = group.brokers[0].store.log.max_offset
        assert (await group.switch())["phase"] == "complete"
        assert held == [end]

    in_group(tmp_path, main)


@pytest.mark.slow
def test_nobody_repeats_the_decision_while_a_slave_exchanges_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that finished something first was asked again after 250 ms; requests waited.
    No flush of the queues begins meanwhile.
    """
    is_quiet, answer = SwitchingBroker.is_quiet, live.LiveSwitch._answer_master
    commits = 0
    looks: Counter[int] = Counter()
    held: set[bool] = set()

    def busy_slave(running: SwitchingBroker) -> bool:
        if commits and running.broker.identity.is_slave and running.store.opened.dledger is None:
            held.add(running.broker.queue_flusher.held)
            looks[id(running)] += 1
            if looks[id(running)] < 30:
                return False
        return is_quiet(running)

    def counted(switch: live.LiveSwitch, step: object, *rest: Any) -> Any:
        nonlocal commits
        commits += step == "commit"
        return answer(switch, step, *rest)

    monkeypatch.setattr(SwitchingBroker, "is_quiet", busy_slave)
    monkeypatch.setattr(live.LiveSwitch, "_answer_master", counted)

    async def main(group: LiveGroup) -> None:
        await group.start(3)
        group.load()
        await group.sent(100)
        assert (await group.switch())["phase"] == "complete"
        assert commits == 2 and held == {True}
        assert not any(each.broker.queue_flusher.held for each in group.brokers)
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_no_other_switch_begins_before_the_decided_one_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It undid what the first one had prepared, while the slaves exchanged their logs."""
    exchange = SwitchingBroker.exchange
    full = True

    def fails(running: SwitchingBroker, *rest: Any) -> None:
        if full and not running.broker.identity.is_slave:
            raise OSError(errno.ENOSPC, "no space left on device")
        exchange(running, *rest)

    monkeypatch.setattr(SwitchingBroker, "exchange", fails)

    async def main(group: LiveGroup) -> None:
        nonlocal full
        await group.start(3)
        group.load()
        await group.sent(100)
        switching = asyncio.create_task(group.switch())
        slaves = group.brokers[1:]
        await until(lambda: all(each.store.opened.dledger is not None for each in slaves))
        for number, member in enumerate(group.plan()["brokers"]):
            answer = await group.ask(number, "check", plan=group.plan("s2"), member=member)
            assert (live.DECIDED.encode() in answer.body) == (number == 0)
        answer = await group.ask(0, "start", plan=group.plan("s2"), member="n2")
        assert answer.code != 0 and live.DECIDED in (answer.remark or "")
        full = False
        assert (await switching)["phase"] == "complete"
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
@pytest.mark.parametrize("demoted", [True, False], ids=["promoted", "promoted without the master"])
def test_a_promotion_while_members_prepare_aborts_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demoted: bool
) -> None:
    """As long as nobody sent to the new master, it voted for the switch of its former one."""
    prepare = local.LocalSwitch.prepare
    preparing: list[Callable[[], None]] = []

    def waits(
        switch: local.LocalSwitch, plan: SwitchPlan, self_id: str, done: Callable[[str], None]
    ) -> None:
        wait = self_id == "n1"
        end = (lambda reason: preparing.append(lambda: done(reason))) if wait else done
        prepare(switch, plan, self_id, end)

    monkeypatch.setattr(local.LocalSwitch, "prepare", waits)

    async def main(group: LiveGroup) -> None:
        await group.start(3)
        group.load()
        await group.sent(100)
        await group.stop_load()
        await group.level()
        answer = await group.ask(0, "start", plan=group.plan(), member="n2")
        assert answer.code == 0, answer.remark
        while not preparing or (await group.status())["waits_for"] != ["n1"]:
            await asyncio.sleep(0.005)
        if demoted:
            await group.fence(0)
            answer = await group.change_role(0, "SLAVE", 1)
            assert answer.code == 0, answer.remark
        answer = await group.change_role(1, "ASYNC_MASTER", 1)
        assert answer.code == 0, answer.remark
        preparing[0]()
        became = "n2: this broker has become a slave" if demoted else "n0: this broker has become"
        assert became in (await group.reaches("aborted"))["reason"]
        assert not any(each.store.opened.dledger for each in group.brokers)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_no_role_changes_between_the_freeze_and_the_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that an administrator had fenced before the freeze could become a slave."""
    quiet = SwitchingBroker.is_quiet
    asked = False

    def slow_slaves(running: SwitchingBroker) -> bool:
        return quiet(running) and (asked or not running.broker.identity.is_slave)

    monkeypatch.setattr(SwitchingBroker, "is_quiet", slow_slaves)

    async def main(group: LiveGroup) -> None:
        nonlocal asked
        await group.start(3)
        group.load()
        await group.sent(100)
        await group.stop_load()
        await group.level()
        answer = await group.ask(0, "start", plan=group.plan(), member="n2", postpone=True)
        assert answer.code == 0, answer.remark
        await group.reaches("ready")
        await group.fence(0)
        await group.ask(0, "resume")
        await group.reaches("voting")
        answer = await group.change_role(0, "SLAVE", 1)
        assert answer.code != 0 and live.IN_PROGRESS in (answer.remark or "")
        asked = True
        await group.reaches("complete")
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_slave_that_is_gone_aborts_before_anything_waits(tmp_path: Path) -> None:
    async def main(group: LiveGroup) -> None:
        await group.start(2)
        group.load()
        await group.sent(100)
        await group.brokers[1].stop()
        status = await group.switch()
        assert status["phase"] == "aborted" and status["pause_ms"] == 0, status
        assert status["reason"].startswith("n0: "), status
        await group.sent(100)
        group.brokers[1] = await group.start_broker(1)
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
@pytest.mark.parametrize("decided", [False, True])
def test_members_in_doubt_ask_the_master_when_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """The master ends when it records the decision: before or after the record is on the disk."""
    write = SwitchJournal.write

    def fails(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        master = record is not None and record.self_id == "n2"
        if not master or decided:
            write(journal, record)
        if master:
            raise OSError(errno.EIO, "the disk is gone")

    async def main(group: LiveGroup) -> None:
        await group.start(3)
        group.load()
        await group.sent(100)
        with monkeypatch.context() as patch:
            patch.setattr(SwitchJournal, "write", fails)
            plan = group.plan()
            answer = await group.ask(0, "start", plan=plan, member="n2")
            assert answer.code == 0, answer.remark
            master = group.brokers[0]
            await until(lambda: master.store.health.failure is not None)
            answer = await group.ask(0, "outcome", switch="s1")
            assert loads(answer.body) == {"outcome": "undecided"}
            group.forget_failures()
            await master.stop()
        for number in (1, 2):
            record = SwitchJournal(OsFileSystem(), str(group.store(number))).read()
            assert record is not None and record.stage is SwitchStage.PREPARED
        # A slave in doubt stays one, and after a restart, too.
        await group.brokers[2].stop()
        group.brokers[2] = await group.start_broker(2)
        for number in (1, 2):
            role = RemotingCommand.request(RequestCode.RMQPY_CHANGE_ROLE)
            end = group.brokers[number].store.log.max_offset
            role.ext_fields |= {"role": "ASYNC_MASTER", "end": str(end)}
            answer = await group.call(number, role)
            assert answer.code == 1 and "undecided" in (answer.remark or ""), answer
        group.brokers[0] = await group.start_broker(0)
        stores = [each.store for each in group.brokers]
        if decided:
            await until(lambda: all(store.opened.dledger is not None for store in stores))
        journals = [SwitchJournal(OsFileSystem(), str(group.store(each))) for each in range(3)]
        stage = SwitchStage.COMPLETE if decided else None
        await until(lambda: all(stage_of(each) is stage for each in journals))
        # After a restart, any member may be elected.
        await until(lambda: any(store.appender.is_ready() for store in stores))
        group.load(next(each for each, store in enumerate(stores) if store.appender.is_ready()))
        await group.sent(100)
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


@pytest.mark.slow
def test_a_decision_may_arrive_before_a_restarted_slave_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, load = SwitchJournal.write, load_member_modules
    gate = threading.Event()

    def fails(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        if record is not None and (record.self_id, record.stage) == ("n1", SwitchStage.COMMITTED):
            raise OSError(errno.ENOSPC, "no space left")
        write(journal, record)

    def waits(before: int) -> None:
        gate.wait(DEADLINE_S)
        load(before)

    async def main(group: LiveGroup) -> None:
        await group.start(3)
        group.load()
        await group.sent(100)
        journals = [SwitchJournal(OsFileSystem(), str(group.store(each))) for each in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(SwitchJournal, "write", fails)
            plan = group.plan()
            answer = await group.ask(0, "start", plan=plan, member="n2")
            assert answer.code == 0, answer.remark
            await until(lambda: stage_of(journals[0]) is SwitchStage.COMPLETE)
            assert stage_of(journals[2]) is SwitchStage.PREPARED
            await group.brokers[2].stop()
        monkeypatch.setattr(process, "load_member_modules", waits)
        group.brokers[2] = await group.start_broker(2)
        await until(lambda: stage_of(journals[2]) is SwitchStage.COMMITTED)
        assert group.brokers[2].store.opened.dledger is None
        gate.set()
        await until(lambda: all(stage_of(each) is SwitchStage.COMPLETE for each in journals))
        await group.sent(100)
        await check_nothing_is_lost(group)

    in_group(tmp_path, main)


def stage_of(journal: SwitchJournal) -> SwitchStage | None:
    record = journal.read()
    return None if record is None else record.stage


@pytest.mark.slow
def test_what_prevents_a_switch_is_reported(tmp_path: Path) -> None:
    async def main(group: LiveGroup) -> None:
        await group.start(2)
        plan = group.plan()

        async def problems(number: int, member: str, **changed: object) -> str:
            answer = await group.ask(number, "check", plan={**plan, **changed}, member=member)
            assert answer.code == 0, answer.remark
            found = loads(answer.body)
            assert isinstance(found, dict)
            return "; ".join(found["problems"])

        assert "the log is empty" in await problems(0, "n2")
        assert await problems(1, "n0") == ""
        assert "found SLAVE, expected a master" in await problems(1, "n2")
        assert "expected other" in await problems(1, "n0", group="other")
        peers = plan["peers"]
        assert "is no address of this host" in await problems(
            1, "n0", peers=peers.replace("127.0.0.1", "192.0.2.1")
        )
        assert "id-host:port" in await problems(1, "n0", peers="n0:127.0.0.1")
        assert "expected the members" in await problems(1, "n0", peers="n0-127.0.0.1:1")
        group.brokers[1].broker.identity.note_diverged("the two logs diverge")
        assert await problems(1, "n0") == "the two logs diverge"
        answer = await group.ask(0, "start", plan=plan, member="n2")
        assert answer.code == 1 and "the log is empty" in (answer.remark or "")
        for body in (b"", b"[]", b'{"step":"start"}', b'{"step":"vote","switch":"x"}', b"{}"):
            request = RemotingCommand.request(RequestCode.RMQPY_SWITCH, body=body)
            assert (await group.call(0, request)).code == 1

    in_group(tmp_path, main)
