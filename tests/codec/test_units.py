"""Tests of the units of consume queues and index files against bytes of Java."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.codec import layout, units
from rmqpy.codec.hashes import java_string_hash


def test_a_queue_unit_has_the_expected_bytes() -> None:
    raw = units.QUEUE_UNIT.pack(1 << 32, 106, -2598919)
    assert raw == bytes.fromhex("00000001000000000000006affffffffffd857f9")
    assert list(units.QUEUE_UNIT.iter_unpack(units.queue_filler(2))) == [(0, 0x7FFFFFFF, 0)] * 2


def test_an_index_header_has_the_expected_bytes() -> None:
    header = units.IndexHeader(
        begin_timestamp_ms=1, end_timestamp_ms=2, begin_offset=3, end_offset=4, slot_count=100
    )
    assert header.encode() == bytes.fromhex(
        "0000000000000001 0000000000000002 0000000000000003 0000000000000004 00000064 00000001"
    )
    assert units.IndexHeader.decode(header.encode()) == header
    assert units.IndexHeader.decode(bytes(40)).index_count == 1


def test_an_index_entry_has_the_expected_bytes() -> None:
    raw = units.INDEX_ENTRY.pack(5, 1 << 32, 7, 8)
    assert raw == bytes.fromhex("00000005 0000000100000000 00000007 00000008")


def test_index_slots_and_entries_have_the_expected_positions() -> None:
    assert units.index_file_size(5_000_000, 20_000_000) == 420_000_040
    assert units.index_slot_position(205, 100) == 40 + 5 * 4
    assert units.index_entry_position(1, 100) == 40 + 400 + 20


@pytest.mark.parametrize(
    ("stored", "begin", "seconds"),
    [(5000, 0, 0), (1999, 1000, 0), (2000, 1000, 1), (500, 1000, 0), (1 << 62, 1, 0x7FFFFFFF)],
)
def test_the_index_time_difference_is_in_whole_seconds(
    stored: int, begin: int, seconds: int
) -> None:
    assert units.index_time_diff_s(stored, begin) == seconds


def test_index_key_hash_is_never_negative() -> None:
    assert units.index_key_hash("T", "k") == abs(java_string_hash("T#k"))
    # This key hashes to the only int that has no absolute value.
    suffix_hash = (-(1 << 31) - java_string_hash("T#key") * pow(31, 7, 1 << 32)) % (1 << 32)
    key = f"key{_suffix(suffix_hash)}"
    assert java_string_hash(f"T#{key}") == -(1 << 31)
    assert units.index_key_hash("T", key) == 0


def _suffix(total: int) -> str:
    """Return seven characters whose weighted sum is ``total`` modulo 2**32."""
    digits = []
    for _ in range(7):
        digits.append(total % 31)
        total //= 31
    assert total == 0
    return "".join(map(chr, reversed(digits)))


@pytest.mark.parametrize("name", ["A-classic-clean-v497", "A-classic-clean-v533"])
def test_the_queue_units_of_golden_stores_are_those_of_the_messages(
    golden: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]], name: str
) -> None:
    """The unit at the queue offset of a message has its offset, size and tags code."""
    folder = golden(name) / "store" / "consumequeue"
    checked = 0
    for seen in manifest(name)["messages"]:
        position = seen["queueOffset"] * layout.QUEUE_UNIT_SIZE
        file = folder / seen["topic"] / str(seen["queueId"]) / f"{position // 2000 * 2000:020d}"
        found = units.QUEUE_UNIT.unpack_from(file.read_bytes(), position % 2000)
        if seen["topic"] == "SCHEDULE_TOPIC_XXXX":
            assert found[:2] == (seen["commitLogOffset"], seen["storeSize"])
            continue
        code = java_string_hash(seen["props"].get("TAGS", ""))
        assert found == (seen["commitLogOffset"], seen["storeSize"], code)
        checked += 1
    assert checked > 250


def test_the_index_of_a_golden_store_contains_every_key(
    golden: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    """Some index file has the hash, offset and time of every key of every message."""
    name = "A-classic-clean-v497"
    config = manifest(name)["config"]
    slots, numbers = int(config["maxHashSlotNum"]), int(config["maxIndexNum"])
    entries = set()
    for path in sorted((golden(name) / "store" / "index").iterdir()):
        data = path.read_bytes()
        assert len(data) == units.index_file_size(slots, numbers)
        header = units.IndexHeader.decode(data)
        assert 1 < header.index_count <= numbers
        for number in range(1, header.index_count):
            place = units.index_entry_position(number, slots)
            key_hash, offset, diff_s, previous = units.INDEX_ENTRY.unpack_from(data, place)
            assert previous < number
            entries.add((key_hash, offset, header.begin_timestamp_ms // 1000 + diff_s))
    seconds = {(key_hash, offset): second for key_hash, offset, second in entries}
    keys = 0
    for seen in manifest(name)["messages"]:
        words = seen["props"].get("KEYS", "").split()
        for key in [seen["props"].get("UNIQ_KEY", ""), *words]:
            if key:
                found = units.index_key_hash(seen["topic"], key), seen["commitLogOffset"]
                assert abs(seconds[found] - seen["storeTimestamp"] // 1000) <= 1
                keys += 1
    assert keys > 300
