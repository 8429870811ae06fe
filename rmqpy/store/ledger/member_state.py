"""``currterm`` and ``checkpoint``: the files of a DLedger member in addition to its entries.

Both are property files (``key=value`` lines) with a second file, ``.bak``:

==============  ==========================================================================
``currterm``    ``voteLeader=<id or empty>``, ``currTerm=<n>``; durable before a vote is
                sent. ``.bak`` is a copy
``checkpoint``  ``committedIndex=<n>``, ``endIndex=<n>``; every 3 s and at shutdown.
                ``.bak`` is the previous version. rmqpy adds ``durableIndex=<n>`` and
                ``durableOffset=<n>``, which Java ignores and does not write
==============  ==========================================================================

Java's checkpoint does not show what has been synced: entries may be committed that are only in page
caches. ``durableIndex`` is the last entry that was both committed and synced on this member, and
``durableOffset`` is where it ends. A log that ends before it has lost entries by damage. After a
clean stop, everything was synced, so there Java's ``committedIndex`` is as good.

Java keeps the previous version of ``currterm`` in ``.bak`` as well, which is usually the same term
without the vote. Read instead of a damaged file, it would let a member vote twice in a term.
"""

from __future__ import annotations

from attrs import define, field

from rmqpy.dledger.state import UNKNOWN_VOTE, HardState
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.store.files.atomic import read_with_backup, write_atomically
from rmqpy.store.files.paths import BACKUP_SUFFIX

_DURABLE_INDEX, _DURABLE_OFFSET = "durableIndex", "durableOffset"


@define(slots=True, frozen=True)
class DurableEntry:
    """The last entry that was committed and durable on this member, and the offset after it (0 if
    that is unknown).
    """

    index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    offset: int = 0


@define(slots=True, frozen=True)
class LedgerCheckpoint:
    """The content of ``checkpoint``. ``durable`` is None if Java has written it."""

    committed_index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    end_index: LedgerIndex = LedgerIndex(-1)  # noqa: RUF009 (a NewType)
    durable: DurableEntry | None = None

    def encode(self) -> bytes:
        lines: dict[str, int] = {
            "committedIndex": self.committed_index,
            "endIndex": self.end_index,
        }
        if self.durable is not None:
            lines[_DURABLE_INDEX] = self.durable.index
            lines[_DURABLE_OFFSET] = self.durable.offset
        return "".join(f"{key}={value}\n" for key, value in lines.items()).encode()


@define(slots=True, eq=False, repr=False)
class MemberFiles:
    """The two files of one member. ``directory`` is ``<root>/dledger-<selfId>``."""

    files: FileSystem
    directory: str
    _saved: LedgerCheckpoint | None = field(default=None)

    def load_hard_state(self) -> HardState:
        """Return the stored state, or a new one if there is none. Raises StoreError if it cannot be
        read. If only the backup can, the vote of its term is ``UNKNOWN_VOTE``.
        """
        path = self._current_term
        pairs = self._read_pairs(path)
        if pairs is None:
            return HardState()
        term = Term(_number(pairs, "currTerm", path))
        vote = pairs.get("voteLeader") or None
        return HardState(term, vote if self._is_readable(path) else UNKNOWN_VOTE)

    def save_hard_state(self, state: HardState) -> None:
        """Store the state durably, because a member that lost its vote might vote twice."""
        text = f"voteLeader={state.voted_for or ''}\ncurrTerm={state.current_term}\n"
        for path in (self._current_term, self._current_term + BACKUP_SUFFIX):
            self.files.replace_bytes(path, text.encode())

    def load_committed_index(self) -> LedgerIndex:
        """Return the committed index of the checkpoint, or -1 if there is no checkpoint."""
        return self.load_checkpoint().committed_index

    def load_checkpoint(self) -> LedgerCheckpoint:
        """Return the checkpoint, or one without entries if there is none. Raises StoreError."""
        path = self.checkpoint_path
        pairs = self._read_pairs(path)
        if pairs is None:
            return LedgerCheckpoint()
        durable = None
        if _DURABLE_INDEX in pairs:
            index = LedgerIndex(_number(pairs, _DURABLE_INDEX, path))
            durable = DurableEntry(index, _number(pairs, _DURABLE_OFFSET, path))
        end = _number(pairs, "endIndex", path) if "endIndex" in pairs else -1
        committed = _number(pairs, "committedIndex", path)
        return LedgerCheckpoint(LedgerIndex(committed), LedgerIndex(end), durable)

    def begin(self) -> None:
        """Write a checkpoint without entries, unless there is one. Raises StoreError."""
        if self._read_pairs(self.checkpoint_path) is None:
            self.save_checkpoint(LedgerCheckpoint(durable=DurableEntry()))

    def save_checkpoint(self, checkpoint: LedgerCheckpoint) -> None:
        """Write the checkpoint, unless nothing has changed."""
        if checkpoint == self._saved:
            return
        write_atomically(self.files, self.checkpoint_path, checkpoint.encode())
        self._saved = checkpoint

    @property
    def _current_term(self) -> str:
        return f"{self.directory}/currterm"

    @property
    def checkpoint_path(self) -> str:
        return f"{self.directory}/checkpoint"

    def _is_readable(self, path: str) -> bool:
        """Return whether the file itself has content that can be decoded."""
        try:
            return self.files.exists(path) and bool(_decode_pairs(self.files.read_bytes(path)))
        except ValueError:
            return False

    def _read_pairs(self, path: str) -> dict[str, str] | None:
        return read_with_backup(self.files, path, _decode_pairs)


def _decode_pairs(raw: bytes) -> dict[str, str]:
    """Return the ``key=value`` lines as a dictionary. Raises ValueError if there is none."""
    lines = [line.partition("=") for line in raw.decode().splitlines() if "=" in line]
    if not lines:
        raise ValueError("it has no key=value line")
    return {key.strip(): value.strip() for key, _, value in lines}


def _number(pairs: dict[str, str], key: str, path: str) -> int:
    try:
        return int(pairs[key])
    except (KeyError, ValueError):
        raise StoreError(
            path,
            f"{key}={pairs.get(key)}",
            f"a whole number for {key}",
            "restore the file from its .bak",
        ) from None
