"""Tests of records packed for consume queues and the key index, in C and in Python."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, packing, scan
from rmqpy.codec.packing import KEY, PackedUnits
from rmqpy.codec.units import IndexHeader, index_file_size, put_index_entries
from rmqpy.model.flags import TRANSACTION_ROLLBACK

SLOTS, ENTRIES = 5, 60


def values_of(packed: PackedUnits) -> tuple[list[packing.PackedRun], bytes, bytes]:
    return packed.runs, bytes(packed.units), bytes(packed.keys)


def check(view: memoryview, found: scan.Scan, count: int) -> PackedUnits:
    """Pack records in both implementations, compare, and return the result."""
    for with_keys in (True, False):
        packed = backend.pack_records(view, found, count, with_keys=with_keys)
        expected = packing.pack_records(view, found, count, with_keys=with_keys)
        assert values_of(packed) == values_of(expected)
    return packing.pack_records(view, found, count, with_keys=True)


@pytest.mark.parametrize("name", ["A-classic-clean-v497", "D-dledger-v497", "C-upgraded-v497"])
def test_the_records_of_golden_stores_are_packed_equally(
    name: str, golden: Callable[[str], Path]
) -> None:
    folders = [*golden(name).rglob("commitlog"), *golden(name).rglob("data")]
    units = keys = 0
    for file in (file for folder in folders for file in folder.iterdir()):
        dledger = file.parent.name == "data"
        view = memoryview(file.read_bytes())
        found = backend.scan_records(view, int(file.name), dledger=dledger, check_crc=False)
        check(view, found, len(found) // 2)
        packed = check(view, found, len(found))
        units += len(packed.units)
        keys += len(packed.keys)
    assert units > 200 * 20 and keys > 200 * KEY.size


@pytest.mark.parametrize("room", [1, 4, 1 << 14])
@pytest.mark.parametrize("name", ["A-classic-clean-v497", "D-dledger-v497", "C-upgraded-v533"])
def test_the_ends_of_all_queues_are_found(
    name: str, room: int, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one call finds fewer than there are; a damaged record ends the search."""
    if backend.implementation == "c":
        monkeypatch.setattr("rmqpy.codec.native.binding._ENDS_MAX", room)
    store = min(golden(name).rglob("consumequeue")).parent
    folders = [*store.rglob("commitlog"), *store.rglob("data")]
    ends: dict[tuple[bytes, int], int] = {}
    for file in sorted(file for folder in folders for file in folder.iterdir()):
        dledger, data = file.parent.name == "data", bytearray(file.read_bytes())
        for damaged in (False, True):
            found = backend.find_queue_ends(memoryview(data), int(file.name), dledger=dledger)
            expected = packing.find_queue_ends(memoryview(data), int(file.name), dledger=dledger)
            assert found == expected
            if not damaged:
                ends |= found.ends
            middle = (found.end - int(file.name)) // 2
            data[middle : middle + 700] = bytes(700)
    assert len(ends) > 3
    for (topic, queue_id), end in ends.items():
        queue = store / "consumequeue" / topic.decode() / str(queue_id)
        units = b"".join(file.read_bytes() for file in sorted(queue.iterdir())) + bytes(20)
        size_at = (end - 1) * 20 + 8
        assert units[size_at : size_at + 4] != bytes(4) == units[size_at + 20 : size_at + 24]


WORDS = st.sampled_from([b"", b" ", b"a", b"a b", b"a  a", b"\xc3\xa9 x", b"k" * 40, b"x " * 40])
ROW = st.tuples(
    st.sampled_from([b"t", b"topic", b"\xc3\xbcber", b"\xff"]),
    st.integers(-1, 2),
    st.integers(0, 5) | st.sampled_from([-(1 << 63), (1 << 63) - 1, -1]),
    st.sampled_from([0, 4, 8, TRANSACTION_ROLLBACK, 1]),
    WORDS,
    st.sampled_from([-1, 0, 77, 0x7FFFFFFF]),
)


@given(st.lists(ROW, max_size=30))
def test_any_records_are_packed_equally(
    rows: list[tuple[bytes, int, int, int, bytes, int]],
) -> None:
    data, columns = bytearray(), [array("q", [7] * len(rows)) for _ in range(scan.COLUMN_COUNT)]
    found = scan.scan_of_columns(columns, memoryview(bytes(100)), 0, scan.StopReason.END)
    for row, (topic, queue_id, queue_offset, sys_flag, keys, uniq) in enumerate(rows):
        found.topic_position[row], found.topic_length[row] = len(data), len(topic)
        found.keys_position[row], found.keys_length[row] = len(data) + len(topic), len(keys)
        data += topic + keys
        found.queue_id[row], found.queue_offset[row] = queue_id, queue_offset
        found.sys_flag[row], found.uniq_key_hash[row] = sys_flag, uniq
        found.offset[row] = 1 << 40 | row
    found.topic[:] = [topic for topic, *_ in rows]
    packed = check(memoryview(bytes(data)), found, len(rows))
    assert sum(run[2] for run in packed.runs) * 20 == len(packed.units)


def test_packed_keys_give_the_index_file_of_single_ones() -> None:
    rng = random.Random(7)
    size = index_file_size(SLOTS, ENTRIES)
    entries = [
        (rng.choice([0, 3, 8, 0x7FFFFFFF, rng.getrandbits(31)]), number, 1000 * number + 5)
        for number in range(ENTRIES - 1)
    ]
    expected, packed = bytearray(size), bytearray(size)
    put_index_entries(memoryview(expected), SLOTS, IndexHeader(), entries)
    keys = b"".join(KEY.pack(*entry) for entry in entries)
    for start in range(0, len(keys), 7 * KEY.size):
        backend.put_packed_keys(memoryview(packed), SLOTS, keys[start : start + 7 * KEY.size])
    assert packed == expected
    assert IndexHeader.decode(bytes(packed)).index_count == ENTRIES


def test_keys_that_do_not_fit_an_index_file_are_refused() -> None:
    keys = KEY.pack(1, 2, 3) * ENTRIES
    index = memoryview(bytearray(index_file_size(SLOTS, ENTRIES)))
    with pytest.raises((AssertionError, struct.error)):
        backend.put_packed_keys(index, SLOTS, keys)


def test_a_damaged_slot_count_stays_at_its_limit() -> None:
    index = memoryview(bytearray(index_file_size(SLOTS, ENTRIES)))
    damaged = IndexHeader(slot_count=0x7FFFFFFF, index_count=1).encode()
    index[: len(damaged)] = damaged
    backend.put_packed_keys(index, SLOTS, KEY.pack(1, 2, 3))
    found = IndexHeader.decode(index)
    assert (found.slot_count, found.index_count) == (0x7FFFFFFF, 2)
