"""The walk of one store through the stages of a suite, on copies: the code of ``rmqpy upgrade``.

========== ======================================================================================
stage      work
========== ======================================================================================
check      the checks of an upgrade, and the number of messages
prepare    the way out of a controller of 5.x, if it has one; ``plan`` and ``apply`` until no
           finding is left; the copies are certified
switch     master and slave serve, are stopped, aligned and switched; three members serve
failover   the leader is killed; all acknowledged messages are read
verify     the members are certified against the state before
leave      the way back; certified again; master and slave serve, and everything is read
controller the result goes to a controller of 5.x (:mod:`rmqpy.suite.controller_case`)
java-V     a Java broker serves the result, and each message reads the same
========== ======================================================================================

The store of a group that runs DLedger already has no ``prepare`` and no ``switch``.

A stage that breaks a limit, or loses a message, has findings, and the walk goes on. After a stage
that cannot be carried out, the later ones are not tested.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.demo.comparison import Reading, compare
from rmqpy.demo.store_copy import copied_settings, copy_member, copy_store
from rmqpy.demo.workload import SendWorkload
from rmqpy.model.errors import RmqError
from rmqpy.suite.cases import FINDINGS_SHOWN, CaseResult, CaseStatus, OpenCase
from rmqpy.suite.controller_case import ControllerCase
from rmqpy.suite.java_case import read_with_java
from rmqpy.suite.live_group import LiveGroup
from rmqpy.suite.suite_file import CONTROLLER, JAVA_CASE, SuitePlan, SuiteStore
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.findings import CheckFinding
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving, plan_switch
from rmqpy.upgrade.steps.states import is_controlled

BROKER_NAME = "suite-broker"


class StoreWalk:
    """One walk. ``folder`` is new, and has the copies; ``show`` receives each result."""

    def __init__(
        self,
        plan: SuitePlan,
        store: SuiteStore,
        folder: Path,
        show: Callable[[CaseResult], None] = lambda _result: None,
    ) -> None:
        self._plan, self._store, self._folder, self._show = plan, store, folder, show
        self._cluster: DemoCluster
        self._live: LiveGroup
        self._before: Manifest | None = None
        self._version_2 = False
        self._last: Reading | None = None
        self._broken = ""
        """The stage that was not carried out."""
        self._stages: dict[str, Callable[[OpenCase], Awaitable[None]]] = {
            "check": self._check,
            "prepare": self._prepare,
            "switch": self._switch,
            "failover": self._failover,
            "verify": self._verify,
            "leave": self._leave,
        }

    async def run(self) -> list[CaseResult]:
        """Carry out all stages of the plan and return their results; nothing runs afterwards."""
        results: list[CaseResult] = []
        try:
            for name in self._plan.cases_of(self._store):
                if self._broken:
                    result = self._not_tested(name, f"{self._broken} was not carried out")
                else:
                    result = await self._carry_out(name)
                results.append(result)
                self._show(result)
        finally:
            if hasattr(self, "_cluster"):
                self._cluster.close()
        return results

    async def _carry_out(self, name: str) -> CaseResult:
        begin_s, case, left = time.monotonic(), OpenCase(), None
        try:
            if name.startswith(JAVA_CASE):
                left = await self._java(case, name.removeprefix(JAVA_CASE))
            elif name.startswith(CONTROLLER):
                left = await self._controller(case, name)
            else:
                await self._stages[name](case)
        except (RmqError, OSError) as error:
            if name in self._stages:  # The other cases work on copies of their own.
                self._broken = name
            case.findings.append(f"{name} was not carried out: {error}")
        status = CaseStatus.FAILED if case.findings else CaseStatus.PASSED
        if left is not None:
            case.findings.append(left)
            status = CaseStatus.NOT_TESTED if len(case.findings) == 1 else status
        return CaseResult(
            store=self._store.name,
            case=name,
            status=status,
            seconds=round(time.monotonic() - begin_s, 3),
            facts=case.facts,
            findings=tuple(case.findings),
            notes=tuple(case.notes),
        )

    def _not_tested(self, name: str, why: str) -> CaseResult:
        status = CaseStatus.NOT_TESTED
        return CaseResult(store=self._store.name, case=name, status=status, findings=(why,))

    # -- stages without a running broker

    async def _check(self, case: OpenCase) -> None:
        replicas = self._store.replicas
        settings = await asyncio.to_thread(copied_settings, replicas[0].path, replicas[0].config)
        self._cluster = cluster = DemoCluster(
            self._folder, settings, BROKER_NAME, self._store.dledger
        )
        self._live = LiveGroup(self._plan, self._store, cluster)
        for member, replica in zip(MEMBERS, replicas, strict=False):
            await asyncio.to_thread(self._copy, replica.path, member)
        context = cluster.context()
        found = await asyncio.to_thread(run_checks, context.group)
        _keep(case, found, are_findings=False)
        surveys = [context.group.survey(member) for member in MEMBERS[: len(replicas)]]
        self._version_2 = any(each.version_2 for each in surveys)
        self._before = max((each.manifest for each in surveys), key=lambda each: each.messages)
        case.facts["messages"] = self._before.messages
        expected = self._store.messages
        if expected is not None and self._before.messages != expected:
            case.findings.append(
                f"messages: found {self._before.messages}, expected {expected} (suite file)"
            )

    def _copy(self, source: Path, member: str) -> None:
        target = self._cluster.store(member)
        if self._store.dledger:
            copy_member(source, target, member)
        else:
            copy_store(source, target)

    async def _prepare(self, case: OpenCase) -> None:
        cluster, operations = self._cluster, 0
        context = cluster.context(self._version_2)
        if await asyncio.to_thread(is_controlled, context.group):
            operations = await cluster.carry_out(context, plan_leaving, "left")
        operations += await cluster.carry_out(cluster.context(), plan_alignment, "aligned")
        case.facts["operations"] = operations
        found = await asyncio.to_thread(run_checks, cluster.context().group)
        _keep(case, found, are_findings=True)
        await self._certify(case)

    async def _verify(self, case: OpenCase) -> None:
        await self._certify(case)

    async def _certify(self, case: OpenCase) -> None:
        """Certify the members against the state before anything was changed."""
        assert self._before is not None
        certificate: Certificate = await asyncio.to_thread(self._cluster.certificate, self._before)
        case.facts["messages"] = certificate.subjects[1].messages
        case.facts["certificate"] = certificate.verdict.word.value
        lines = list(certificate_lines(certificate))
        (case.notes if certificate.holds else case.findings).extend(lines)

    # -- stages with a group that serves

    async def _switch(self, case: OpenCase) -> None:
        cluster = self._cluster
        await self._live.start_classic()
        async with self._live.load() as load:
            await self._live.run_hooks(case, "before", "switch")
            load.longest_gap_s()
            await cluster.stop("n0", "n1")
            await cluster.carry_out(cluster.context(), plan_alignment, "aligned")
            await cluster.carry_out(cluster.context(), plan_switch, "switched")
            await cluster.start(*MEMBERS)
            await cluster.leader()
            await load.wait_for(self._plan.load_messages)
            self._pause(case, "switch", load)
            await self._live.run_hooks(case, "after", "switch")
        await self._level(case)
        self._last = await self._live.count_lost(case)
        await cluster.stop_group()

    async def _failover(self, case: OpenCase) -> None:
        cluster = self._cluster
        await self._start_group()
        async with self._live.load() as load:
            await self._live.run_hooks(case, "before", "failover")
            leader = await cluster.leader()
            load.longest_gap_s()
            cluster.brokers[leader].kill()
            await load.wait_for(self._plan.load_messages)
            self._pause(case, "failover", load)
            await cluster.start(leader)
            await self._live.run_hooks(case, "after", "failover")
        await self._level(case)
        self._last = await self._live.count_lost(case)
        await cluster.stop_group()

    async def _leave(self, case: OpenCase) -> None:
        cluster = self._cluster
        await self._start_group()
        async with self._live.load() as load:
            await self._live.run_hooks(case, "before", "leave")
            load.longest_gap_s()
            await cluster.stop_group()
            await cluster.carry_out(cluster.context(self._version_2), plan_leaving, "left")
            await self._certify(case)
            await self._live.start_classic()
            await load.wait_for(self._plan.load_messages)
            self._pause(case, "leave", load)
            await self._live.run_hooks(case, "after", "leave")
        begin_s = time.monotonic()
        await cluster.slave_has_all()
        case.limit("lag_s", time.monotonic() - begin_s, self._plan.limits.lag_s)
        self._last = await self._live.count_lost(case)
        await cluster.stop("n1", "n0")
        for member in ("n0", "n1"):
            problems = (await asyncio.to_thread(read_store, cluster.store(member))).problems
            case.findings += [f"{member}: {each}" for each in problems[:FINDINGS_SHOWN]]

    async def _java(self, case: OpenCase, version: str) -> str | None:
        """Let Java serve the result; return the reason why that could not be tried, or None."""
        before = self._last
        if before is None:
            return "nothing was read after the stage leave"
        cluster, folder = self._cluster, self._folder / f"java-{version}"
        after = await read_with_java(
            version, cluster.store("n0"), folder, cluster, self._live.queues()
        )
        if isinstance(after, str):
            return after
        compared = compare(before, after, sys.maxsize)
        case.facts["messages"] = len(after.messages)
        case.facts["same"] = sum(row.same for row in compared.rows.values())
        case.findings += compared.differences[:FINDINGS_SHOWN]
        if not before.messages:
            case.findings.append("NOTHING COMPARED: no message was read before")
        problems = read_store(folder / "store").problems
        case.findings += problems[:FINDINGS_SHOWN]
        return None

    async def _controller(self, case: OpenCase, name: str) -> str | None:
        """Take copies of the result to a controller; return what could not be tried, or None."""
        one = ControllerCase(
            plan=self._plan,
            store=self._store,
            source=self._cluster,
            folder=self._folder / name,
            version=name.removeprefix(CONTROLLER).removeprefix("-") or None,
        )
        return await one.carry_out(case)

    async def _start_group(self) -> None:
        await self._cluster.start_name_server()
        await self._cluster.start(*MEMBERS)
        await self._cluster.leader()

    def _pause(self, case: OpenCase, stage: str, load: SendWorkload) -> None:
        case.limit("pause_s", load.longest_gap_s(), self._plan.limits.pauses_s[stage])
        case.facts["acknowledged"] = len(load.acknowledged)

    async def _level(self, case: OpenCase) -> None:
        """Measure the time until all members have the same end."""
        begin_s = time.monotonic()
        await self._cluster.level()
        case.limit("lag_s", time.monotonic() - begin_s, self._plan.limits.lag_s)


def _keep(case: OpenCase, found: list[CheckFinding], *, are_findings: bool) -> None:
    """Keep what the checks have found, as findings or as notes."""
    real = [f"[{each.check}] {each.replica}: {each.text}" for each in found if not each.is_note]
    case.facts["check_findings"] = len(real)
    target = case.findings if are_findings else case.notes
    target += real[:FINDINGS_SHOWN]
    if len(real) > FINDINGS_SHOWN:
        target.append(f"... and {len(real) - FINDINGS_SHOWN} more")


def remove_copies(folder: Path) -> None:
    """Remove the copies of a walk that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
