"""The whole way on snapshots of a copy: switch, a killed leader, verify, leave, verify.

Three members run on free loopback ports, as separate processes, with their own name server; a
producer never stops sending. What is carried out is the runbook of ``rmqpy upgrade``, one command
after the other, so that what an operator will do has been done once, and its time is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.cluster import DemoCluster
from rmqpy.demo.comparison import read_all_topics
from rmqpy.demo.store_copy import queues_on_disk
from rmqpy.demo.workload import LOAD_TOPIC, SendWorkload
from rmqpy.rehearsal.walk_group import RunbookLineError, WalkGroup
from rmqpy.upgrade.runbook import (
    RMQPY,
    RunbookGroup,
    commands_until,
    leave_runbook,
    switch_runbook,
)

WARM_UP = 50
"""The messages that are acknowledged before a pause is measured, and after it."""

VERIFY = "rmqpy upgrade verify"

TO_DLEDGER, LOST_LEADER, BACK = "to DLedger", "a lost leader", "back to master and slaves"


@define(slots=True, frozen=True)
class StepTime:
    """A step of the operator and its time on this machine."""

    name: str
    seconds: float


@define(slots=True, frozen=True, kw_only=True)
class WalkResult:
    """What happened. ``pauses`` has the longest time in s without an acknowledged send, by cause;
    ``reasons`` why the upgrade is not ready.
    """

    steps: tuple[StepTime, ...]
    pauses: Mapping[str, float]
    verdicts: tuple[str, ...]
    acknowledged: int
    lost: int
    per_second: float
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@define(slots=True, kw_only=True, eq=False, repr=False)
class Walk:
    """One walk on the stores in ``folder``. ``show`` receives the name of each step.

    ``reads_version`` is that of the records which the brokers read that run the group after the way
    back: 2 for those of 5.x.
    """

    folder: Path
    broker_name: str
    settings: Mapping[str, str]
    per_second: float
    show: Callable[[str], None]
    reads_version: int = 1
    _cluster: DemoCluster = field(init=False)
    _steps: list[StepTime] = field(factory=list, init=False)
    _pauses: dict[str, float] = field(factory=dict, init=False)
    _verdicts: list[str] = field(factory=list, init=False)
    _reasons: list[str] = field(factory=list, init=False)

    async def run(self) -> WalkResult:
        """Go there and back. Raises RmqError or OSError if a step cannot be carried out."""
        self._cluster = cluster = DemoCluster(self.folder, self.settings, self.broker_name)
        group = WalkGroup(cluster)
        try:
            await asyncio.to_thread(group.write)
            await asyncio.to_thread(cluster.namesrv.start)
            async with self._step("start the master and its slave"):
                await group.start("n0", "n1")
                await cluster.master_is_known()
                await cluster.slave_has_all()
            async with SendWorkload(cluster.namesrv.address, self.per_second) as load:
                with _expected_outages():
                    await self._there_and_back(group, load)
            lost = 0
            if not self._reasons:
                lost = len(set(load.acknowledged) - await self._read_load())
            if lost:
                self._reasons.append(f"{lost} acknowledged messages are missing after the way back")
        finally:
            await asyncio.to_thread(group.close)
        return self._result(len(load.acknowledged), lost)

    async def _there_and_back(self, group: WalkGroup, load: SendWorkload) -> None:
        """Carry out both runbooks, until a line of one is refused or finds differences."""
        spec = group.spec
        runbook = RunbookGroup(
            members=spec.members, brokers=RMQPY, reads_version=self.reads_version
        )
        try:
            async with self._pause(TO_DLEDGER, load):
                await self._carry_out(group, commands_until(switch_runbook(runbook), "dledger"))
            await self._lose_the_leader(group, load)
            await self._carry_out(group, [VERIFY], "after the switch")
            back = commands_until(leave_runbook(runbook), "returned")
            async with self._pause(BACK, load):
                await self._carry_out(group, back, "after the way back")
        except RunbookLineError as error:
            self._reasons.append(str(error))

    async def _lose_the_leader(self, group: WalkGroup, load: SendWorkload) -> None:
        cluster = self._cluster
        leader = await cluster.leader()
        async with self._pause(LOST_LEADER, load), self._step("replace a leader that was killed"):
            await asyncio.to_thread(group.kill, leader)
            await load.wait_for(WARM_UP)
        await self._carry_out(group, [group.start_line(leader)])
        async with self._step(f"wait for the key index of {leader}"):
            await cluster.indexed()

    async def _carry_out(self, group: WalkGroup, lines: list[str], when: str = "") -> None:
        for line in lines:
            async with self._step(line):
                await group.run(line)
            if line == VERIFY:
                written = self.folder / "certificate.json"
                certificate = Certificate.decode(await asyncio.to_thread(written.read_bytes))
                self._judge(certificate, when)

    def _judge(self, certificate: Certificate, when: str) -> None:
        self._verdicts.append(f"{when}: {certificate.verdict}")
        if not certificate.holds:
            self._reasons += [f"{when}: {line}" for line in certificate_lines(certificate)]

    @asynccontextmanager
    async def _pause(self, cause: str, load: SendWorkload) -> AsyncIterator[None]:
        """Measure for how long no send is acknowledged because of what is done meanwhile."""
        await load.wait_for(WARM_UP)
        load.longest_gap_s()
        yield
        await load.wait_for(WARM_UP)
        self._pauses[cause] = load.longest_gap_s()

    def _result(self, acknowledged: int, lost: int) -> WalkResult:
        return WalkResult(
            steps=tuple(self._steps),
            pauses=self._pauses,
            verdicts=tuple(self._verdicts),
            acknowledged=acknowledged,
            lost=lost,
            per_second=self.per_second,
            reasons=tuple(self._reasons),
        )

    async def _read_load(self) -> set[str]:
        """Return the keys of all messages of the load that a consumer receives."""
        stores = [queues_on_disk(self._cluster.store(member)) for member in ("n0", "n1")]
        queues = {(each.topic, each.queue_id) for store in stores for each in store}
        own = sorted(each for each in queues if each[0] == LOAD_TOPIC)
        async with PullConsumer("rehearsal", self._cluster.namesrv.address) as consumer:
            reading = await read_all_topics(consumer, self.broker_name, own)
        return {dict(value.properties)["KEYS"] for value in reading.messages.values()}

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        self.show(name)
        begin_s = time.monotonic()
        yield
        self._steps.append(StepTime(name, time.monotonic() - begin_s))


@contextmanager
def _expected_outages() -> Iterator[None]:
    """Log no warnings of the producer, whose brokers are stopped and killed on purpose."""
    client = logging.getLogger("rmqpy.client")
    level = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
