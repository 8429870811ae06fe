"""Take copies of the result of a walk to a controller of 5.x, with ``switch --to controller``.

========== ======================================================================================
step       work
========== ======================================================================================
copies     of all members; they are aligned and switched, and certified against the state before
group      master and slave of rmqpy serve, and everything is read; they are stopped, aligned, and
           switched, and brokers of 5.x serve the same name server, with the files that ``switch``
           wrote
fail-over  the master that the controller has elected is killed; another one is elected, and the
           first one returns
end        everything reads as before, no acknowledged message is missing, and after a stop the logs
           of all members have the same bytes
========== ======================================================================================

Without Java only the copies are switched and certified.

The group has ``allAckInSyncStateSet``, as one that had a SYNC_MASTER: without it, 5.x acknowledges
messages that only the master has, and a kill loses them whatever was done before.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.demo.comparison import Reading, compare
from rmqpy.demo.store_copy import copy_store
from rmqpy.demo.workload import SendWorkload
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.suite.cases import FINDINGS_SHOWN, OpenCase
from rmqpy.suite.live_group import LiveGroup
from rmqpy.suite.suite_file import CONTROLLER, SuitePlan, SuiteStore
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import PortBlock, free_port_block
from rmqpy.testing.processes import LOOPBACK, ServerProcess
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.plan.configuration import controller_configs
from rmqpy.upgrade.steps.planning import plan_alignment, plan_switch

WAIT_SECONDS_MAX = 180.0
"""A broker of 5.x needs eight seconds of CPU time to start, and a busy machine gives it few."""
PROBE_SECONDS = 0.1
NOT_LOOKED_AT = (
    "the copies are switched and certified, but no broker of 5.x was started: elections, the"
    " fail-over, and what clients read were not tested"
)


@define(slots=True, kw_only=True, eq=False, repr=False)
class ControllerCase:
    """One case. ``source`` has the stopped members of a classic group, ``folder`` is new.

    ``version`` is that of the controller and the brokers, or None if the suite has none of 5.x.
    """

    plan: SuitePlan
    store: SuiteStore
    source: DemoCluster
    folder: Path
    version: str | None
    _cluster: DemoCluster = field(init=False)
    _live: LiveGroup = field(init=False)
    _port: PortBlock = field(init=False)

    def __attrs_post_init__(self) -> None:
        settings = {**self.source.settings, "allAckInSyncStateSet": "true"}
        self._cluster = DemoCluster(self.folder, settings, self.source.broker_name)
        self._live = LiveGroup(self.plan, self.store, self._cluster)
        self._port = free_port_block(1)

    async def carry_out(self, case: OpenCase) -> str | None:
        """Carry out all that is possible; return what was not tested and why, or None.

        Raises RmqError or OSError if a step cannot be carried out.
        """
        site: JavaSite | None = None
        reason: str | None = "found no version of 5.x in java"
        if self.version is not None:
            home = JavaHome(self.version)
            site = JavaSite(self.folder / "java", home)
            reason = await asyncio.to_thread(home.missing)
        try:
            for member in MEMBERS:
                source, target = self.source.store(member), self._cluster.store(member)
                await asyncio.to_thread(copy_store, source, target)
            if site is None or reason is not None:
                await self._hand_over(case)
                return f"{reason}; {NOT_LOOKED_AT}"
            group = _Group(self._cluster, site, self._port.first)
            try:
                await self._serve(case, group)
            finally:
                group.kill()
        finally:
            self._cluster.close()
            self._port.release()
        return None

    async def _hand_over(self, case: OpenCase) -> None:
        """Switch the stopped members to the controller, and certify them."""
        cluster, address = self._cluster, f"{LOOPBACK}:{self._port.first}"
        await cluster.carry_out(cluster.context(), plan_alignment, "aligned")
        before = (await asyncio.to_thread(cluster.context().group.survey, "n0")).manifest
        context = cluster.context(controllers=address)
        case.facts["operations"] = await cluster.carry_out(context, plan_switch, "switched")
        certificate: Certificate = await asyncio.to_thread(cluster.certificate, before)
        case.facts["messages"] = certificate.subjects[1].messages
        case.facts["certificate"] = certificate.verdict.word.value
        lines = list(certificate_lines(certificate))
        (case.notes if certificate.holds else case.findings).extend(lines)

    async def _serve(self, case: OpenCase, group: _Group) -> None:
        live, cluster, limits = self._live, self._cluster, self.plan.limits
        await group.start_controller()
        await live.start_classic()
        async with live.load() as load:
            before = await live.read_all()
            await live.run_hooks(case, "before", CONTROLLER)
            load.longest_gap_s()
            await cluster.stop("n0", "n1")
            await self._hand_over(case)
            await group.start("n0")
            await group.in_sync(1)
            await self._pause(case, load, "pause_s")
            await group.start("n1", "n2")
            await group.in_sync(len(MEMBERS))
            await live.run_hooks(case, "after", CONTROLLER)
            load.longest_gap_s()
            killed = await group.kill_master()
            await self._pause(case, load, "failover_pause_s")
            await group.start(killed)
            await group.in_sync(len(MEMBERS))
        case.facts["acknowledged"] = len(load.acknowledged)
        begin_s = time.monotonic()
        await group.level()
        case.limit("lag_s", time.monotonic() - begin_s, limits.lag_s)
        self._compare(case, before, await live.count_lost(case))
        await group.stop()
        await asyncio.to_thread(self._compare_logs, case)

    async def _pause(self, case: OpenCase, load: SendWorkload, fact: str) -> None:
        """Measure the time without an acknowledged message since the group was last touched."""
        await load.wait_for(self.plan.load_messages)
        case.limit(fact, load.longest_gap_s(), self.plan.limits.pauses_s[CONTROLLER])

    def _compare(self, case: OpenCase, before: Reading, after: Reading) -> None:
        compared = compare(before, after, sys.maxsize)
        case.facts["messages"] = len(before.messages)
        case.facts["same"] = sum(row.same for row in compared.rows.values())
        case.findings += compared.differences[:FINDINGS_SHOWN]

    def _compare_logs(self, case: OpenCase) -> None:
        """Compare the bytes of the logs, and check each store."""
        digests = set()
        for member in MEMBERS:
            store = self._cluster.store(member)
            digest = hashlib.sha256()
            for path in sorted((store / "commitlog").iterdir()):
                digest.update(path.name.encode())
                digest.update(path.read_bytes())
            digests.add(digest.digest())
            problems = read_store(store).problems
            case.findings += [f"{member}: {each}" for each in problems[:FINDINGS_SHOWN]]
        if len(digests) > 1:
            case.findings.append("the logs of the members differ after a stop, expected equal ones")


@define(slots=True, eq=False, repr=False)
class _Group:
    """A controller of 5.x, and brokers with the stores and the broker.conf files of a cluster."""

    cluster: DemoCluster
    site: JavaSite
    controller_port: int
    _controller: ServerProcess = field(init=False)
    _brokers: dict[str, ServerProcess] = field(init=False, factory=dict)

    async def start_controller(self) -> None:
        address = f"{LOOPBACK}:{self.controller_port}"
        [(name, text)] = controller_configs([address]).items()
        self.site.root.mkdir(parents=True, exist_ok=True)
        conf = self.site.root / name
        conf.write_text(text, encoding="utf-8")
        self._controller = self.site.mqcontroller("controller", conf, self.controller_port)
        self._controller.ready_timeout_s = WAIT_SECONDS_MAX
        await asyncio.to_thread(self._controller.start)

    async def start(self, *members: str) -> None:
        for member in members:
            if member not in self._brokers:
                ours = self.cluster.brokers[member]
                conf = self.cluster.config(member)
                self._brokers[member] = broker = self.site.broker_of(member, conf, ours.port)
                broker.ready_timeout_s = WAIT_SECONDS_MAX
        servers = [self._brokers[member] for member in members]
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))

    async def in_sync(self, count: int) -> None:
        """Wait until the SyncStateSet has so many members."""

        def is_so() -> str | None:
            in_sync = self._replicas_info().get("inSyncReplicas") or ()
            return "in sync" if len(in_sync) == count else None

        await self._until(f"{count} members in the SyncStateSet", is_so)

    async def kill_master(self) -> str:
        """Kill the member that the controller has elected, and return its name."""
        member = await self._until("a master", self._master)
        await asyncio.to_thread(self._brokers[member].kill)
        return member

    async def level(self) -> None:
        """Wait until all members have the same end of the log."""
        await self._until("the same end of all logs", self._is_level)

    async def stop(self) -> None:
        """Stop the master last, so that nobody else is elected meanwhile."""
        master = await self._until("a master", self._master)
        for member in sorted(MEMBERS, key=lambda each: each == master):
            await asyncio.to_thread(self._brokers[member].stop)

    def kill(self) -> None:
        servers = [*self._brokers.values()]
        if hasattr(self, "_controller"):
            servers.append(self._controller)
        for server in servers:
            server.kill()

    def _master(self) -> str | None:
        address = self._replicas_info().get("masterAddress")
        found = (name for name, each in self._brokers.items() if each.address == address)
        return next(found, None)

    def _replicas_info(self) -> dict[str, Any]:
        """Return what the controller knows of the group; empty before a broker has registered."""
        code, name = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, self.cluster.broker_name
        with BlockingConnection(self._controller.address) as connection:
            request = RemotingCommand.request(code, body=json.dumps([name]).encode())
            answer = connection.call(request)
        if answer.code != ResponseCode.SUCCESS:
            return {}
        table: dict[str, dict[str, Any]] = json.loads(answer.body)["replicasInfoTable"]
        return table.get(name, {})

    def _is_level(self) -> str | None:
        ends = set()
        for broker in self._brokers.values():
            with BlockingConnection(broker.address) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
                answer = connection.call(request)
            if answer.code != ResponseCode.SUCCESS:  # It does not have a role yet.
                return None
            ends.add(json.loads(answer.body)["table"]["commitLogMaxOffset"])
        return "level" if len(ends) == 1 else None

    async def _until(self, expected: str, probe: Callable[[], str | None]) -> str:
        deadline_s = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline_s:
            try:
                found = await asyncio.to_thread(probe)
            except NetworkError:
                found = None
            if found is not None:
                return found
            await asyncio.sleep(PROBE_SECONDS)
        raise RmqError(
            f"found no change for {WAIT_SECONDS_MAX:.0f} s, expected {expected}; see the logs below"
            f" {self.site.root} (--work DIR --keep)"
        )
