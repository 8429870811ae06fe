"""Apply one node's part of a plan, or roll it back; both can be resumed after a kill at any point.

For each operation the engine checks whether the directory is *before* or *after* it, saves what
will be lost, notes the start in the journal, performs it, and notes the end. After a kill:

==========  ============================================================================
begun       action
==========  ============================================================================
no          the operation has changed nothing; its undo record is written again
yes         its undo record is complete: back to *before*, and perform again
==========  ============================================================================

A rollback reverts the operations in reverse order. Each can be reverted from *before*, *after*, or
halfway, so a rollback can be interrupted too.
"""

from __future__ import annotations

import json

import attrs
from attrs import define, field

from rmqpy.model.errors import RmqError
from rmqpy.store.ledger.classic_prefix import forget_log_marks
from rmqpy.upgrade.plan.journal import (
    APPLIED,
    APPLYING,
    FINALIZED,
    ROLLED_BACK,
    ROLLING_BACK,
    Journal,
    load_journal,
    save_journal,
)
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError, fingerprint_log
from rmqpy.upgrade.plan.operations import Op, OpState, Patch
from rmqpy.upgrade.plan.own_paths import check_own_paths
from rmqpy.upgrade.plan.plan import NodePlan, Plan, op_line

JOIN = "m0004_join"
"""The step after which a start creates the DLedger log."""


def verify_preconditions(context: NodeContext, node: NodePlan) -> list[str]:
    """Return the lines of all operations whose "before" does not hold now. Change nothing.

    Operations that depend on an earlier one of the plan are not checked.
    """
    touched = _ModifiedPaths()
    found = []
    for op in node.ops:
        if not touched.by_earlier(op) and op.state(context) is OpState.OTHER:
            found.append(op_line(op))
        touched.add(op)
    return found


def apply_plan(context: NodeContext, plan: Plan, replica: str, phase: str = "") -> Journal:
    """Apply this node's part, or continue where an interrupted call stopped.

    Raise UpgradeRefusedError if a "before" does not hold (then nothing was changed), or if another
    plan is half done.
    """
    node = plan.node(replica)
    journal = load_journal(context.files, context.work)
    if journal is not None and journal.is_half_done:
        if journal.plan_id != plan.id:
            raise UpgradeRefusedError(
                f"plan {journal.plan_id} is {journal.state} in this directory; finish it with"
                " rmqpy upgrade apply --resume, or take it back with rmqpy upgrade rollback"
            )
        if journal.state == ROLLING_BACK:
            raise UpgradeRefusedError(
                f"plan {plan.id} is being rolled back here; finish with rmqpy upgrade rollback"
            )
    elif journal is not None and journal.plan_id == plan.id and journal.state == APPLIED:
        return journal
    else:
        check_own_paths(context, node)
        wrong = verify_preconditions(context, node)
        if wrong:
            raise UpgradeRefusedError(
                "the directory has changed since the plan was created; plan again. First"
                f" difference of {len(wrong)}: {wrong[0]}"
            )
        earlier = _keep_earlier(context, journal)
        journal = Journal(
            plan_id=plan.id,
            state=APPLYING,
            phase=phase,
            since_ms=context.now_ms(),
            earlier=earlier,
        )
        _save_plan(context, plan, replica)
        save_journal(context.files, context.work, journal)
    return _run(context, node, journal)


def _run(context: NodeContext, node: NodePlan, journal: Journal) -> Journal:
    files, work = context.files, context.work
    progress = context.progress("applying")
    progress.expect(sum(op.changed_bytes for op in node.ops))
    progress.advance(sum(op.changed_bytes for op in node.ops[: journal.done]))
    for number in range(journal.done, len(node.ops)):
        op = node.ops[number]
        undo_path = context.undo_path(journal.plan_id, number)
        if journal.begun:
            op.resume(context, undo_path)
        state = op.state(context)
        if state is OpState.OTHER:
            raise UpgradeRefusedError(
                f"{op_line(op)}: the directory is neither as before nor as after this operation;"
                " take the plan back with rmqpy upgrade rollback"
            )
        skipped = journal.skipped
        if state is OpState.AFTER and not journal.begun:
            skipped = (*skipped, number)
        elif state is OpState.BEFORE:
            op.prepare(context, undo_path)
            journal = attrs.evolve(journal, begun=True)
            save_journal(files, work, journal)
            op.perform(context)
        journal = attrs.evolve(journal, done=number + 1, begun=False, skipped=skipped)
        save_journal(files, work, journal)
        progress.advance(op.changed_bytes)
    forget_log_marks(files, work.rpartition("/")[0])
    journal = attrs.evolve(journal, state=APPLIED, fingerprint=fingerprint_log(context))
    save_journal(files, work, journal)
    return journal


def roll_back(context: NodeContext) -> Journal:
    """Roll back the journal's plan, or continue where an interrupted call stopped.

    The next call rolls back the plan that was applied before it. Raise UpgradeRefusedError if the
    log was written to since the plan was applied.
    """
    files, work = context.files, context.work
    journal = load_journal(files, work)
    if journal is None or journal.state in (ROLLED_BACK, FINALIZED):
        state = "no plan was carried out" if journal is None else f"the plan is {journal.state}"
        raise UpgradeRefusedError(f"{state} in this directory, so there is nothing to roll back")
    plan, replica = load_plan(context, journal.plan_id)
    node = plan.node(replica)
    if journal.state == APPLIED:
        _refuse_used(context, journal)
    if journal.state != ROLLING_BACK:
        begun = min(journal.done + int(journal.begun), len(node.ops))
        journal = attrs.evolve(journal, state=ROLLING_BACK, done=begun, begun=False)
        save_journal(files, work, journal)
    progress = context.progress("taking back")
    progress.expect(sum(op.changed_bytes for op in node.ops[: journal.done]))
    for number in range(journal.done - 1, -1, -1):
        op = node.ops[number]
        if number not in journal.skipped:
            op.revert(context, context.undo_path(journal.plan_id, number))
        save_journal(files, work, attrs.evolve(journal, done=number))
        progress.advance(op.changed_bytes)
    if JOIN in plan.steps:
        _set_empty_ledgers_aside(context, node)
    _drop_keep(context, journal.plan_id, node)
    forget_log_marks(files, work.rpartition("/")[0])
    if journal.earlier:
        before = load_journal(files, f"{work}/{journal.earlier[-1]}")
        assert before is not None, "an earlier journal is kept until it is rolled back or final"
        journal = attrs.evolve(before, fingerprint=fingerprint_log(context))
    else:
        journal = attrs.evolve(journal, state=ROLLED_BACK, done=0, skipped=())
    save_journal(files, work, journal)
    return journal


def finalize(context: NodeContext) -> Journal:
    """Give up the rollback: remove undo records and files moved aside. Safe to repeat."""
    journal = load_journal(context.files, context.work)
    if journal is None or journal.state not in (APPLIED, FINALIZED):
        state = "no plan was carried out" if journal is None else f"the plan is {journal.state}"
        raise UpgradeRefusedError(f"{state} in this directory: only an applied plan is finalized")
    for plan_id in (*journal.earlier, journal.plan_id):
        plan, replica = load_plan(context, plan_id)
        _drop_keep(context, plan_id, plan.node(replica))
    journal = attrs.evolve(journal, state=FINALIZED, earlier=())
    save_journal(context.files, context.work, journal)
    return journal


def load_plan(context: NodeContext, plan_id: str) -> tuple[Plan, str]:
    """Return the plan that was started here, and this node's name in it."""
    path = f"{context.work}/{plan_id}/plan.json"
    if not context.files.exists(path):
        raise RmqError(f"{path} is missing: restore it, the journal refers to it")
    value = json.loads(context.files.read_bytes(path))
    return Plan.from_json(value["plan"]), str(value["replica"])


def _save_plan(context: NodeContext, plan: Plan, replica: str) -> None:
    value = {"plan": plan.to_json(), "replica": replica}
    path = f"{context.work}/{plan.id}/plan.json"
    context.files.replace_bytes(path, json.dumps(value, indent=1).encode())


def _keep_earlier(context: NodeContext, journal: Journal | None) -> tuple[str, ...]:
    """Save the journal of an applied plan, which can be rolled back after the next one."""
    if journal is None or journal.state != APPLIED:
        return ()
    save_journal(context.files, f"{context.work}/{journal.plan_id}", journal)
    return (*journal.earlier, journal.plan_id)


def _set_empty_ledgers_aside(context: NodeContext, node: NodePlan) -> None:
    """Move aside the ledgers of a start with the flag; :func:`_refuse_used` found them empty."""
    root = context.settings.store_path_root_dir
    for name in context.files.list_dir(root):
        if name.startswith("dledger-"):
            context.files.make_dirs(node.keep)
            context.files.rename(f"{root}/{name}", f"{node.keep}/{name}")


def _refuse_used(context: NodeContext, journal: Journal) -> None:
    if journal.fingerprint != fingerprint_log(context):
        raise UpgradeRefusedError(
            f"the log was written to since plan {journal.plan_id} was applied: taking it back would"
            " lose messages. Leave DLedger with rmqpy upgrade leave; otherwise plan again"
        )


def _drop_keep(context: NodeContext, plan_id: str, node: NodePlan) -> None:
    for part in (f"{context.work}/{plan_id}/undo", node.keep):
        context.files.remove_tree(part)


@define(slots=True)
class _ModifiedPaths:
    """The files, folders and ranges inside files that earlier operations change.

    ``above`` has their parent folders.
    """

    places: set[str] = field(factory=set)
    above: set[str] = field(factory=set)
    ranges: dict[str, list[tuple[int, int]]] = field(factory=dict)

    def by_earlier(self, op: Op) -> bool:
        if isinstance(op, Patch):
            for start, end in self.ranges.get(op.path, ()):
                if op.start < end and start < op.end:
                    return True
        elif op.path in self.ranges:
            return True
        if op.path in self.above:
            return True
        return any(place in self.places for place in _with_folders(op.path))

    def add(self, op: Op) -> None:
        if isinstance(op, Patch):
            self.ranges.setdefault(op.path, []).append((op.start, op.end))
            self.above.update(_with_folders(op.path)[1:])
            return
        for path in (op.path, getattr(op, "to", op.path)):
            self.places.add(path)
            self.above.update(_with_folders(path)[1:])


def _with_folders(path: str) -> list[str]:
    """Return the path and all its parent folders."""
    found = []
    while path:
        found.append(path)
        path = path.rpartition("/")[0]
    return found
