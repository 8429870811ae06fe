"""The journal of a directory whose journal cannot be read: from the evidence of the operations.

The plan is verified by its id, and each operation sees from the files whether it is done. The
first one whose "before" holds is the next one: nothing after it has changed anything, and all
before it are done, the last of them perhaps halfway. From there a plan can be resumed or rolled
back.
"""

from __future__ import annotations

from typing import Final

from rmqpy.model.errors import StoreError
from rmqpy.upgrade.plan.journal import (
    APPLIED,
    APPLYING,
    FINALIZED,
    ROLLED_BACK,
    DamagedJournalError,
    Journal,
    load_journal,
)
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.operations import OpState
from rmqpy.upgrade.plan.record import PlanRecord, load_record, recorded_plans

UNKNOWN_FINGERPRINT: Final = "unknown"
"""The fingerprint of an applied plan whose journal was lost: the log may have been written to."""


def current_journal(context: NodeContext) -> Journal | None:
    """Return the journal, or None if no plan was started.

    If it cannot be read, return what the evidence shows, with the reason in ``damage``. Raise
    DamagedJournalError if there is no evidence either.
    """
    try:
        return load_journal(context.files, context.work)
    except DamagedJournalError as error:
        return _from_evidence(context, error)


def _from_evidence(context: NodeContext, error: DamagedJournalError) -> Journal:
    record = _newest_plan(context)
    if record is None:
        raise DamagedJournalError(
            error.path,
            f"{error.found}, and no plan that was started here",
            "a journal, or the plans of the directory",
            "restore the folder from a backup; if nothing was ever applied here, remove it",
        ) from None
    damage = f"{error.path}: found {error.found}"
    state, done, begun = _progress(record.context(context), record)
    return Journal(
        plan_id=record.plan.id,
        state=state,
        done=done,
        begun=begun,
        phase=record.phase,
        since_ms=record.since_ms,
        earlier=() if state == FINALIZED else record.earlier,
        fingerprint=UNKNOWN_FINGERPRINT,
        damage=damage,
    )


def _progress(context: NodeContext, record: PlanRecord) -> tuple[str, int, bool]:
    """Return the state, the number of operations that are done, and whether the next has begun."""
    node, files = record.node, context.files
    states = [op.state(context) for op in node.ops]
    todo = [number for number, state in enumerate(states) if state is OpState.BEFORE]
    if not files.exists(f"{context.work}/{record.plan.id}/undo") and not files.exists(node.keep):
        # Nothing was kept, or it was removed. Then operations on kept files look undone.
        if len(todo) == len(states):
            return ROLLED_BACK, 0, False
        kept = f"{node.keep}/"
        if all(any(path.startswith(kept) for path in node.ops[each].paths) for each in todo):
            return FINALIZED, len(states), False
    count = todo[0] if todo else len(states)
    if count == len(states) and states[-1:] in ([], [OpState.AFTER]):
        return APPLIED, count, False
    return (APPLYING, count - 1, True) if count else (APPLYING, 0, False)


def _newest_plan(context: NodeContext) -> PlanRecord | None:
    """Return the plan that was started last and can be read."""
    found: list[PlanRecord] = []
    for plan_id in recorded_plans(context.files, context.work):
        try:
            found.append(load_record(context.files, context.work, plan_id))
        except StoreError:
            continue
    followed = {plan_id for record in found for plan_id in record.earlier}
    newest = [record for record in found if record.plan.id not in followed]
    return max(newest, key=lambda each: each.since_ms) if newest else None
