"""The folder for what a plan moves aside or builds ahead of time.

It is named after the plan that was applied before. A group may switch and leave several times with
the same log; so no two plans of a directory share a folder, whose content ``finalize`` and a
rollback remove, and plans of different times have different ids, after which their undo records are
named.
"""

from __future__ import annotations

from typing import Final

from rmqpy.upgrade.plan.evidence import current_journal
from rmqpy.upgrade.plan.journal import APPLIED, FINALIZED
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.record import load_record

_PREFIX: Final = "keep-after-"
_NO_PLAN: Final = "none"


def folder_after(work: str, state: str, plan_id: str) -> str:
    """Return the folder of the next plan, given the state and the id of the newest one."""
    before = plan_id if state in (APPLIED, FINALIZED) else _NO_PLAN
    return f"{work}/{_PREFIX}{before}"


def keep_folder(context: NodeContext) -> str:
    """Return the folder of the next plan, or that of a half-done one: made again, it is the same.

    Raise StoreError if the plan that is half done cannot be read.
    """
    journal = current_journal(context)
    if journal is None:
        return folder_after(context.work, "", "")
    if journal.is_half_done:
        return load_record(context.files, context.work, journal.plan_id).node.keep
    return folder_after(context.work, journal.state, journal.plan_id)


def check_newest(context: NodeContext, node: NodePlan) -> None:
    """Raise UpgradeRefusedError if another plan was applied, or taken back, since this one was
    made: even if the files are the same again, what this one keeps would mix with that of others.

    The newest plan that is applied passes.
    """
    found, expected = (_predecessor(each) for each in (node.keep, keep_folder(context)))
    if found and found != expected and not _is_applied(context, node):
        raise UpgradeRefusedError(
            f"found a plan for {node.root} that follows {found}, expected one that follows"
            f" {expected}, the newest that is applied there; nothing was changed. Plan again"
        )


def _is_applied(context: NodeContext, node: NodePlan) -> bool:
    journal = current_journal(context)
    if journal is None or journal.state != APPLIED:
        return False
    return load_record(context.files, context.work, journal.plan_id).node == node


def _predecessor(keep: str) -> str:
    """Return the plan after which a folder is named, or "" for one of an earlier version."""
    name = keep.rpartition("/")[2]
    if not name.startswith(_PREFIX):
        return ""
    before = name.removeprefix(_PREFIX)
    return "no plan" if before == _NO_PLAN else f"plan {before}"
