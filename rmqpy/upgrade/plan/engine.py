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
halfway, so a rollback can be interrupted too. It allocates nothing on the file system of the store.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from rmqpy.audit.scan.directory import LEDGER_PREFIX
from rmqpy.model.errors import StoreError
from rmqpy.store.ledger.classic_prefix import forget_log_marks
from rmqpy.upgrade.plan import undo
from rmqpy.upgrade.plan.evidence import UNKNOWN_FINGERPRINT, current_journal
from rmqpy.upgrade.plan.journal import (
    APPLIED,
    APPLYING,
    EARLIER_MAX,
    FINALIZED,
    ROLLED_BACK,
    ROLLING_BACK,
    DamagedJournalError,
    Journal,
    load_journal,
    remove_journal,
    save_journal,
)
from rmqpy.upgrade.plan.keep import check_newest
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    UpgradeRefusedError,
    fingerprint_log,
    holds_entries,
)
from rmqpy.upgrade.plan.operations import Move, OpState
from rmqpy.upgrade.plan.own_paths import check_own_paths
from rmqpy.upgrade.plan.plan import NodePlan, Plan, op_line
from rmqpy.upgrade.plan.preconditions import check_startable
from rmqpy.upgrade.plan.record import PlanRecord, load_record, save_record
from rmqpy.upgrade.plan.space import missing_to_revert

JOIN = "m0004_join"
"""The step after which a start creates the DLedger log."""


def apply_plan(context: NodeContext, plan: Plan, replica: str, phase: str = "") -> Journal:
    """Apply this node's part, or continue where an interrupted call stopped.

    Raise UpgradeRefusedError if a "before" does not hold (then nothing was changed), or if another
    plan is half done.
    """
    journal = begin_plan(context, plan, replica, phase)
    return journal if journal.state == APPLIED else resume(context)


def begin_plan(
    context: NodeContext, plan: Plan, replica: str, phase: str = "", *, is_checked: bool = False
) -> Journal:
    """Check that this node's part can be carried out, and note in the journal that it begins.

    A plan for several nodes is begun on all of them first: from then on ``rollback`` of each takes
    back this plan, not the one before. With ``is_checked``, :func:`check_plan` was called before.
    Raise UpgradeRefusedError as :func:`apply_plan` does.
    """
    journal = current_journal(context) if is_checked else check_plan(context, plan, replica)
    if journal is not None and journal.plan_id == plan.id:
        if journal.is_half_done or journal.state == APPLIED:
            return journal
    node = plan.node(replica)
    earlier = _keep_earlier(context, journal)
    since_ms = context.now_ms()
    wanted = {op.source[0] for op in node.ops if op.source is not None}
    record = PlanRecord(
        plan=plan,
        replica=replica,
        settings=context.settings,
        configuration=context.configuration,
        sources={name: at for name, at in context.source.addresses.items() if name in wanted},
        phase=phase,
        since_ms=since_ms,
        earlier=earlier,
    )
    started = Journal(
        plan_id=plan.id, state=APPLYING, phase=phase, since_ms=since_ms, earlier=earlier
    )
    with _explained(context, f"the start of plan {plan.id}"):
        save_record(context.files, context.work, record)
        context.files.make_dirs(context.undo_path(plan.id, 0).rpartition("/")[0])
        try:
            save_journal(context.files, context.work, started)
        except OSError:
            if journal is None:
                remove_journal(context.files, context.work)
            raise
    return started


def check_plan(context: NodeContext, plan: Plan, replica: str) -> Journal | None:
    """Check that this node's part can be carried out or continued. Return the present journal.

    A plan for several nodes is checked on all of them before it begins on one.
    """
    node, journal = plan.node(replica), current_journal(context)
    if journal is not None and journal.is_half_done:
        if journal.plan_id != plan.id:
            raise UpgradeRefusedError(
                f"found plan {journal.plan_id} {journal.state} in {node.root}, expected no"
                f" half-done plan; finish it with rmqpy upgrade apply --resume {node.root}, or"
                f" take it back with rmqpy upgrade rollback {node.root}"
            )
        if journal.state == ROLLING_BACK:
            raise _being_rolled_back(context, journal)
    elif journal is None or journal.plan_id != plan.id or journal.state != APPLIED:
        check_newest(context, node)
        check_startable(context, node)
        _refuse_too_many(context, journal)
    return journal


def resume(context: NodeContext) -> Journal:
    """Continue the plan that is half done in the directory.

    Settings and paths are those with which it was begun. Raise UpgradeRefusedError if no plan is
    half done, or if it is being rolled back.
    """
    journal = current_journal(context)
    if journal is None or not journal.is_half_done:
        repaired = _repair(context, journal)
        raise UpgradeRefusedError(
            f"found {_described(journal)} in {_root(context)}, expected a half-done plan; there is"
            f" nothing to resume{repaired}"
        )
    if journal.state == ROLLING_BACK:
        raise _being_rolled_back(context, journal)
    record = load_record(context.files, context.work, journal.plan_id)
    context = record.context(context)
    check_own_paths(context, record.node)
    _adopt_skipped(context, journal)
    return _run(context, record.node, journal)


def remaining(context: NodeContext) -> NodePlan:
    """Return the part of the half-done plan that is left: operations of which none has begun."""
    journal = current_journal(context)
    if journal is None or journal.state != APPLYING:
        raise UpgradeRefusedError(
            f"found {_described(journal)} in {_root(context)}, expected a half-done plan"
        )
    node = load_record(context.files, context.work, journal.plan_id).node
    return attrs.evolve(node, ops=node.ops[journal.done + int(journal.begun) :])


def _run(context: NodeContext, node: NodePlan, journal: Journal) -> Journal:
    files, work = context.files, context.work
    progress = context.progress("applying")
    progress.expect(sum(op.changed_bytes for op in node.ops))
    progress.advance(sum(op.changed_bytes for op in node.ops[: journal.done]))
    for number in range(journal.done, len(node.ops)):
        op = node.ops[number]
        undo_path = context.undo_path(journal.plan_id, number)
        with _explained(context, f"the operation {op_line(op)!r}"):
            if journal.begun:
                op.resume(context, undo_path)
            state = op.state(context)
            if state is OpState.OTHER:
                raise UpgradeRefusedError(
                    f"{op_line(op)}: the directory is neither as before nor as after this"
                    f" operation; take the plan back with rmqpy upgrade rollback {node.root}"
                )
            if state is OpState.AFTER and not journal.begun:
                undo.save_skipped(files, undo_path)
            elif state is OpState.BEFORE:
                op.prepare(context, undo_path)
                journal = attrs.evolve(journal, begun=True)
                save_journal(files, work, journal)
                op.perform(context)
            journal = attrs.evolve(journal, done=number + 1, begun=False)
            save_journal(files, work, journal)
        progress.advance(op.changed_bytes)
    forget_log_marks(files, work.rpartition("/")[0])
    journal = attrs.evolve(journal, state=APPLIED, fingerprint=fingerprint_log(context))
    save_journal(files, work, journal)
    return journal


def roll_back(context: NodeContext, plan_id: str | None = None) -> Journal:
    """Roll back the journal's plan, or continue where an interrupted call stopped.

    The next call rolls back the plan that was applied before it. ``plan_id`` names the plan that
    the operator means. Raise UpgradeRefusedError as :func:`to_roll_back` does.
    """
    rollback = to_roll_back(context, plan_id)
    context, record, journal = rollback.context, rollback.record, rollback.journal
    files, work, node = context.files, context.work, record.node
    _adopt_skipped(context, journal)
    if journal.state != ROLLING_BACK:
        journal = attrs.evolve(
            journal, state=ROLLING_BACK, done=rollback.begun, begun=False, announced=""
        )
        save_journal(files, work, journal)
    progress = context.progress("taking back")
    progress.expect(sum(op.changed_bytes for op in node.ops[: journal.done]))
    for number in range(journal.done - 1, -1, -1):
        op = node.ops[number]
        undo_path = context.undo_path(journal.plan_id, number)
        with _explained(context, f"the operation {op_line(op)!r}"):
            if not undo.is_skipped(files, undo_path):
                op.revert(context, undo_path)
            save_journal(files, work, attrs.evolve(journal, done=number))
        progress.advance(op.changed_bytes)
    if JOIN in record.plan.steps:
        _drop_empty_ledgers(context)
    _drop_keep(context, journal.plan_id, node)
    forget_log_marks(files, work.rpartition("/")[0])
    if journal.earlier:
        before = _earlier_journal(context, journal)
        journal = attrs.evolve(before, fingerprint=fingerprint_log(context))
    else:
        journal = attrs.evolve(journal, state=ROLLED_BACK, done=0)
    save_journal(files, work, journal)
    return journal


def _check_kept(rollback: Rollback) -> None:
    """Raise StoreError if something is missing that a completed operation has kept: without it, the
    rollback would end as if it had restored the directory.
    """
    files, journal = rollback.context.files, rollback.journal
    # The last one that is left of a rollback may have been reverted just before a kill.
    count = journal.done - int(journal.state == ROLLING_BACK)
    moved_on: set[str] = set()
    for number, op in reversed(list(enumerate(rollback.record.node.ops[: max(0, count)]))):
        undo_path = rollback.context.undo_path(journal.plan_id, number)
        kept = op.kept_to_revert(undo_path)
        found = kept is None or kept in moved_on or files.exists(kept)
        if isinstance(op, Move):
            moved_on.add(op.path)
        if found or number in journal.skipped or undo.is_skipped(files, undo_path):
            continue
        raise StoreError(
            str(kept),
            "no such file",
            f"what {op_line(op)!r} has kept to be taken back",
            "restore it from a backup of the directory, then repeat the command",
        )


def _check_space_to_revert(rollback: Rollback) -> None:
    """Raise UpgradeRefusedError if a file system to which files return is too full for them."""
    context, record = rollback.context, rollback.record
    missing = missing_to_revert(context, record.plan.id, record.node.ops[: rollback.begun])
    if missing:
        raise UpgradeRefusedError(
            f"{'; '.join(missing)}: files that the plan moved to another file system return there."
            f" Nothing was changed; then run rmqpy upgrade rollback {_root(context)}"
        )


@attrs.define(slots=True, frozen=True, kw_only=True)
class Rollback:
    """A plan that can be taken back, with its journal; ``context`` has its recorded settings."""

    context: NodeContext
    record: PlanRecord
    journal: Journal

    @property
    def begun(self) -> int:
        """The number of operations that may have changed something; these are undone."""
        return min(self.journal.done + int(self.journal.begun), len(self.record.node.ops))


def to_roll_back(context: NodeContext, plan_id: str | None = None) -> Rollback:
    """Return the plan that :func:`roll_back` takes back, without beginning with it.

    Raise UpgradeRefusedError if there is none, if it is not clear that the operator means it, if
    the log was written to since it was applied, or if there is no space for files that return, and
    StoreError if what the plan has kept to be restored is gone.
    """
    journal = _meant(context, plan_id)
    record = load_record(context.files, context.work, journal.plan_id)
    rollback = Rollback(context=record.context(context), record=record, journal=journal)
    context = rollback.context
    check_own_paths(context, record.node)
    if journal.state == APPLIED:
        _refuse_used(context, journal, plan_id)
    if JOIN in record.plan.steps and holds_entries(context):
        raise _used(context, journal)
    _check_kept(rollback)
    if journal.state != ROLLING_BACK:
        _check_space_to_revert(rollback)
    return rollback


def _meant(context: NodeContext, plan_id: str | None) -> Journal:
    """Return the journal of the plan to take back.

    Raise UpgradeRefusedError if there is none, or if it is not clear that the operator means it.
    """
    journal = current_journal(context)
    root = _root(context)
    if journal is None or journal.state in (ROLLED_BACK, FINALIZED):
        repaired = _repair(context, journal)
        raise UpgradeRefusedError(
            f"found {_described(journal)} in {root}, expected one that is applied or half done;"
            f" there is nothing to roll back{repaired}"
        )
    if plan_id is not None and plan_id != journal.plan_id:
        known = ", ".join(reversed((*journal.earlier, journal.plan_id)))
        raise UpgradeRefusedError(
            f"found plan {journal.plan_id} as the newest in {root}, expected {plan_id}; plans are"
            f" taken back in this order: {known}"
        )
    if journal.announced and plan_id is None:
        record = load_record(context.files, context.work, journal.plan_id)
        raise UpgradeRefusedError(
            f"rmqpy upgrade {journal.announced} was begun in {root} and has changed nothing: there"
            f" is nothing of it to take back. Found plan {journal.plan_id}"
            f" ({', '.join(record.plan.steps)}), which was applied before; if you mean that one,"
            f" run rmqpy upgrade rollback {root} --plan {journal.plan_id}"
        )
    return journal


@contextmanager
def announced(context: NodeContext, command: str) -> Iterator[None]:
    """Note in the journal of an applied plan that a command begins, until the block ends.

    If the command is killed before its own plan begins, the note remains, and a rollback asks which
    of the two is meant. Without a journal nothing is written.
    """
    files, work = context.files, context.work
    journal = load_journal(files, work)
    if journal is None or journal.state != APPLIED:
        yield
        return
    save_journal(files, work, attrs.evolve(journal, announced=command))
    try:
        yield
    finally:
        now = load_journal(files, work)
        if now is not None and now.announced:
            save_journal(files, work, attrs.evolve(now, announced=""))


def finalize(context: NodeContext) -> Journal:
    """Give up the rollback: remove undo records and files moved aside. Safe to repeat."""
    journal = current_journal(context)
    if journal is None or journal.state not in (APPLIED, FINALIZED):
        raise UpgradeRefusedError(
            f"found {_described(journal)} in {_root(context)}, expected an applied plan; only that"
            " is finalized"
        )
    for plan_id in (*journal.earlier, journal.plan_id):
        record = load_record(context.files, context.work, plan_id)
        check_own_paths(record.context(context), record.node)
        _drop_keep(context, plan_id, record.node)
    journal = attrs.evolve(journal, state=FINALIZED, earlier=(), announced="")
    save_journal(context.files, context.work, journal)
    return journal


def _root(context: NodeContext) -> str:
    return context.work.rpartition("/rmqpy/")[0]


def _repair(context: NodeContext, journal: Journal | None) -> str:
    """Write a damaged journal again, so that a broker can start; return what was done."""
    if journal is None or not journal.damage:
        return ""
    save_journal(context.files, context.work, journal)
    return f". The journal was damaged ({journal.damage}) and has been written again"


def _described(journal: Journal | None) -> str:
    return "no plan" if journal is None else f"plan {journal.plan_id}, which is {journal.state},"


def _being_rolled_back(context: NodeContext, journal: Journal) -> UpgradeRefusedError:
    return UpgradeRefusedError(
        f"plan {journal.plan_id} is being rolled back in {_root(context)}; finish with"
        f" rmqpy upgrade rollback {_root(context)}"
    )


@contextmanager
def _explained(context: NodeContext, what: str) -> Iterator[None]:
    """Turn an error of the file system into one that says what can be done."""
    try:
        yield
    except OSError as error:
        root = _root(context)
        found, remedy = _cause(context, error)
        raise StoreError(
            str(error.filename or root),
            found,
            f"to be able to do {what}",
            f"{remedy}, then continue with rmqpy upgrade"
            f" apply --resume {root}, or take the plan back with rmqpy upgrade rollback {root},"
            " which allocates no space in the store",
        ) from error


def _refuse_too_many(context: NodeContext, journal: Journal | None) -> None:
    if journal is not None and journal.state == APPLIED and len(journal.earlier) >= EARLIER_MAX:
        raise UpgradeRefusedError(
            f"found {len(journal.earlier)} plans that can still be rolled back in {_root(context)},"
            f" expected at most {EARLIER_MAX}; run rmqpy upgrade finalize {_root(context)}"
        )


def _keep_earlier(context: NodeContext, journal: Journal | None) -> tuple[str, ...]:
    """Save the journal of an applied plan, which can be rolled back after the next one."""
    if journal is None or journal.state != APPLIED:
        return ()
    journal = attrs.evolve(journal, announced="")
    save_journal(context.files, f"{context.work}/{journal.plan_id}", journal)
    return (*journal.earlier, journal.plan_id)


def _earlier_journal(context: NodeContext, journal: Journal) -> Journal:
    """Return the journal of the plan that was applied before, from its copy or from its record."""
    plan_id = journal.earlier[-1]
    try:
        kept = load_journal(context.files, f"{context.work}/{plan_id}")
    except DamagedJournalError:
        kept = None
    if kept is not None:
        return kept
    record = load_record(context.files, context.work, plan_id)
    return Journal(
        plan_id=plan_id,
        state=APPLIED,
        done=len(record.node.ops),
        phase=record.phase,
        since_ms=record.since_ms,
        earlier=journal.earlier[:-1],
    )


def _adopt_skipped(context: NodeContext, journal: Journal) -> None:
    """Write the skipped operations of a journal of format 1 as undo records."""
    for number in journal.skipped:
        undo.save_skipped(context.files, context.undo_path(journal.plan_id, number))


def _drop_empty_ledgers(context: NodeContext) -> None:
    """Remove the ledgers of a start with the flag; they were found empty."""
    root = context.settings.store_path_root_dir
    for name in context.files.list_dir(root):
        if name.startswith(LEDGER_PREFIX):
            context.files.remove_tree(f"{root}/{name}")


def _refuse_used(context: NodeContext, journal: Journal, plan_id: str | None) -> None:
    if journal.fingerprint == UNKNOWN_FINGERPRINT:
        if plan_id is None:
            raise UpgradeRefusedError(
                f"{journal.damage}. Found no record of the log as plan {journal.plan_id} left it,"
                " expected one, to be sure that no message was written since. If no broker was"
                " started on the directory since then, run rmqpy upgrade rollback"
                f" {_root(context)} --plan {journal.plan_id}; otherwise keep the plan"
            )
    elif journal.fingerprint != fingerprint_log(context):
        raise _used(context, journal)


def _used(context: NodeContext, journal: Journal) -> UpgradeRefusedError:
    return UpgradeRefusedError(
        f"the log in {_root(context)} was written to since plan {journal.plan_id} was applied:"
        " taking it back would lose messages. Go back with rmqpy upgrade leave; otherwise"
        " plan again"
    )


def _drop_keep(context: NodeContext, plan_id: str, node: NodePlan) -> None:
    for part in (f"{context.work}/{plan_id}/undo", node.keep):
        context.files.remove_tree(part)


def _cause(context: NodeContext, error: OSError) -> tuple[str, str]:
    """Return what was found, and what removes it."""
    named = str(error.filename or "")
    place = named if named.startswith("/") else _root(context)
    if error.errno == errno.EDQUOT:
        return "a quota that is used up", "free space, or raise the quota"
    if error.errno != errno.ENOSPC:
        return error.strerror or str(error), "remove the cause"
    free = context.files.disk_usage(place)[1]
    if context.files.free_inodes(place) == 0:
        return (
            f"a file system without free inodes ({free} bytes are free)",
            "remove files that nobody needs (df -i shows the inodes)",
        )
    return f"a full disk ({free} bytes free)", "free space"
