"""What a plan or a directory needs to be worked on: settings, sources, locks."""

from __future__ import annotations

import argparse
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rmqpy.cli.upgrade.base.replicas import all_replicas, named, now_ms
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmqpy.model.files import FileSystem
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions


def plan_context_of(
    options: argparse.Namespace, switch: SwitchOptions | None = None
) -> PlanContext:
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.config.loading import load_store_settings
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.checks.findings import Group
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions

    replicas = all_replicas(options)
    _check_one_has_content(replicas)
    names = [replica.name for replica in replicas]
    if len(set(names)) < len(names):
        raise RmqError(f"replicas need different names: {', '.join(names)}; write NAME=DIR")
    settings = {}
    here = {replica.name for replica in replicas if isinstance(replica, LocalReplica)}
    for name, path in named(getattr(options, "config", []), names, "-c").items():
        if name not in here:
            continue
        settings[name] = load_store_settings(path, os.environ)
    for replica in replicas:
        # The given directory is used, not the one in its broker.conf, because it may be a copy.
        if isinstance(replica, LocalReplica) and replica.plan.settings is not None:
            settings[replica.name] = replica.plan.settings
    if switch is None:
        switch = SwitchOptions(reference=getattr(options, "reference", None))
    return PlanContext(
        group=Group(tuple(replicas)),
        files=OsFileSystem(),
        options=switch,
        settings=settings,
        progress=ProgressLine,
        resolves=_resolves,
    )


def _resolves(host: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _check_one_has_content(replicas: list[Replica]) -> None:
    """Raise StoreError if all replicas are empty: then none can be a member to be filled."""
    from rmqpy.audit.scan.store_root import check_store_root, is_store_root
    from rmqpy.upgrade.checks.replica import LocalReplica

    local = [each for each in replicas if isinstance(each, LocalReplica)]
    stores = (is_store_root(each.files, each.root, each.plan.settings) for each in local)
    if local and len(local) == len(replicas) and not any(stores):
        check_store_root(local[0].files, local[0].root, local[0].plan.settings)


def node_context_at(context: PlanContext, root: str) -> NodeContext:
    """Return the context of a directory of this host; it need not be a replica of ``context``."""
    from rmqpy.audit.replicas.manifest import Md5
    from rmqpy.store.upgrade_guard import upgrade_work
    from rmqpy.upgrade.checks.replica import LocalReplica, Replicas
    from rmqpy.upgrade.plan.node_context import NodeContext

    for replica in context.group.replicas:
        if isinstance(replica, LocalReplica) and replica.root == root:
            return context.node_context(replica)
    from rmqpy.upgrade.plan.survey import SurveyPlan
    from rmqpy.upgrade.steps.plan_context import shown_settings

    sources = Replicas({each.name: each for each in context.group.replicas})
    plan = SurveyPlan(name="here", root=root, now_ms=now_ms, md5=Md5.NONE)
    survey = LocalReplica(context.files, plan).survey()
    work = upgrade_work(root)
    settings = shown_settings(survey)
    return NodeContext(context.files, work, settings, sources, context.progress, now_ms)


@contextmanager
def locked(files: FileSystem, root: str) -> Iterator[None]:
    """Hold the lock of a directory in the block, so that no broker, Java or rmqpy, starts there."""
    lock = files.lock(f"{root}/lock")
    try:
        yield
    finally:
        lock.release()
