"""Runs: consecutive entries of a data file, and their form in a batch push.

The text is a JSON list in which each entry has the form that fastjson writes: names in alphabetical
order, no blanks, the body in Base64::

    [{"body":"aGk=","bodyCrc":0,"chainCrc":0,"channel":0,"index":2,"magic":1,"pos":100,"size":50,"term":3},…]

Both directions exist in C too (``native/push.c``): take them from :mod:`rmqpy.codec.backend`.

Invariants: indexes are consecutive, terms never decrease, and each entry begins where the previous
one ends. An entry that cannot be part of a run ends the run on encoding; on decoding, a text with
such an entry is not a run. The caller then handles the entries individually.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.entry import ENTRY_HEADER, encode_entry_header, encode_index_unit
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import check_record
from rmqpy.model.values import define

__all__ = [
    "PLACE_MAX",
    "RUN_COUNT_MAX",
    "RunSpan",
    "decode_run",
    "encode_run",
    "entry_text",
    "read_run",
    "run_units",
]

RUN_COUNT_MAX: Final = 8192
"""The maximum number of entries in a run."""

PLACE_MAX: Final = 10**18 - 1
"""The largest index, position, and term in a run: the text has at most 18 digits for them."""

ENTRY_BODY_MAX: Final = layout.ENTRY_SIZE_MAX - layout.ENTRY_HEADER_SIZE
_NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
_ENTRY: Final = re.compile(
    rb'\{"body":"([A-Za-z0-9+/]*={0,2})","bodyCrc":0,"chainCrc":0,"channel":0,"index":%b,'
    rb'"magic":1,"pos":%b,"size":%b,"term":%b\}([],])' % ((_NUMBER,) * 4)
)
_TEXT: Final = (
    b'{"body":"%b","bodyCrc":%d,"chainCrc":%d,"channel":%d,"index":%d,"magic":%d,"pos":%d,'
    b'"size":%d,"term":%d}'
)


@define(slots=True, frozen=True, kw_only=True)
class RunSpan:
    """The location of a run's entries. ``size`` is their total size, including headers."""

    first_index: int
    first_position: int
    first_size: int
    first_term: int
    last_term: int
    count: int
    size: int


def entry_text(header: tuple[int, ...], body: bytes | bytearray | memoryview) -> bytes:
    """Return an entry as a JSON object. ``header`` contains the fields of ``ENTRY_HEADER``."""
    magic, size, index, term, position, channel, chain_crc, body_crc, _ = header
    text = b2a_base64(body, newline=False)
    return _TEXT % (text, body_crc, chain_crc, channel, index, magic, position, size, term)


def read_run(
    view: memoryview, index: int, position: int, *, count_max: int, size_max: int
) -> tuple[RunSpan, bytes] | None:
    """Return the location and the bytes of the entries at the start of ``view``.

    The first is entry ``index`` and begins at ``position`` of the ledger. No entry is added once
    the run has ``count_max`` entries or ``size_max`` bytes. Returns None if not even the first
    entry can be part of a run: its header is unusual, or its record is damaged.
    """
    span = _span_of(view, index, position, count_max, size_max, checks_records=True)[0]
    return None if span is None else (span, bytes(view[: span.size]))


def encode_run(span: RunSpan, data: bytes) -> bytes:
    """Return the entries of a run as JSON objects separated by commas."""
    texts = []
    place = 0
    while place < span.size:
        header = ENTRY_HEADER.unpack_from(data, place)
        texts.append(entry_text(header, data[place + layout.ENTRY_HEADER_SIZE : place + header[1]]))
        place += header[1]
    return b",".join(texts)


def run_units(data: memoryview, index: int, position: int) -> tuple[RunSpan, bytes] | None:
    """Return the location and the index units of the entries that ``data`` consists of, or None if
    they are not a run from entry ``index`` at ``position`` on. Records are not examined.
    """
    if max(index, position) > PLACE_MAX:
        return None
    span, units = _span_of(data, index, position, RUN_COUNT_MAX, len(data), checks_records=False)
    return None if span is None or span.size != len(data) else (span, bytes(units))


def decode_run(text: bytes, start: int) -> tuple[RunSpan, bytes, bytes, int] | None:
    """Decode the list that begins at ``start`` of ``text``.

    Return the location of its entries, their bytes as in a data file, their index units, and the
    position after the list; None if the list is not a run in its usual form.
    """
    if text[start : start + 1] != b"[":
        return None
    data, units = bytearray(), bytearray()
    place = start + 1
    first = (-1, 0, 0, 0)
    count = last_term = 0
    while count < RUN_COUNT_MAX:
        match = _ENTRY.match(text, place)
        if match is None:
            return None
        try:
            body = a2b_base64(match[1], strict_mode=True)
        except Base64Error:
            return None
        if b2a_base64(body, newline=False) != match[1]:  # bits after the last byte
            return None
        index, position, size, term = map(int, match.group(2, 3, 4, 5))
        if size != layout.ENTRY_HEADER_SIZE + len(body) or len(body) > ENTRY_BODY_MAX:
            return None
        if not count:
            first = (index, position, size, term)
        elif (index, position) != (first[0] + count, first[1] + len(data)) or term < last_term:
            return None
        data += encode_entry_header(index, term, position, len(body)) + body
        units += encode_index_unit(position, size, index, term)
        last_term = term
        count += 1
        place = match.end()
        if match[6] == b"]":
            span = RunSpan(
                first_index=first[0],
                first_position=first[1],
                first_size=first[2],
                first_term=first[3],
                last_term=last_term,
                count=count,
                size=len(data),
            )
            return span, bytes(data), bytes(units), place
    return None


def _span_of(
    view: memoryview,
    index: int,
    position: int,
    count_max: int,
    size_max: int,
    *,
    checks_records: bool,
) -> tuple[RunSpan | None, bytearray]:
    """Return the location and the index units of the run at the start of ``view``."""
    terms: list[int] = []
    units = bytearray()
    first_size = size = 0
    while len(terms) < count_max and size < size_max:
        found = _read_entry(
            view[size:], index + len(terms), position + size, checks_records=checks_records
        )
        if found is None or (terms and found[1] < terms[-1]):
            break
        entry_size, term = found
        units += encode_index_unit(position + size, entry_size, index + len(terms), term)
        terms.append(term)
        first_size = first_size or entry_size
        size += entry_size
    if not terms:
        return None, units
    span = RunSpan(
        first_index=index,
        first_position=position,
        first_size=first_size,
        first_term=terms[0],
        last_term=terms[-1],
        count=len(terms),
        size=size,
    )
    return span, units


def _read_entry(
    view: memoryview, index: int, position: int, *, checks_records: bool
) -> tuple[int, int] | None:
    """Return size and term of a complete entry, or None if it cannot be part of a run. The fields
    that Java always writes as 0 must be 0.
    """
    if len(view) < layout.ENTRY_HEADER_SIZE:
        return None
    magic, size, found_index, term, found_position, *zeros, length = ENTRY_HEADER.unpack_from(view)
    if (magic, found_index, found_position, zeros) != (
        layout.ENTRY_MAGIC,
        index,
        position,
        [0, 0, 0],
    ):
        return None
    if not layout.ENTRY_HEADER_SIZE <= size <= len(view) or term < 0:
        return None
    if length != size - layout.ENTRY_HEADER_SIZE or length > ENTRY_BODY_MAX:
        return None
    if checks_records:
        try:
            check_record(view[layout.ENTRY_HEADER_SIZE : size], position)
        except InvalidRecordError:
            return None
    return size, term
