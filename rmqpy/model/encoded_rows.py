"""EncodedRows: the rows of a large table, each encoded once, so that writing the whole table after
the change of one row costs little.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field

from rmqpy.model.steps import Steps, finish

BLOCK_ROWS: Final = 128
_SPARSE: Final = 4
"""How many times as many blocks as the rows need there may be."""


@define(slots=True, eq=False, repr=False)
class _Block:
    """Rows that follow each other, and their texts unless a row has changed since."""

    rows: dict[str, bytes] = field(factory=dict, init=False)
    text: bytes | None = field(default=None, init=False)
    """All rows, each with a separator before it."""
    compact: bytes | None = field(default=None, init=False)
    """The same without line breaks and tabs."""


@define(slots=True, eq=False, repr=False)
class EncodedRows:
    """The encoded rows of a table by name, in the order of a dict with the same changes.

    Rows are kept in blocks of up to ``BLOCK_ROWS``, and a change leads to a new text of its block.
    The texts of the blocks are not joined: each time that would take new memory of the size of the
    table, which costs more than the copy. ``encode`` returns the row of a name.
    """

    _encode: Callable[[str], bytes]
    _separator: bytes = b","
    _stale: OrderedDict[str, None] = field(factory=OrderedDict, init=False)
    """The names of the rows that are to be encoded, new ones in their order."""
    _blocks: dict[_Block, None] = field(factory=dict, init=False)
    """In order; none is empty."""
    _places: dict[str, _Block] = field(factory=dict, init=False)

    def note(self, name: str) -> None:
        """Record that a row was added or replaced."""
        self._stale[name] = None

    def discard(self, name: str) -> None:
        """Record that a row was removed, if there was one."""
        self._stale.pop(name, None)
        block = self._places.pop(name, None)
        if block is None:
            return
        del block.rows[name]
        block.text = block.compact = None
        if not block.rows:
            del self._blocks[block]

    def reset(self, names: Iterable[str]) -> None:
        """Record that these are the names of all rows, and that any of them may be another one."""
        self._clear()
        self._stale = OrderedDict.fromkeys(names)

    def encode_steps(self) -> Steps[None]:
        """Encode the rows that have changed, one in each step. Rows may change meanwhile: a table
        that changes faster than it is encoded is left to :meth:`parts`.
        """
        for _ in range(2 * len(self._stale)):
            if not self._stale:
                return
            name, _none = self._stale.popitem(last=False)
            self._put(name, self._encode(name))
            yield

    def parts(self, *, compact: bool = False) -> list[bytes]:
        """Return the rows with separators between them, in parts. ``compact`` leaves out all line
        breaks and tabs, of which JSON has none within strings.
        """
        while self._stale:
            finish(self.encode_steps())
        if len(self._blocks) > _SPARSE * (1 + len(self._places) // BLOCK_ROWS):
            self._fill_blocks()
        separator = self._separator
        if compact:
            parts = [block.compact or self._compact(block) for block in self._blocks]
            separator = _without_blanks(separator)
        else:
            parts = [block.text or self._text(block) for block in self._blocks]
        if parts:
            parts[0] = parts[0][len(separator) :]
        return parts

    def _put(self, name: str, row: bytes) -> None:
        block = self._places.get(name)
        if block is None:
            block = next(reversed(self._blocks), None)
            if block is None or len(block.rows) >= BLOCK_ROWS:
                block = _Block()
                self._blocks[block] = None
            self._places[name] = block
        block.rows[name] = row
        block.text = block.compact = None

    def _text(self, block: _Block) -> bytes:
        block.text = self._separator + self._separator.join(block.rows.values())
        return block.text

    def _compact(self, block: _Block) -> bytes:
        block.compact = _without_blanks(block.text or self._text(block))
        return block.compact

    def _fill_blocks(self) -> None:
        """Move the rows to new blocks, because removals have left many blocks with few rows."""
        rows = [row for block in self._blocks for row in block.rows.items()]
        self._clear()
        for name, row in rows:
            self._put(name, row)

    def _clear(self) -> None:
        self._blocks.clear()
        self._places.clear()


def _without_blanks(text: bytes) -> bytes:
    return text.translate(None, b"\n\t")
