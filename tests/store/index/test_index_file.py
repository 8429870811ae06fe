"""The key index: rolling, resuming, ranges of time, crowded slots."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from rmqpy.codec.units import index_key_hash
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.retention import DeletionTask
from rmqpy.testing.memory_files import MemoryFiles

FOLDER = "/store/index"
START = 1_700_000_000_000
LAST = 1 << 60


def expire(files: MemoryFiles, row: Any, log_min_offset: int) -> int:
    """What cleaning does with files that are let go; how many there were."""
    count = 0
    for file in row.pop_expired(log_min_offset):
        DeletionTask(files, file).run()
        count += 1
    return count


def make(
    files: MemoryFiles, *, now: Callable[[], int] = lambda: START, slots: int = 7, entries: int = 20
) -> KeyIndex:
    index = KeyIndex(files, FOLDER, slots, entries, now)
    index.load()
    return index


def put(index: KeyIndex, number: int, *keys: str) -> None:
    """Message ``number`` at physical offset 100 * number, stored a second after the one before."""
    hashes = [index_key_hash("T", key) for key in (keys or (f"k{number}",))]
    index.put(hashes, 100 * number, START + 1000 * number)


def test_bytes_of_a_file() -> None:
    files = MemoryFiles()
    index = make(files)
    put(index, 3, "a", "b")
    put(index, 5, "a")
    (node,) = files.nodes.values()
    data = bytes(node.data)
    assert len(data) == 40 + 7 * 4 + 20 * 20
    times = (START + 3000, START + 5000, 300, 500)
    a, b = index_key_hash("T", "a"), index_key_hash("T", "b")
    assert a % 7 != b % 7
    assert struct.unpack_from(">qqqqii", data) == (*times, 2, 4)
    slots = struct.unpack_from(">7i", data, 40)
    assert (slots[a % 7], slots[b % 7]) == (3, 2)
    entries = list(struct.iter_unpack(">iqii", data[68:]))
    assert entries[:5] == [(0, 0, 0, 0), (a, 300, 0, 0), (b, 300, 0, 0), (a, 500, 2, 1), (0,) * 4]


def test_rolling_over() -> None:
    files = MemoryFiles()
    index = make(files)
    for number in range(100):
        put(index, number)
    names = sorted(path.rpartition("/")[2] for path in files.nodes)
    assert len(names) == 6, "19 entries a file"
    assert all(len(name) == 17 and name.isdigit() for name in names)
    for number in range(100):
        assert index.find("T", f"k{number}", 9, 0, LAST) == [100 * number]
    again = make(files)
    again.finish_recovery(1 << 40, None)
    assert again.find("T", "k0", 9, 0, LAST) == [0]
    assert again.end_offset == 9900
    assert again.last_update == (START + 99_000, 9900)


def test_names_grow_though_the_clock_goes_back() -> None:
    files = MemoryFiles()
    rng = random.Random(1)
    index = make(files, now=lambda: START + rng.randint(-10_000_000, 10_000_000))
    made = []
    for number in range(200):
        put(index, number)
        if not made or index._index_files[-1].path != made[-1]:
            made.append(index._index_files[-1].path)
    assert made == sorted(made) and len(set(made)) == 11


@pytest.mark.parametrize("count", range(1, 60))
def test_resuming_with_the_last_message(count: int) -> None:
    """Dispatch comes back with the last indexed message, however its keys lie over the files."""
    files = MemoryFiles()
    index = make(files)
    whole = make(MemoryFiles())
    for number in range(count):
        put(index, number, "u", "v", f"w{number}")
        put(whole, number, "u", "v", f"w{number}")
    again = make(files)
    again.finish_recovery(1 << 40, None)
    for number in range(count - 1, count + 3):
        put(again, number, "u", "v", f"w{number}")
        if number >= count:
            put(whole, number, "u", "v", f"w{number}")
    ours = [file.header for file in again._index_files]
    assert ours == [file.header for file in whole._index_files]
    assert sum(header.index_count - 1 for header in ours) == 3 * (count + 3)


def test_a_message_half_indexed() -> None:
    """Killed after the first of three keys: only the other two are added."""
    files = MemoryFiles()
    index = make(files)
    put(index, 1, "a", "b", "c")
    index.put([index_key_hash("T", "a")], 200, START + 2000)
    again = make(files)
    again.finish_recovery(1 << 40, None)
    put(again, 2, "a", "b", "c")
    assert again._index_files[0].header.index_count - 1 == 6
    for key in "abc":
        assert again.find("T", key, 9, 0, LAST) == [200, 100]


def test_files_after_an_unclean_stop() -> None:
    """Those go that are younger than the checkpoint says, and all behind them."""
    files = MemoryFiles()
    index = make(files)
    for number in range(60):
        put(index, number)
    names = sorted(files.nodes)
    ends = [file.header.end_timestamp_ms for file in index._index_files]
    for safe, kept in ((0, 0), (ends[0], 1), (ends[1], 2), (ends[1] - 1, 1), (LAST, 4)):
        left = files.kill()
        left.sync_dir(FOLDER)
        again = make(left)
        again.finish_recovery(1 << 40, safe)
        assert sorted(left.nodes) == names[:kept]
        assert sorted(left.crash().nodes) == names[:kept], "they must not come back"
    left = files.kill()
    left.nodes[names[1]].data[:40] = bytes(40)
    again = make(left)
    again.finish_recovery(1 << 40, LAST)
    assert sorted(left.nodes) == names[:1], "an empty file in the row"


def test_a_log_that_was_cut() -> None:
    files = MemoryFiles()
    index = make(files)
    for number in range(60):
        put(index, number)
    names = sorted(files.nodes)
    again = make(files)
    again.finish_recovery(index._index_files[1].header.end_offset, None)
    assert sorted(files.nodes) == names[:1]
    again.finish_recovery(0, None)
    assert sorted(files.nodes) == []


def test_crowded_slots_equal_a_plain_search() -> None:
    """One slot, many keys: what the chains find is what a list of all entries says."""
    rng = random.Random(5)
    index = make(MemoryFiles(), slots=1, entries=50)
    entries: list[tuple[str, int, int]] = []
    for number in range(400):
        key = f"k{rng.randint(0, 9)}"
        put(index, number, key)
        entries.append((key, 100 * number, START + 1000 * number))
    for _ in range(300):
        key = f"k{rng.randint(0, 9)}"
        begin, end = sorted(START + 1000 * rng.randint(-5, 405) for _ in range(2))
        most = rng.choice([1, 5, 1000])
        expected = [o for k, o, at in reversed(entries) if k == key and begin <= at <= end]
        assert index.find("T", key, most, begin, end) == expected[:most]


def test_a_damaged_chain_ends() -> None:
    """A chain that leads forward, or to itself, is not followed."""
    files = MemoryFiles()
    index = make(files, slots=1)
    for number in range(10):
        put(index, number, "k")
    (node,) = files.nodes.values()
    place = 40 + 4 + 20 * 5 + 16
    for wrong in (5, 9, 1000, -1):
        node.data[place : place + 4] = wrong.to_bytes(4, signed=True)
        found = index.find("T", "k", 99, 0, LAST)
        assert found == [100 * number for number in range(9, 3, -1)]


def test_expiry_keeps_the_last_file() -> None:
    files = MemoryFiles()
    index = make(files)
    for number in range(60):
        put(index, number)
    assert expire(files, index, 0) == 0
    assert expire(files, index, index._index_files[0].header.end_offset) == 0
    assert expire(files, index, index._index_files[0].header.end_offset + 1) == 1
    assert expire(files, index, 1 << 40) == 2
    assert len(files.nodes) == 1
    assert index.find("T", "k59", 9, 0, LAST) == [5900]


def test_a_file_whose_creation_was_interrupted_counts_as_not_there() -> None:
    """A kill between the making of the file and its sizing leaves 0 bytes, last or not."""
    files = MemoryFiles()
    index = make(files)
    put(index, 1)
    empty = [f"{FOLDER}/20010101000000000", f"{FOLDER}/20990101000000000"]
    for path in empty:
        files.replace_bytes(path, b"")
    again = make(files)
    assert all(files.exists(path) for path in empty), "loading changes nothing"
    again.finish_recovery(1000, None)
    assert not any(files.exists(path) for path in empty)
    assert again.find("T", "k1", 10, 0, LAST) == [100]
