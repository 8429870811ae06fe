"""Carry out plans, resume them, take them back: the verbs of ``rmqpy upgrade`` that change files.

``apply --resume``, ``rollback``, ``finalize``, and ``status`` need the directory alone.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import read_token
from rmqpy.cli.upgrade.base.contexts import locked, node_context_at, plan_context_of
from rmqpy.cli.upgrade.base.hosts import DRIVER, note
from rmqpy.cli.upgrade.base.replicas import all_replicas, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.plan.journal import Journal
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.plan import NodePlan, Plan
    from rmqpy.upgrade.plan.record import PlanRecord
    from rmqpy.upgrade.steps.plan_context import PlanContext


def carry_out(
    context: PlanContext,
    plan: Plan,
    phase: str,
    done: Callable[[NodeContext, NodePlan], None] = lambda context, part: None,
    parts: Sequence[NodePlan] | None = None,
) -> list[Journal]:
    """Carry out all parts of a plan, or ``parts`` of it, on this host; call ``done`` after each.

    Every part is checked and begun before the first operation of any, so that a rollback of each
    directory takes back this plan if the command is killed.
    """
    from rmqpy.upgrade.plan.engine import apply_plan, begin_plan, check_plan

    contexts = [
        (part, context.node_context(context.group.replica(part.replica)))
        for part in (plan.nodes if parts is None else parts)
    ]
    journals = []
    with ExitStack() as stack:
        for part, node_context in contexts:
            stack.enter_context(locked(node_context.files, part.root))
        for part, node_context in contexts:
            check_plan(node_context, plan, part.replica)
        for part, node_context in contexts:
            begin_plan(node_context, plan, part.replica, phase, is_checked=True)
        for part, node_context in contexts:
            journals.append(apply_plan(node_context, plan, part.replica, phase))
            done(node_context, part)
    return journals


@contextmanager
def announced_in_all(context: PlanContext, command: str) -> Iterator[None]:
    """Note in all directories of this host that a command begins (:func:`announced`)."""
    from rmqpy.store.upgrade_guard import upgrade_work
    from rmqpy.upgrade.plan.engine import announced
    from rmqpy.upgrade.plan.node_context import NodeContext

    with ExitStack() as stack:
        for replica in context.on_this_host:
            node_context = NodeContext(replica.files, upgrade_work(replica.root))
            stack.enter_context(announced(node_context, command))
        yield


def recorded_context(options: argparse.Namespace, root: str) -> NodeContext:
    """Return the context with which the plan in a directory was begun.

    Replicas given in ``options`` take the place of the recorded ones.
    """
    from attrs import evolve

    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.config.loading import StoreSettings
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.store.upgrade_guard import upgrade_work
    from rmqpy.upgrade.checks.replica import Replicas
    from rmqpy.upgrade.plan.evidence import current_journal
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.record import load_record

    bare = NodeContext(
        OsFileSystem(),
        upgrade_work(root),
        StoreSettings(store_path_root_dir=root),
        progress=ProgressLine,
        now_ms=now_ms,
    )
    journal = current_journal(bare)
    if journal is None:
        check_store_root(bare.files, root, bare.settings, may_be_empty=True)
        return bare
    record = load_record(bare.files, bare.work, journal.plan_id)
    if record.settings is None:
        return _context_of_earlier_version(options, root, record)
    given = {each.name: each for each in all_replicas(options)}
    recorded = {
        name: _opened(options, name, at)
        for name, at in record.sources.items()
        if name not in given and not at.startswith((DRIVER, "ssh://"))
    }
    replicas = {**recorded, **given}
    return evolve(record.context(bare), source=Replicas(replicas))


def _opened(options: argparse.Namespace, name: str, address: str) -> Replica:
    """Return a replica from which the plan copies, at its recorded place."""
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.checks.replica import LocalReplica, RemoteReplica
    from rmqpy.upgrade.plan.survey import SurveyPlan

    if address.startswith("/"):
        return LocalReplica(OsFileSystem(), SurveyPlan(name=name, root=address, now_ms=now_ms))
    token = read_token(getattr(options, "token_file", None))
    return RemoteReplica(name, address, token, getattr(options, "authority", None), note=note)


def _context_of_earlier_version(
    options: argparse.Namespace, root: str, record: PlanRecord
) -> NodeContext:
    """Return the context for a plan of a version that did not record its settings.

    Raise UpgradeRefusedError if the sizes of files to be built would be a guess.
    """
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
    from rmqpy.upgrade.plan.operations import Derive, OpState

    context = plan_context_of(options)
    node_context = node_context_at(context, root)
    given = {replica.root for replica in context.on_this_host if replica.plan.settings is not None}
    builds = (op for op in record.node.ops if isinstance(op, Derive))
    resumes = bool(getattr(options, "resume", None))
    if resumes and root not in given:
        if any(op.state(node_context) is not OpState.AFTER for op in builds):
            raise UpgradeRefusedError(
                f"found a plan of an earlier rmqpy in {root}, which did not record the sizes of"
                " queue and index files, expected the node's broker.conf; add"
                f" {record.replica}={root} -c {record.replica}=broker.conf, or take the plan back"
                f" with rmqpy upgrade rollback {root}"
            )
    return node_context
