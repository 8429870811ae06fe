"""Tests of DLedger entries, index units and fillers against recorded bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.codec import entry
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.scan import is_end_filler
from rmqpy.model.ids import LedgerIndex, Term

ENTRY = bytes.fromhex(
    "00000001 00000032 0000000000000002 0000000000000003 0000000000000064"
    "00000000 00000000 00000000 00000002 6869"
)
UNIT = bytes.fromhex("00000001 0000000000000064 00000032 0000000000000002 0000000000000003")


def test_an_entry_and_its_index_unit_have_the_expected_bytes() -> None:
    assert entry.encode_entry_header(2, 3, 100, 2) + b"hi" == ENTRY
    assert entry.encode_index_unit(100, len(ENTRY), 2, 3) == UNIT
    header = entry.decode_entry_header(b"xy" + ENTRY, 2, 100)
    assert (header.index, header.term, header.position) == (2, 3, 100)
    assert (header.size, header.body_length) == (50, 2)
    assert header.encode() == ENTRY[:48]
    unit = entry.decode_index_unit(bytes(64) + UNIT, 64, 64)
    assert unit == entry.IndexUnit(100, 50, LedgerIndex(2), Term(3))
    assert unit.encode() == UNIT


def test_entries_keep_their_indexes_and_positions() -> None:
    first = entry.encode_entry_header(7, 1, 0, 1) + b"a"
    second = entry.encode_entry_header(8, 1, 65536, 2) + b"bc"
    assert entry.decode_entry_header(first, 0, 0).index == 7
    assert entry.decode_entry_header(second, 0, 65536).index == 8
    assert second.endswith(b"bc")
    units = entry.encode_index_unit(0, 49, 7, 1) + entry.encode_index_unit(65536, 50, 8, 1)
    assert entry.decode_index_unit(units, 32, 8 * 32).position == 65536


def test_a_filler_is_zero_to_the_end_of_the_file() -> None:
    raw = entry.encode_filler_head(100) + bytes(92)
    assert raw == b"\xff\xff\xff\xff\0\0\0\x64" + bytes(92)
    assert is_end_filler(memoryview(raw), 0, 100, dledger=True)
    assert not is_end_filler(memoryview(raw), 0, 99, dledger=True)
    assert not is_end_filler(memoryview(ENTRY), 0, len(ENTRY), dledger=True)
    assert not is_end_filler(memoryview(raw[:7]), 0, 100, dledger=True)
    with pytest.raises(AssertionError):
        entry.encode_filler_head(7)


@pytest.mark.parametrize(
    ("position", "value", "field"),
    [
        (0, "00000002", "magic"),
        (0, "ffffffff", "magic"),
        (4, "00000033", "size"),
        (4, "0000002f", "size"),
        (4, "80000000", "size"),
        (44, "00000003", "bodyLength"),
        (24, "0000000000000065", "pos"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_field(position: int, value: str, field: str) -> None:
    raw = bytearray(ENTRY)
    raw[position : position + len(value) // 2] = bytes.fromhex(value)
    with pytest.raises(InvalidRecordError, match=f"at offset 100: {field} is ") as caught:
        entry.decode_entry_header(raw, 0, 100)
    assert (caught.value.offset, caught.value.field) == (100, field)


def test_truncated_and_invalid_index_units_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="31 bytes"):
        entry.decode_index_unit(UNIT[:31], 0, 64)
    with pytest.raises(InvalidRecordError, match="index is 2, expected 3"):
        entry.decode_index_unit(UNIT, 0, 96)
    with pytest.raises(InvalidRecordError, match="magic"):
        entry.decode_index_unit(bytes(32), 0, 0)
    with pytest.raises(InvalidRecordError, match="47 bytes"):
        entry.decode_entry_header(ENTRY[:47], 0, 100)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("D-dledger-v497", (552, {1, 2, 3})), ("D-dledger-v533", (614, {2, 4}))],
)
@pytest.mark.parametrize("node", ["n0", "n1", "n2"])
def test_golden_ledgers_are_encoded_to_the_same_bytes(
    golden: Callable[[str], Path], node: str, name: str, expected: tuple[int, set[int]]
) -> None:
    """Covers header, filler and index unit of every entry of groups that had several terms."""
    ledger = golden(name) / node / f"dledger-{node}"
    index_file = (ledger / "index" / f"{0:020d}").open("rb").read(32 * 1000)
    index, terms = 0, set()
    for path in sorted((ledger / "data").iterdir()):
        base, data = int(path.name), path.read_bytes()
        position = 0
        while not _closes(data, position) and data[position : position + 4] != bytes(4):
            header = entry.decode_entry_header(data, position, base + position)
            assert header.index == index
            body = data[position + 48 : position + header.size]
            term, place = header.term, base + position
            frame = entry.encode_entry_header(index, term, place, len(body)) + body
            assert frame == data[position : position + header.size]
            unit = entry.encode_index_unit(place, len(frame), index, term)
            assert unit == index_file[32 * index : 32 * index + 32]
            terms.add(header.term)
            index, position = index + 1, position + header.size
        if _closes(data, position):
            rest = len(data) - position
            assert entry.encode_filler_head(rest) + bytes(rest - 8) == data[position:]
    assert (index, terms) == expected


def _closes(data: bytes, position: int) -> bool:
    return is_end_filler(memoryview(data), position, len(data) - position, dledger=True)
