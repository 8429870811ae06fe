"""``currterm`` and ``checkpoint``: the files of a DLedger member in addition to its entries.

Both are property files (``key=value`` lines) with a second file, ``.bak``:

==============  ==========================================================================
``currterm``    ``voteLeader=<id or empty>``, ``currTerm=<n>``; durable before a vote is
                sent. ``.bak`` is a copy
``checkpoint``  ``committedIndex=<n>``, ``endIndex=<n>``; every 3 s and at shutdown.
                ``.bak`` is the previous version
==============  ==========================================================================

Java keeps the previous version of ``currterm`` in ``.bak`` as well, which is usually the same term
without the vote. Read instead of a damaged file, it would let a member vote twice in a term.
"""

from __future__ import annotations

from attrs import define, field

from rmqpy.dledger.state import UNKNOWN_VOTE, HardState
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.store.files.atomic import BACKUP_SUFFIX, read_with_backup, write_atomically


@define(slots=True, eq=False, repr=False)
class MemberFiles:
    """The two files of one member. ``directory`` is ``<root>/dledger-<selfId>``."""

    files: FileSystem
    directory: str
    _saved: tuple[int, int] = field(default=(-2, -2))

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
        pairs = self._read_pairs(self._checkpoint)
        if pairs is None:
            return LedgerIndex(-1)
        return LedgerIndex(_number(pairs, "committedIndex", self._checkpoint))

    def save_checkpoint(self, committed_index: int, end_index: int) -> None:
        """Write the checkpoint, unless nothing has changed."""
        current = (committed_index, end_index)
        if current != self._saved:
            text = f"committedIndex={committed_index}\nendIndex={end_index}\n"
            write_atomically(self.files, self._checkpoint, text.encode())
            self._saved = current

    @property
    def _current_term(self) -> str:
        return f"{self.directory}/currterm"

    @property
    def _checkpoint(self) -> str:
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
