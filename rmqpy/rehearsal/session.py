"""One run of ``rmqpy rehearse``: find the group, copy it, check the copy, walk on it."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, define, evolve, field

from rmqpy.admin.api import Admin
from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.config.loading import load_broker_configuration
from rmqpy.demo.cluster import MEMBERS
from rmqpy.model.text import format_bytes
from rmqpy.net.ha import dial
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.tls import TlsSide, client_tls
from rmqpy.rehearsal.copying import LOOK_S, UNREACHABLE_S, Copier, CopyStatus, read_suitable
from rmqpy.rehearsal.machine import measure
from rmqpy.rehearsal.rehearsed_group import RehearsedGroup
from rmqpy.rehearsal.report import CheckedCopy, RehearsalReport
from rmqpy.rehearsal.shadow import Shadow
from rmqpy.rehearsal.snapshot import copied_bytes, snapshot
from rmqpy.rehearsal.walk import Walk
from rmqpy.rehearsal.way_back import WayBack
from rmqpy.rehearsal.workspace import Workspace, member_settings, workspace_at
from rmqpy.store.files.disk import OsFileSystem, physical_memory_bytes
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.checks.summary import summarize
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.survey import SurveyPlan

__all__ = ["RehearsalPlan", "Session", "opened", "rehearse"]

LEAST_RATE, GREATEST_RATE = 20.0, 1000.0
"""The messages a second of the load: enough to measure a pause, and what one process can send."""


@define(slots=True, frozen=True, kw_only=True)
class RehearsalPlan:
    """The options of a rehearsal.

    ``bytes_per_second`` limits the copy; 0: no limit. With ``again_s``, the copy goes on following
    the master after a rehearsal, and everything is verified again after that many seconds.
    """

    client: ClientSettings
    broker_name: str
    folder: str
    bytes_per_second: float
    again_s: float = 0
    look_s: float = LOOK_S


@define(slots=True, eq=False)
class Session:
    """A group that can be observed, and the directory that is locked for it."""

    plan: RehearsalPlan
    admin: Admin
    facts: RehearsedGroup
    workspace: Workspace
    scheduler: AsyncioScheduler
    copied_end: int = field(default=0, init=False)
    """The end of the copy after ``copy``."""
    reads_version: int = field(default=1, init=False)
    """The version of records that readers of the copy must know, after ``copy``."""

    async def copy(self, show: Callable[[CopyStatus], None]) -> CheckedCopy:
        """Copy the group and check the copy. Raises RmqError if the copy cannot be completed;
        calling it again continues.
        """
        workspace = self.workspace
        with self._copier(show) as copier:
            tables = await copier.copy()
            begin, end = copier.shadow.begin, copier.shadow.end
        facts = self.facts
        self.copied_end = end
        workspace.write_tables(tables)
        group = _checked(workspace, facts.name, self.scheduler.now_ms)
        summary = await asyncio.to_thread(lambda: summarize(group, run_checks(group)))
        self.reads_version = 2 if any(each.version_2 for each in group.surveys) else 1
        return CheckedCopy(
            broker_name=facts.name,
            master=facts.master,
            begin=begin,
            end=end,
            summary=summary,
            reads_version=self.reads_version,
        )

    async def follow(self, show: Callable[[CopyStatus], None], due_ms: int) -> None:
        """Follow the master until ``due_ms`` of the monotonic clock."""
        with self._copier(show) as copier:
            await copier.follow(lambda: self.scheduler.monotonic_ms() >= due_ms)

    @contextmanager
    def _copier(self, show: Callable[[CopyStatus], None]) -> Iterator[Copier]:
        """Open the copy, and keep what is known of the group when it is closed."""
        workspace = self.workspace
        settings = load_broker_configuration(workspace.config, {}, {}).configuration.store
        verified_ms = workspace.verified_ms()

        def shown(status: CopyStatus) -> None:
            if verified_ms is not None:
                age_s = (self.scheduler.now_ms() - verified_ms) / 1000
                status = evolve(status, proof_age_s=age_s)
            workspace.write_status({"brokerName": self.facts.name, **asdict(status)})
            show(status)

        shadow = Shadow(
            settings,
            workspace.files,
            self.scheduler,
            physical_memory_bytes(),
            workspace.epochs if self.facts.controlled else (),
            workspace.write_epochs,
        )
        try:
            copier = Copier(
                self.admin,
                self.facts,
                shadow,
                _dialler(self.plan, self.facts, self.scheduler),
                shown,
                self.plan.look_s,
                math.inf if self.plan.again_s else UNREACHABLE_S,
            )
            yield copier
            self.facts = copier.known
        finally:
            shadow.close()

    async def rehearse(
        self, show: Callable[[CopyStatus], None], say: Callable[[str], None]
    ) -> RehearsalReport:
        """Copy, check, and walk if nothing prevents that; write the report."""
        workspace = self.workspace
        copied = await self.copy(show)
        machine = await asyncio.to_thread(
            measure, Path(workspace.store) / "commitlog", Path(workspace.folder)
        )
        walked = None
        if copied.summary.is_ready:
            walked = await (await self.walk(say)).run()
        report = RehearsalReport(
            copied=copied,
            machine=machine,
            walked=walked,
            facts=self.facts,
            verified_ms=self.scheduler.now_ms(),
        )
        workspace.write_report(report.as_json())
        if report.is_ready:
            workspace.keep_certificate()
        return report

    async def walk(self, say: Callable[[str], None]) -> Walk:
        """Make snapshots of the copy, and return a walk on them."""
        facts, workspace = self.facts, self.workspace
        _check_no_walk(workspace)
        workspace.files.remove_tree(workspace.walk)
        store, folder = Path(workspace.store), Path(workspace.walk)
        # Each slave of the group has a copy; a member that is new begins without one.
        whole = MEMBERS[: max(2, 1 + len(facts.slaves))]
        _check_space(workspace, store, new_members=len(MEMBERS) - len(whole))
        say("snapshots")
        for member in whole:
            await asyncio.to_thread(snapshot, store, folder / member / "store")
        options: dict[str, Any] = {
            "folder": folder,
            "broker_name": facts.name,
            "settings": member_settings(facts),
            "per_second": min(GREATEST_RATE, max(LEAST_RATE, facts.sends_per_second)),
            "show": say,
        }
        if not facts.controlled:
            return Walk(**options, reads_version=self.reads_version)
        epochs = tuple(e for e in workspace.epochs if e.start_offset <= self.copied_end)
        return WayBack(**options, epochs=epochs, copies=whole)


@asynccontextmanager
async def opened(plan: RehearsalPlan, scheduler: AsyncioScheduler) -> AsyncIterator[Session]:
    """Find the group and claim the directory. Raises UpgradeRefusedError if either does not fit."""
    instance = await ClientInstance.open(plan.client)
    try:
        admin = Admin(instance, plan.client.name_servers)
        facts = await read_suitable(admin, plan.broker_name, plan.look_s)
        workspace = workspace_at(OsFileSystem(), plan.folder)
        lock = workspace.take(facts)
        try:
            yield Session(plan, admin, facts, workspace, scheduler)
        finally:
            lock.release()
    finally:
        await instance.close()


async def rehearse(
    plan: RehearsalPlan,
    scheduler: AsyncioScheduler,
    show: Callable[[CopyStatus], None],
    say: Callable[[str], None],
) -> AsyncGenerator[RehearsalReport, None]:
    """Yield the report of a rehearsal and, with ``again_s``, of each further one. ``show`` receives
    the state of the copy once a second, ``say`` the name of each later step.
    """
    async with opened(plan, scheduler) as session:
        while True:
            begin_ms = scheduler.monotonic_ms()
            yield await session.rehearse(show, say)
            if not plan.again_s:
                return
            await session.follow(show, begin_ms + round(1000 * plan.again_s))


def _check_no_walk(workspace: Workspace) -> None:
    """Raise UpgradeRefusedError if brokers of a walk that was killed are still running."""
    locks = (f"{workspace.walk}/{member}/store/lock" for member in MEMBERS)
    found = [str(process) for lock in locks if (process := find_lock_owner(lock)) is not None]
    if found:
        raise UpgradeRefusedError(
            f"{workspace.walk}: found the brokers of a rehearsal that was killed (processes"
            f" {', '.join(found)}), expected none; kill {' '.join(found)}, and repeat"
        )


def _check_space(workspace: Workspace, store: Path, new_members: int) -> None:
    """Raise UpgradeRefusedError if there is no room for the members of a walk."""
    log = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    needed = len(MEMBERS) * copied_bytes(store) + new_members * log
    free = workspace.files.disk_usage(workspace.folder)[1]
    if needed > free:
        raise UpgradeRefusedError(
            f"{workspace.folder}: found {format_bytes(free)} free on its file system, expected"
            f" {format_bytes(needed)} for the members on the copy; free"
            f" {format_bytes(needed - free)}, and repeat"
        )


def _dialler(plan: RehearsalPlan, facts: RehearsedGroup, scheduler: AsyncioScheduler) -> Any:
    """Return the function that connects to the port of the slaves."""
    tls = None
    if facts.settings.get("haTlsEnable") == "true":
        tls = client_tls(plan.client.tls or TlsSide())
    rate = plan.bytes_per_second
    return partial(dial, scheduler=scheduler, tls=tls, bytes_per_second=lambda: rate)


def _checked(workspace: Workspace, name: str, now_ms: Callable[[], int]) -> Group:
    settings = load_broker_configuration(workspace.config, {}, {}).configuration.store
    plan = SurveyPlan(
        name=name,
        root=os.fspath(workspace.store),
        config_path=workspace.config,
        settings=settings,
        now_ms=now_ms,
    )
    return Group((LocalReplica(workspace.files, plan),))
