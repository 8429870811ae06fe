"""One run of ``rmqpy rehearse``: find the group, copy it, check the copy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attrs import asdict, define

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.text import format_bytes
from rmqpy.net.ha import dial
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.tls import TlsSide, client_tls
from rmqpy.rehearsal.copying import LOOK_S, Copier, CopyStatus, read_suitable
from rmqpy.rehearsal.group_facts import GroupFacts
from rmqpy.rehearsal.shadow import Shadow
from rmqpy.rehearsal.workspace import Workspace, workspace_at
from rmqpy.store.files.disk import OsFileSystem, physical_memory_bytes
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.checks.summary import CheckSummary, summarize
from rmqpy.upgrade.plan.survey import SurveyPlan

__all__ = ["RehearsalPlan", "RehearsalResult", "rehearse"]


@define(slots=True, frozen=True, kw_only=True)
class RehearsalPlan:
    """The options of a rehearsal. ``bytes_per_second`` limits the copy; 0: no limit."""

    client: ClientSettings
    broker_name: str
    folder: str
    bytes_per_second: float
    look_s: float = LOOK_S


@define(slots=True, frozen=True, kw_only=True)
class RehearsalResult:
    """The copy ``[begin, end)`` of ``master``, and what the checks of an upgrade find in it."""

    broker_name: str
    master: str
    begin: int
    end: int
    summary: CheckSummary

    @property
    def is_ready(self) -> bool:
        return self.summary.is_ready

    def as_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "master": self.master,
            "begin": self.begin,
            "end": self.end,
            "ready": self.is_ready,
            "summary": self.summary.as_json(),
        }

    def lines(self) -> Iterator[str]:
        size = format_bytes(self.end - self.begin)
        yield (
            f"copied {size} of {self.broker_name} from {self.master}: offsets {self.begin} to"
            f" {self.end}, and its tables"
        )
        yield from self.summary.lines(details=False)


async def rehearse(
    plan: RehearsalPlan,
    scheduler: AsyncioScheduler,
    show: Callable[[CopyStatus], None],
) -> RehearsalResult:
    """Copy the group and check the copy. Raises UpgradeRefusedError if the group or the directory
    cannot be used, and RmqError if the copy cannot be completed; calling it again continues.
    """
    instance = await ClientInstance.open(plan.client)
    try:
        admin = Admin(instance, plan.client.name_servers)
        facts = await read_suitable(admin, plan.broker_name, plan.look_s)
        workspace = workspace_at(OsFileSystem(), plan.folder)
        lock = workspace.take(facts)
        try:
            return await _rehearse(plan, workspace, admin, facts, scheduler, show)
        finally:
            lock.release()
    finally:
        await instance.close()


async def _rehearse(
    plan: RehearsalPlan,
    workspace: Workspace,
    admin: Admin,
    facts: GroupFacts,
    scheduler: AsyncioScheduler,
    show: Callable[[CopyStatus], None],
) -> RehearsalResult:
    settings = load_broker_configuration(workspace.config, {}, {}).configuration.store

    def shown(status: CopyStatus) -> None:
        workspace.write_status({"brokerName": facts.name, **asdict(status)})
        show(status)

    shadow = Shadow(settings, workspace.files, scheduler, physical_memory_bytes())
    try:
        copier = Copier(admin, facts, shadow, _dialler(plan, facts, scheduler), shown, plan.look_s)
        tables = await copier.copy()
        begin, end = shadow.begin, shadow.end
    finally:
        shadow.close()
    workspace.write_tables(tables)
    summary = await asyncio.to_thread(_check, workspace, facts.name, scheduler.now_ms)
    result = RehearsalResult(
        broker_name=facts.name,
        master=copier.facts.master,
        begin=begin,
        end=end,
        summary=summary,
    )
    workspace.write_status(
        {"state": "checked", "checked_ms": scheduler.now_ms(), **result.as_json()}
    )
    return result


def _dialler(plan: RehearsalPlan, facts: GroupFacts, scheduler: AsyncioScheduler) -> Any:
    """Return the function that connects to the port of the slaves."""
    tls = None
    if facts.settings.get("haTlsEnable") == "true":
        tls = client_tls(plan.client.tls or TlsSide())
    rate = plan.bytes_per_second
    return partial(dial, scheduler=scheduler, tls=tls, bytes_per_second=rate)


def _check(workspace: Workspace, name: str, now_ms: Callable[[], int]) -> CheckSummary:
    settings = load_broker_configuration(workspace.config, {}, {}).configuration.store
    plan = SurveyPlan(
        name=name,
        root=os.fspath(workspace.store),
        config_path=workspace.config,
        settings=settings,
        now_ms=now_ms,
    )
    group = Group((LocalReplica(workspace.files, plan),))
    return summarize(group, run_checks(group))
