"""A member that knows entries to be committed that its group does not have: remove them, so that it
can follow again. The same holds for entries that differ from the group's although both are of one
term, which then had two leaders.

Such a member drops nothing on its own (:mod:`rmqpy.dledger.follower`). When it joins with the data
of another member, its entries after the last common one are removed, and kept until ``finalize``;
its checkpoint then names the last common entry, and the group sends what follows. The common
entries stay, because the quorum that has them may include this member.

Consume queues and key index are set aside, and the next start rebuilds them. A Java broker ignores
units beyond the end of its log when it starts, but leaves their bytes in the files: after a further
start, when the log has grown beyond the place to which they lead, it would take them for messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define

from rmqpy.model.ids import LedgerIndex
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.model.text import count_text
from rmqpy.store.files.paths import BACKUP_SUFFIX, StorePaths
from rmqpy.store.ledger.member_state import DurableEntry, LedgerCheckpoint, MemberFiles
from rmqpy.upgrade.checks.entry_comparison import common_prefix, compare_entries
from rmqpy.upgrade.checks.ledger import read_ledger, topics_after
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError, range_digest
from rmqpy.upgrade.plan.operations import MoveAside, Op, Write
from rmqpy.upgrade.steps.cut_entries import cut_after
from rmqpy.upgrade.steps.plan_context import PlanContext


@define(slots=True, frozen=True)
class DivergedEntries:
    """The operations that remove the entries of a member, and the messages in these entries."""

    ops: tuple[Op, ...]
    topics: Counter[str]
    note: str


def drop_diverged(
    context: PlanContext, replica: LocalReplica, keep: str, *, given_up: bool
) -> DivergedEntries | None:
    """Return what removes the entries that only ``replica`` has and does not drop on its own, or
    None if it has none: the group replaces entries of another term that the member does not know
    to be committed.

    A reference that has no entry instead may only lag: then nothing is removed, except if the
    operator has ``given_up`` messages. Raise UpgradeRefusedError or StoreError for damaged entries.
    """
    reference = context.reference.replica
    common = common_prefix(replica, reference)
    if common is None:
        return None
    node = context.node_context(replica)
    own = read_ledger(node.files, node.settings)
    last = common.last_index
    if own.committed_index <= last and not common.has_same_term:
        return None
    if common.has_same_term and _later_entries_are_equal(replica, reference, last + 1):
        raise UpgradeRefusedError(
            f"entry {last + 1} has the same term on {replica.name} and {reference.name} and is not"
            " the same, and later entries are; expected the same entry: one of them is damaged."
            " rmqpy store fsck of both shows which one, and a running member fetches an entry with"
            f" a wrong CRC again. If both are sound, move {replica.root} away, keep it, and start"
            f" {replica.name} on an empty directory: the group sends it everything that it has"
        )
    topics = topics_after(node.files, own, last)
    del topics[LEADER_MARKER_TOPIC]
    here = (
        f"entries {last + 1} to {own.end_index} are only here"
        f" ({count_text(topics.total(), 'message')}, committed"
        f" up to {own.committed_index})"
    )
    end = _last_index(reference)
    if end <= last and not given_up:
        note = (
            f"{here}, {reference.name} ends at entry {end}: they are kept. If the group has lost"
            f" them and refuses this member as diverged, add --give-up {topics.total()}"
        )
        return DivergedEntries((), Counter(), note)
    kept, ops = cut_after(node.files, own, last, keep, "the group does not have these entries")
    position = kept[-1].base_offset + kept[-1].content_end if kept else 0
    other = f"has others, up to {end}" if end > last else f"ends at entry {end}"
    note = f"{here}, {reference.name} {other}: they are removed"
    checkpoint = _checkpoint(node, last, position, keep)
    return DivergedEntries((*ops, *checkpoint, *_derived(node, keep)), topics, note)


def _later_entries_are_equal(replica: Replica, reference: Replica, index: int) -> bool:
    """Return whether some entries after ``index``, which differs, are the same on both members:
    then they have one history, in which an entry was changed.
    """
    compared = compare_entries(replica, reference)
    assert compared is not None, "they have a common prefix"
    found = sum(group.count for group in compared.conflicts.values())
    last = max(group.last_index for group in compared.conflicts.values())
    end = min(compared.end_one, compared.end_two) if compared.is_complete else last
    return found < end - index + 1


def _last_index(replica: Replica) -> int:
    ledger = replica.survey().manifest.facts.get("ledger") or {}
    return int((ledger.get("last") or {}).get("index", -1))


def _derived(node: NodeContext, keep: str) -> Iterator[Op]:
    paths = StorePaths.from_settings(node.settings)
    for name, folder in (("consumequeue", paths.consume_queue), ("index", paths.index)):
        if node.files.is_dir(folder):
            yield MoveAside(path=folder, to=f"{keep}/{name}", why="the next start rebuilds it")


def _checkpoint(node: NodeContext, last: int, end: int, keep: str) -> Iterator[Op]:
    """Yield the operations after which the checkpoint names ``last``, which ends at ``end``."""
    self_id = node.settings.dledger_self_id
    assert self_id is not None
    member = MemberFiles(node.files, StorePaths.from_settings(node.settings).dledger(self_id))
    path, backup = member.checkpoint_path, member.checkpoint_path + BACKUP_SUFFIX
    if node.files.exists(backup):
        yield MoveAside(path=backup, to=f"{keep}/entries/checkpoint{BACKUP_SUFFIX}")
    index = LedgerIndex(last)
    data = LedgerCheckpoint(index, index, DurableEntry(index, end)).encode()
    yield Write.of(path, range_digest(node.files, path), data, "the last entry in common")
