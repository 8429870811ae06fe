"""The journal of one node: the plan that it carries out, and its progress.

The journal is read to resume after an interruption. The state of a directory is always detected
from its files, never from the journal.

===============  ==============================================================================
state            meaning
===============  ==============================================================================
applying         operations below ``done`` are done, ``done`` may have started
applied          all are done; the undo records are kept, so it can be rolled back
rolling_back     operations from ``done`` on are undone
rolled_back      nothing of the plan, nor of an earlier one, is left
finalized        the undo records are removed
===============  ==============================================================================

:mod:`rmqpy.store.upgrade_guard` has the form of the journal: two copies, overwritten in place by
turns. A new state is written to both, so that a damaged copy costs one step at most, never a state.
A broker does not start while the state is *applying* or *rolling_back*.
"""

from __future__ import annotations

from typing import Any

import attrs
from attrs import define

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.typed_json import check_types
from rmqpy.store.upgrade_guard import (
    APPLYING,
    COPY_BYTES,
    COPY_NAME,
    JOURNAL_NAME,
    ROLLING_BACK,
    JournalCopy,
    encode_copy,
    read_copies,
)

__all__ = ["APPLIED", "APPLYING", "FINALIZED", "ROLLED_BACK", "ROLLING_BACK", "Journal"]

APPLIED = "applied"
ROLLED_BACK = "rolled_back"
FINALIZED = "finalized"
EARLIER_MAX = 100
"""The number of plans that can be rolled back one after the other; their ids fit into a copy."""


@define(slots=True, frozen=True, kw_only=True)
class Journal:
    plan_id: str
    state: str
    done: int = 0
    begun: bool = False
    """True if operation number ``done`` may have changed something."""
    skipped: tuple[int, ...] = ()
    """Operations that were already done when their turn came, in journals of format 1 only."""
    phase: str = ""
    """The phase that the operator has reached: aligned, switched, soaking, left."""
    since_ms: int = 0
    earlier: tuple[str, ...] = ()
    """Plans that were applied before and can still be rolled back, the newest last."""
    fingerprint: str = ""
    """A digest of the log files after the plan was applied; if it differs, rollback is refused."""
    announced: str = ""
    """A command that was begun after the plan was applied and has changed nothing yet."""
    sequence: int = 0
    damage: str = ""
    """What is wrong with the journal on disk, if the other copy or the evidence had to replace it.
    """

    @property
    def is_half_done(self) -> bool:
        return self.state in (APPLYING, ROLLING_BACK)


class DamagedJournalError(StoreError):
    """No copy of the journal can be read."""


def load_journal(files: FileSystem, work: str) -> Journal | None:
    """Return the journal, or None if no plan was applied.

    Raise DamagedJournalError if no copy can be read.
    """
    copies = read_copies(files, work)
    if not copies:
        return None
    damage = "; ".join(f"{each.path}: {each.damage}" for each in copies if each.damage)
    newest = copies[0].content
    if newest is None:
        raise DamagedJournalError(
            f"{work}/{JOURNAL_NAME}",
            f"no copy that can be read ({damage})",
            "the journal of a plan",
            "rmqpy upgrade status says what can be done",
        )
    journal = _decoded(copies[0])
    if damage and newest["format"] != 1:
        # The damaged copy may have been one step ahead.
        begun = journal.begun or journal.state == APPLYING
        journal = attrs.evolve(journal, begun=begun, damage=damage)
    return journal


def save_journal(files: FileSystem, work: str, journal: Journal) -> None:
    """Overwrite the older copy; overwrite both if the plan or its state is another one."""
    copies = read_copies(files, work)
    newest = copies[0].content if copies else None
    same = newest is not None and (newest["plan_id"], newest["state"]) == (
        journal.plan_id,
        journal.state,
    )
    sequence = copies[0].sequence + 1 if copies else 1
    for path in _order(work, copies)[: 1 if same else 2]:
        _write_copy(files, path, attrs.evolve(journal, sequence=sequence, damage=""))
        sequence += 1


def remove_journal(files: FileSystem, work: str) -> None:
    """Remove both copies: no plan was ever started here."""
    for name in (JOURNAL_NAME, COPY_NAME):
        files.unlink(f"{work}/{name}")


def _order(work: str, copies: list[JournalCopy]) -> list[str]:
    """Return the paths of the copies, the one to overwrite first."""
    if copies:
        return [each.path for each in reversed(copies)]
    return [f"{work}/{JOURNAL_NAME}", f"{work}/{COPY_NAME}"]


def _write_copy(files: FileSystem, path: str, journal: Journal) -> None:
    value = attrs.asdict(journal)
    del value["damage"]
    data = encode_copy({**value, "earlier": list(journal.earlier), "skipped": []})
    if not files.exists(path) or files.size_of(path) != COPY_BYTES:
        files.replace_bytes(path, data)
        return
    file = files.open(path)
    try:
        file.write(0, data)
        file.sync()
    finally:
        file.close()


def _decoded(copy: JournalCopy) -> Journal:
    value: dict[str, Any] = dict(copy.content or {})
    try:
        known = {each.name for each in attrs.fields(Journal)}
        value = {name: each for name, each in value.items() if name in known}
        check_types(Journal, value)
        tuples = {name: tuple(value[name]) for name in ("skipped", "earlier")}
        return Journal(**{**value, **tuples})
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedJournalError(
            copy.path,
            f"a journal that cannot be read ({error})",
            "the journal of a plan",
            "rmqpy upgrade status says what can be done",
        ) from None
