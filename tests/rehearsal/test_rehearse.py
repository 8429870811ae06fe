"""A rehearsal beside brokers in this process: it copies everything, and acknowledges nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define, evolve, field

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.cli import main
from rmqpy.client import Message, Producer
from rmqpy.client.core.instance import ClientSettings
from rmqpy.ha.frames import TransferFrame
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.rehearsal.copying import Copier, CopyStatus
from rmqpy.rehearsal.machine import Machine
from rmqpy.rehearsal.report import CheckedCopy
from rmqpy.rehearsal.session import RehearsalPlan, Session, opened, rehearse
from rmqpy.rehearsal.walk import BACK, LOST_LEADER, TO_DLEDGER, WalkResult
from rmqpy.store.commitlog.interface import read_span
from rmqpy.testing.in_process import broker_in_process, name_server_in_process, registered
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

DEADLINE_S = 240
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
LOOK_S = 0.02


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole(_: AsyncioScheduler) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await body()

    run(whole)


@define
class LiveGroup:
    """A name server and a master, and the directory of a rehearsal."""

    folder: Path
    name_server: str
    master: BrokerRuntime
    looks: list[CopyStatus] = field(factory=list)
    at_look: Callable[[], None] = lambda: None

    async def send(self, count: int, size: int = 200) -> set[str]:
        """Send messages and return the statuses of the answers."""
        async with Producer("P", self.name_server) as producer:
            sent = []
            for number in range(count):
                body = Random(number).randbytes(size)  # which compression does not make smaller
                sent.append(
                    await producer.send(Message(topic="TBW102", body=body, keys=f"k{number}"))
                )
        return {each.status.name for each in sent}

    def plan(self, name: str = "a", rate: float = 0) -> RehearsalPlan:
        return RehearsalPlan(
            client=ClientSettings(name_servers=self.name_server),
            broker_name=name,
            folder=str(self.folder),
            bytes_per_second=rate,
            look_s=LOOK_S,
        )

    async def rehearse(self, name: str = "a", rate: float = 0) -> CheckedCopy:
        def show(status: CopyStatus) -> None:
            self.looks.append(status)
            self.at_look()

        plan = self.plan(name, rate)
        async with opened(plan, AsyncioScheduler()) as session:
            return await session.copy(show)

    def assert_copied(self, result: CheckedCopy) -> None:
        log = self.master.store.log
        files = sorted((self.folder / "shadow/store/commitlog").iterdir())
        copied = b"".join(file.read_bytes() for file in files)
        assert int(files[0].name) == result.begin == log.min_offset
        assert copied[: result.end - result.begin] == read_span(log, result.begin, result.end)


@asynccontextmanager
async def live_group(root: Path, **settings: str) -> AsyncIterator[LiveGroup]:
    async with (
        name_server_in_process(root) as name_server,
        broker_in_process(root / "master", name_server, settings) as master,
    ):
        await registered(master)
        yield LiveGroup(root / "rehearsal", name_server, master)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_everything_is_copied_and_checked_and_a_second_run_adds_what_is_new(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with live_group(tmp_path, brokerRole="ASYNC_MASTER") as group:
            await group.send(40, 50_000)
            result = await group.rehearse()
            assert result.summary.is_ready, list(result.summary.lines(details=True))
            assert result.end == group.master.store.log.max_offset > 1 << 20
            group.assert_copied(result)
            config = group.folder / "shadow/store/config"
            assert "TBW102" in json.loads((config / "topics.json").read_text())["topicConfigTable"]
            await group.send(3)
            again = await group.rehearse()
            assert again.end == group.master.store.log.max_offset > result.end
            group.assert_copied(again)
            status = json.loads((group.folder / "status.json").read_text())
            assert (status["state"], status["end"]) == ("copying", again.end)
            assert group.master.broker.replication.runtime_info()["haSlaveCount"] == "0"

    in_loop(body)


@pytest.mark.slow
def test_a_copy_ends_with_a_whole_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that is being written to sends pieces which end within a message."""
    reach, store = Copier._reach, Copier.store

    async def reaches_less(copier: Copier, goal: int) -> None:
        await reach(copier, goal - 20)

    def stores_later(copier: Copier, transfer: TransferFrame) -> None:
        if len(transfer.body) <= 10:
            store(copier, transfer)
            return
        whole = bytes(transfer.body)
        store(copier, TransferFrame(transfer.offset, whole[:-10]))
        rest = TransferFrame(PhysicalOffset(transfer.offset + len(whole) - 10), whole[-10:])
        asyncio.get_running_loop().call_later(2 * LOOK_S, store, copier, rest)

    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(30)
            monkeypatch.setattr(Copier, "_reach", reaches_less)
            monkeypatch.setattr(Copier, "store", stores_later)
            result = await group.rehearse()
            assert result.summary.is_ready, list(result.summary.lines(details=False))
            assert result.end == group.master.store.log.max_offset
            group.assert_copied(result)

    in_loop(body)


@pytest.mark.slow
def test_an_observer_of_a_sync_master_acknowledges_nothing(tmp_path: Path) -> None:
    """It is on the host of the slave, so that this master counts its reports."""

    async def body() -> None:
        async with (
            live_group(tmp_path, brokerRole="SYNC_MASTER") as group,
            broker_in_process(tmp_path / "slave", group.name_server, SLAVE) as slave,
        ):
            slave.broker.registration.register()
            ha = group.master.broker.replication
            await until(lambda: ha.runtime_info()["haSlaveCount"] == "1")
            assert await group.send(20, 50_000) == {"SEND_OK"}
            reported: set[int] = set()
            group.at_look = lambda: reported.update(_acknowledged(group.master))
            result = await group.rehearse(rate=2 << 20)
            group.assert_copied(result)
            end = group.master.store.log.max_offset
            assert reported == {1, end}, "the request of the first byte, and the slave"

    in_loop(body)


def _acknowledged(master: BrokerRuntime) -> set[int]:
    parts = master._parts.group
    assert parts is not None
    return {view.acknowledged for view in parts.server.slaves}


@pytest.mark.slow
def test_a_sync_master_without_a_slave_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with live_group(tmp_path, brokerRole="SYNC_MASTER") as group:
            await group.send(1)
            with pytest.raises(UpgradeRefusedError, match="SYNC_MASTER that no slave follows"):
                await group.rehearse()
            assert not group.folder.exists()
            assert await group.send(1) == {"SLAVE_NOT_AVAILABLE"}

    in_loop(body)


@pytest.mark.slow
def test_names_and_directories_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(1)
            with pytest.raises(UpgradeRefusedError, match="found a at the name server, expected"):
                await group.rehearse("b")
            group.folder.mkdir()
            (group.folder / "letters.txt").touch()
            with pytest.raises(UpgradeRefusedError, match="files that are no rehearsal"):
                await group.rehearse()
            (group.folder / "letters.txt").unlink()
            (group.folder / "rehearsal.json").write_text('{"format": 1, "brokerName": "b"}')
            with pytest.raises(UpgradeRefusedError, match="found the rehearsal of 'b'"):
                await group.rehearse()

    in_loop(body)


@pytest.mark.slow
def test_a_master_with_another_history_is_refused(tmp_path: Path) -> None:
    """The copy was made of a group that was created again since, with more or fewer messages."""

    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(30)
            await group.rehearse()
        for count, found in ((40, "other bytes at offset"), (3, "a copy that ends at")):
            async with live_group(tmp_path / str(count)) as group:
                group.folder = tmp_path / "rehearsal"
                await group.send(count)
                with pytest.raises(RmqError, match=found):
                    await group.rehearse()

    in_loop(body)


@pytest.mark.slow
def test_a_refusal_ends_with_2_and_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            words = ["rehearse", "-n", group.name_server, "-b", "b", "--dir", str(group.folder)]
            assert await asyncio.to_thread(main, [*words, "--format", "json"]) == 2
            refused = json.loads(capsys.readouterr().out)
            assert (refused["found"], refused["exit_code"]) == ("a at the name server", 2)

    in_loop(body)


@pytest.mark.crash
def test_the_whole_way_on_the_copy_loses_nothing_and_changes_nothing_of_the_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(60, 50_000)
            words = ["rehearse", "-n", group.name_server, "-b", "a", "--dir", str(group.folder)]
            assert await asyncio.to_thread(main, [*words, "--format", "json"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert report["ready"] and report["walk"]["lost"] == 0 < report["walk"]["acknowledged"]
            assert [each.split(":")[0] for each in report["walk"]["verdicts"]] == [
                "after the switch",
                "after the way back",
            ]
            assert set(report["walk"]["pauses"]) == {TO_DLEDGER, LOST_LEADER, BACK}
            assert report["runbook"][-1] == "# rmqpy upgrade finalize"
            certificate = Certificate.decode((group.folder / "certificate.json").read_bytes())
            assert certificate.holds and len(certificate.subjects) == 4
            assert not (group.folder / "walk").exists()
            files = sorted((group.folder / "shadow/store/commitlog").iterdir())
            assert len(files) == 3
            copied = b"".join(file.read_bytes() for file in files)[: report["end"]]
            assert copied == read_span(group.master.store.log, 0, report["end"])
            # The copy can be continued, and walked on again.
            await group.send(3)
            assert (await group.rehearse()).summary.is_ready

    in_loop(body)


class SkewedScheduler(AsyncioScheduler):
    """A scheduler whose clocks a test can set forward."""

    skew_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.skew_ms


@define
class NoWalk:
    """A walk that succeeds without walking: the test of the whole way does."""

    folder: Path

    async def run(self) -> WalkResult:
        (self.folder / "walk").mkdir()
        (self.folder / "walk/certificate.json").touch()
        return WalkResult(
            steps=(), pauses={}, verdicts=(), acknowledged=0, lost=0, per_second=1, reasons=()
        )


@pytest.mark.slow
def test_a_kept_rehearsal_follows_the_group_and_is_repeated_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(3)
            scheduler = SkewedScheduler()
            looks: list[CopyStatus] = []

            async def walk(session: Session, _say: object) -> NoWalk:
                return NoWalk(Path(session.workspace.folder))

            monkeypatch.setattr(Session, "walk", walk)
            monkeypatch.setattr("rmqpy.rehearsal.session.measure", lambda *_: Machine(1.0, 1.0))

            def look(status: CopyStatus) -> None:
                looks.append(status)
                copied = status.proof_age_s is not None and status.lag == 0
                if copied and status.end > first.copied.end:
                    scheduler.skew_ms = 86_400_000

            reports = rehearse(evolve(group.plan(), again_s=86_400), scheduler, look, print)
            async with aclosing(reports):
                first = await anext(reports)
                assert first.is_ready and all(each.proof_age_s is None for each in looks)
                await group.send(3)
                second = await anext(reports)
            assert second.copied.end == group.master.store.log.max_offset > first.copied.end
            assert second.verified_ms - first.verified_ms >= 86_400_000
            ages = [each.proof_age_s for each in looks if each.proof_age_s is not None]
            assert ages and max(ages) < 2 * 86_400
            report = json.loads((group.folder / "report.json").read_text())
            assert (report["ready"], report["end"]) == (True, second.copied.end)

    in_loop(body)


@pytest.mark.slow
def test_a_master_that_comes_back_at_another_address_is_followed_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(3)
            plan = evolve(group.plan(), again_s=86_400)
            async with opened(plan, AsyncioScheduler()) as session:
                await session.copy(group.looks.append)
                before = group.looks[-1].end
                following = asyncio.create_task(session.follow(group.looks.append, due_ms=1 << 62))
                await group.master.stop()
                await until(lambda: group.looks[-1].state == "waiting")
                async with broker_in_process(tmp_path / "master", group.name_server) as master:
                    await registered(master)
                    group.master = master
                    await group.send(3)
                    await until(lambda: group.looks[-1].end == master.store.log.max_offset)
                    assert group.looks[-1].end > before and group.looks[-1].state == "copying"
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)

    in_loop(body)


@pytest.mark.slow
def test_sigterm_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    """The copy is closed, so that the next run has nothing to recover."""

    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(40, 50_000)
            words = ["-n", group.name_server, "-b", "a", "--dir", str(group.folder)]
            command = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "rmqpy.cli", "rehearse", *words, "--rate", "0.05"],
                env=python_environment(),
                stderr=asyncio.subprocess.PIPE,
            )
            await until((group.folder / "status.json").exists)
            assert (group.folder / "shadow/store/abort").exists()
            command.terminate()
            _, printed = await command.communicate()
            assert (command.returncode, b"it continues where it stopped" in printed) == (130, True)
            assert not (group.folder / "shadow/store/abort").exists()

    in_loop(body)


@pytest.mark.slow
def test_brokers_of_a_walk_that_was_killed_are_named(tmp_path: Path) -> None:
    async def body() -> None:
        async with live_group(tmp_path) as group:
            await group.send(3)
            async with opened(group.plan(), AsyncioScheduler()) as session:
                await session.copy(group.looks.append)
                lock = group.folder / "walk/n1/store/lock"
                lock.parent.mkdir(parents=True)
                held = await asyncio.create_subprocess_exec(
                    *[sys.executable, "-c", HOLD, str(lock)],
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                assert held.stdout is not None
                await held.stdout.readline()
                with pytest.raises(UpgradeRefusedError, match=f"; kill {held.pid}, and repeat"):
                    await session.walk(print)
                assert lock.exists()
                await held.communicate(b"")
                await session.walk(print)
                assert not lock.exists()

    in_loop(body)


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_port_that_serves_no_log_ends_the_command(tmp_path: Path) -> None:
    """As with a master that admits slaves of its replicationAddresses only."""

    async def body() -> None:
        settings = {"replicationAddresses": "192.0.2.1"}
        async with live_group(tmp_path, **settings) as group:
            await group.send(1)
            with pytest.raises(RmqError, match="found no log, 5 times"):
                await group.rehearse()

    in_loop(body)
