"""The whole way on snapshots of a copy: switch, a killed leader, verify, leave, verify.

Three members run on free loopback ports, as separate processes, with their own name server; a
producer never stops sending. The steps are those of ``rmqpy upgrade``, on the files of the copy, so
that what the upgrade will do has been done once, and its time is known.
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
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.demo.comparison import read_all_topics
from rmqpy.demo.store_copy import queues_on_disk
from rmqpy.demo.workload import LOAD_TOPIC, SendWorkload
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving, plan_switch

WARM_UP = 50
"""The messages that are acknowledged before a pause is measured, and after it."""

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
    """One walk on the stores in ``folder``. ``show`` receives the name of each step."""

    folder: Path
    broker_name: str
    settings: Mapping[str, str]
    per_second: float
    show: Callable[[str], None]
    _cluster: DemoCluster = field(init=False)
    _steps: list[StepTime] = field(factory=list, init=False)
    _pauses: dict[str, float] = field(factory=dict, init=False)
    _verdicts: list[str] = field(factory=list, init=False)
    _reasons: list[str] = field(factory=list, init=False)
    _version_2: bool = field(default=False, init=False)

    async def run(self) -> WalkResult:
        """Go there and back. Raises RmqError or OSError if a step cannot be carried out."""
        self._cluster = cluster = DemoCluster(self.folder, self.settings, self.broker_name)
        try:
            await asyncio.to_thread(cluster.namesrv.start)
            async with self._step("start the master and its slave"):
                await cluster.start("n0", "n1")
                await cluster.master_is_known()
                await cluster.slave_has_all()
            with _expected_outages():
                async with SendWorkload(cluster.namesrv.address, self.per_second) as load:
                    if (before := await self._to_dledger(load)) is not None:
                        await self._lose_the_leader(load)
                        await self._back(load, before)
            lost = 0
            if not self._reasons:
                lost = len(set(load.acknowledged) - await self._read_load())
            if lost:
                self._reasons.append(f"{lost} acknowledged messages are missing after the way back")
            await cluster.stop(*MEMBERS)
        finally:
            cluster.close()
        return self._result(len(load.acknowledged), lost)

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

    async def _to_dledger(self, load: SendWorkload) -> Manifest | None:
        """Switch; return the state before, or None if the checks prevent it."""
        cluster = self._cluster
        await load.wait_for(WARM_UP)
        load.longest_gap_s()
        async with self._step("stop the master and its slave"):
            await cluster.stop("n0", "n1")
        async with self._step("check"):
            context = cluster.context()
            await asyncio.to_thread(run_checks, context.group)
            before = context.group.survey("n0").manifest
            self._version_2 = any(each.version_2 for each in context.group.surveys)
        async with self._step("plan, apply"):
            await cluster.carry_out(context, plan_alignment, "aligned")
        async with self._step("check again"):
            context = cluster.context()
            found = await asyncio.to_thread(run_checks, context.group)
        left = [each for each in found if not each.is_note]
        if left:
            self._reasons += [f"[{each.check}] {each.replica}: {each.text}" for each in left]
            return None
        async with self._step("switch"):
            await cluster.carry_out(context, plan_switch, "switched")
        async with self._step("start the members, elect a leader"):
            await cluster.start(*MEMBERS)
            await cluster.leader()
            await load.wait_for(WARM_UP)
        self._pauses[TO_DLEDGER] = load.longest_gap_s()
        return before

    async def _lose_the_leader(self, load: SendWorkload) -> None:
        cluster = self._cluster
        leader = await cluster.leader()
        load.longest_gap_s()
        async with self._step("replace a leader that was killed"):
            cluster.brokers[leader].kill()
            await load.wait_for(WARM_UP)
        self._pauses[LOST_LEADER] = load.longest_gap_s()
        await cluster.start(leader)

    async def _back(self, load: SendWorkload, before: Manifest) -> None:
        cluster = self._cluster
        await load.wait_for(WARM_UP)
        load.longest_gap_s()
        async with self._step("fence and stop the members"):
            await cluster.stop_group()
        async with self._step("verify"):
            self._judge(await asyncio.to_thread(cluster.certificate, before), "after the switch")
        async with self._step("leave"):
            context = cluster.context(self._version_2)
            await cluster.carry_out(context, plan_leaving, "left")
        async with self._step("verify again"):
            certificate = await asyncio.to_thread(cluster.certificate, before)
            self._judge(certificate, "after the way back")
        async with self._step("start the master and its slave again"):
            await cluster.start("n0", "n1")
            await cluster.master_is_known()
            await load.wait_for(WARM_UP)
        self._pauses[BACK] = load.longest_gap_s()

    def _judge(self, certificate: Certificate, when: str) -> None:
        self._verdicts.append(f"{when}: {certificate.verdict}")
        if not certificate.holds:
            self._reasons += [f"{when}: {line}" for line in certificate_lines(certificate)]

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
