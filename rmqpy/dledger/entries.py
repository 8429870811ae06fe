"""Entries of the ledger: single entries, and the run of a batch push, which is kept in one piece.

A run contains the bytes of its entries as in the files, which are the same for every follower; a
follower's run contains their index units, too. A run is also a sequence of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from attrs import define, field

from rmqpy.codec.backend import encode_run
from rmqpy.codec.entry import EntryHeader, decode_entry_header, encode_entry_header
from rmqpy.codec.entry_batch import RunSpan
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.model.ids import LedgerIndex, Term

Buffer = bytes | bytearray | memoryview


@define(slots=True, frozen=True)
class Entry:
    """An entry of the ledger. Its bytes in the data file are ``header.encode()`` and ``body``."""

    header: EntryHeader
    body: Buffer

    @classmethod
    def of(cls, index: int, term: int, position: int, body: Buffer) -> Entry:
        """Return an entry with the constant fields set."""
        header = EntryHeader(
            size=ENTRY_HEADER_SIZE + len(body),
            index=LedgerIndex(index),
            term=Term(term),
            position=position,
            body_length=len(body),
        )
        return cls(header, body)

    @property
    def index(self) -> LedgerIndex:
        return self.header.index

    @property
    def term(self) -> Term:
        return self.header.term

    @property
    def position(self) -> int:
        return self.header.position

    @property
    def size(self) -> int:
        return self.header.size

    @property
    def end_offset(self) -> int:
        return self.header.position + self.header.size

    def encode_header(self) -> bytes:
        """Return the 48 bytes before the body."""
        header = self.header
        return encode_entry_header(header.index, header.term, header.position, len(self.body))


@define(slots=True, frozen=True, eq=False, repr=False)
class EntryRun(Sequence[Entry]):
    """Consecutive entries in one piece."""

    span: RunSpan
    data: bytes
    """The bytes of the entries, including headers, as in a data file."""

    units: bytes = b""
    """The index units, 32 bytes per entry; empty in a run that is only sent."""

    _text: list[bytes] = field(factory=list, init=False)

    @property
    def text(self) -> bytes:
        """The text between the brackets of a push to a Java member, encoded on first use."""
        if not self._text:
            self._text.append(encode_run(self.span, self.data))
        return self._text[0]

    @property
    def first_index(self) -> LedgerIndex:
        return LedgerIndex(self.span.first_index)

    @property
    def last_index(self) -> LedgerIndex:
        return LedgerIndex(self.span.first_index + self.span.count - 1)

    @property
    def last_term(self) -> Term:
        return Term(self.span.last_term)

    @property
    def position(self) -> int:
        """The position of the first entry."""
        return self.span.first_position

    @property
    def size(self) -> int:
        """The size of all entries."""
        return self.span.size

    @property
    def end_offset(self) -> int:
        return self.span.first_position + self.span.size

    def __len__(self) -> int:
        return self.span.count

    def __iter__(self) -> Iterator[Entry]:
        data = self.data
        place = 0
        while place < self.span.size:
            header = decode_entry_header(data, place, self.position + place)
            yield Entry(header, data[place + ENTRY_HEADER_SIZE : place + header.size])
            place += header.size

    @overload
    def __getitem__(self, number: int) -> Entry: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Entry, ...]: ...

    def __getitem__(self, number: int | slice) -> Entry | tuple[Entry, ...]:
        if number == 0:
            header = decode_entry_header(self.data, 0, self.position)
            return Entry(header, self.data[ENTRY_HEADER_SIZE : header.size])
        return tuple(self)[number]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.span)


Part = Entry | EntryRun


def as_singletons(parts: Iterable[Part]) -> Iterator[Entry]:
    """Yield the entries of ``parts``, which are single entries and runs."""
    for part in parts:
        if isinstance(part, EntryRun):
            yield from part
        else:
            yield part


def first_of(part: Part) -> LedgerIndex:
    """Return the index of the first entry."""
    return part.first_index if isinstance(part, EntryRun) else part.index


def last_of(part: Part) -> tuple[LedgerIndex, Term]:
    """Return the index and term of the last entry."""
    if isinstance(part, EntryRun):
        return part.last_index, part.last_term
    return part.index, part.term
