"""DLedger entries: header, index unit, and filler. The tables are in :mod:`rmqpy.codec.layout`.

Java never computes chainCrc and bodyCrc: like channel, they are written as 0 and not checked. The
files of all members of a group are identical byte for byte, so the filler consists of zeros up to
the end of the file.
"""

from __future__ import annotations

import struct
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.model.values import define

Buffer = bytes | bytearray | memoryview

ENTRY_HEADER: Final = struct.Struct(">iiqqqiiii")
INDEX_UNIT: Final = struct.Struct(">iqiqq")
_FILLER: Final = struct.Struct(">ii")


@define(slots=True, frozen=True, kw_only=True)
class EntryHeader:
    """The 48 bytes before an entry's body. ``size`` includes them."""

    magic: int = layout.ENTRY_MAGIC
    size: int
    index: LedgerIndex
    term: Term
    position: int
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0
    body_length: int

    def encode(self) -> bytes:
        return ENTRY_HEADER.pack(
            self.magic,
            self.size,
            self.index,
            self.term,
            self.position,
            self.channel,
            self.chain_crc,
            self.body_crc,
            self.body_length,
        )


@define(slots=True, frozen=True)
class IndexUnit:
    """The location of an entry, stored as unit number ``index`` of the index files."""

    position: int
    size: int
    index: LedgerIndex
    term: Term

    def encode(self) -> bytes:
        return encode_index_unit(self.position, self.size, self.index, self.term)


def encode_entry_header(index: int, term: int, position: int, body_length: int) -> bytes:
    size = layout.ENTRY_HEADER_SIZE + body_length
    return ENTRY_HEADER.pack(layout.ENTRY_MAGIC, size, index, term, position, 0, 0, 0, body_length)


def encode_index_unit(position: int, size: int, index: int, term: int) -> bytes:
    """Return the index unit of an entry. ``size`` includes the entry's header."""
    return INDEX_UNIT.pack(layout.ENTRY_MAGIC, position, size, index, term)


def encode_filler_head(rest: int) -> bytes:
    """Return the head of the filler of the last ``rest`` bytes of a data file; zeros follow."""
    assert rest >= layout.ENTRY_FILLER_SIZE, f"no space for a filler: {rest} bytes left"
    return _FILLER.pack(layout.ENTRY_FILLER_MAGIC, rest)


def decode_entry_header(view: Buffer, position: int, offset: int) -> EntryHeader:
    """Return the header of the entry at ``position`` of ``view``; its ledger offset is ``offset``.

    Raises InvalidRecordError if the magic is wrong, the size does not match the body length or
    exceeds ``view``, or pos differs from ``offset``.
    """
    rest = len(view) - position
    if rest < layout.ENTRY_HEADER_SIZE:
        raise InvalidRecordError(
            offset, "entry", f"{rest} bytes", f"at least {layout.ENTRY_HEADER_SIZE}"
        )
    magic, size, index, term, pos, channel, chain_crc, body_crc, body_length = (
        ENTRY_HEADER.unpack_from(view, position)
    )
    if magic != layout.ENTRY_MAGIC:
        raise InvalidRecordError(offset, "magic", magic, layout.ENTRY_MAGIC)
    if not layout.ENTRY_HEADER_SIZE <= size <= rest:
        raise InvalidRecordError(offset, "size", size, f"{layout.ENTRY_HEADER_SIZE}..{rest}")
    if body_length != size - layout.ENTRY_HEADER_SIZE:
        raise InvalidRecordError(offset, "bodyLength", body_length, size - layout.ENTRY_HEADER_SIZE)
    if pos != offset:
        raise InvalidRecordError(offset, "pos", pos, offset)
    return EntryHeader(
        magic=magic,
        size=size,
        index=LedgerIndex(index),
        term=Term(term),
        position=pos,
        channel=channel,
        chain_crc=chain_crc,
        body_crc=body_crc,
        body_length=body_length,
    )


def decode_index_unit(view: Buffer, position: int, offset: int) -> IndexUnit:
    """Return the unit at ``position`` of ``view``, which is byte ``offset`` of the index.

    Raises InvalidRecordError if the magic is wrong or the unit's index does not match its location
    (``offset`` is 32 times the index).
    """
    if len(view) - position < layout.INDEX_UNIT_SIZE:
        raise InvalidRecordError(offset, "index unit", f"{len(view) - position} bytes", "32")
    magic, pos, size, index, term = INDEX_UNIT.unpack_from(view, position)
    if magic != layout.ENTRY_MAGIC:
        raise InvalidRecordError(offset, "magic", magic, layout.ENTRY_MAGIC)
    if index * layout.INDEX_UNIT_SIZE != offset:
        raise InvalidRecordError(offset, "index", index, offset // layout.INDEX_UNIT_SIZE)
    return IndexUnit(pos, size, LedgerIndex(index), Term(term))
