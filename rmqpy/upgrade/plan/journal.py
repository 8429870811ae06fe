"""The journal of one node: the plan that it carries out, and its progress.

The journal is read to resume after an interruption. The state of a directory is always detected
from its files, never from the journal.

``<storePathRootDir>/rmqpy/upgrade/journal.json``:

===============  ==============================================================================
state            meaning
===============  ==============================================================================
applying         operations below ``done`` are done, ``done`` may have started
applied          all are done; the undo records are kept, so it can be rolled back
rolling_back     operations from ``done`` on are undone
rolled_back      nothing of the plan, nor of an earlier one, is left
finalized        the undo records are removed
===============  ==============================================================================

A broker does not start while the state is *applying* or *rolling_back*
(:func:`rmqpy.store.upgrade_guard.check_no_unfinished_upgrade`).
"""

from __future__ import annotations

import json
from typing import Any

from attrs import define

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.upgrade_guard import APPLYING, JOURNAL_NAME, ROLLING_BACK

__all__ = ["APPLIED", "APPLYING", "FINALIZED", "ROLLED_BACK", "ROLLING_BACK", "Journal"]

APPLIED = "applied"
ROLLED_BACK = "rolled_back"
FINALIZED = "finalized"
JOURNAL_FORMAT = 1


@define(slots=True, frozen=True, kw_only=True)
class Journal:
    plan_id: str
    state: str
    done: int = 0
    begun: bool = False
    """True if operation number ``done`` may have changed something."""
    skipped: tuple[int, ...] = ()
    """Operations that were already done when their turn came; a rollback leaves them alone."""
    phase: str = ""
    """The phase that the operator has reached: aligned, switched, soaking, left."""
    since_ms: int = 0
    earlier: tuple[str, ...] = ()
    """Plans that were applied before and can still be rolled back, the newest last."""
    fingerprint: str = ""
    """A digest of the log files after the plan was applied; if it differs, rollback is refused."""

    @property
    def is_half_done(self) -> bool:
        return self.state in (APPLYING, ROLLING_BACK)


def load_journal(files: FileSystem, work: str) -> Journal | None:
    """Return the journal, or None if no plan was applied. Raise StoreError if it is unreadable."""
    path = f"{work}/{JOURNAL_NAME}"
    if not files.exists(path):
        return None
    try:
        value: dict[str, Any] = json.loads(files.read_bytes(path))
        found = value.pop("format")
        if found != JOURNAL_FORMAT:
            raise ValueError(f"format {found}")
        tuples = {name: tuple(value[name]) for name in ("skipped", "earlier")}
        return Journal(**{**value, **tuples})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            path,
            f"a journal that cannot be read ({error})",
            f"a journal of format {JOURNAL_FORMAT}",
            "use the rmqpy version that wrote it",
        ) from None


def save_journal(files: FileSystem, work: str, journal: Journal) -> None:
    value = {
        "format": JOURNAL_FORMAT,
        "plan_id": journal.plan_id,
        "state": journal.state,
        "done": journal.done,
        "begun": journal.begun,
        "skipped": list(journal.skipped),
        "phase": journal.phase,
        "since_ms": journal.since_ms,
        "earlier": list(journal.earlier),
        "fingerprint": journal.fingerprint,
    }
    files.replace_bytes(f"{work}/{JOURNAL_NAME}", json.dumps(value, indent=1).encode())
