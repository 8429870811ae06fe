"""Tests of the key index: rolling, resuming, ranges of time, crowded slots."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable

import pytest

from rmqpy.codec.packing import KEY
from rmqpy.codec.units import index_key_hash
from rmqpy.store.index import index_file
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.retention import DeletionTask
from rmqpy.testing.memory_files import MemoryFiles

FOLDER = "/store/index"
START = 1_700_000_000_000
LAST = 1 << 60


def expire(files: MemoryFiles, index: KeyIndex, log_min_offset: int) -> int:
    """Delete the expired files, as retention does, and return their number."""
    count = 0
    for file in index.pop_expired(log_min_offset):
        DeletionTask(files, file).run()
        count += 1
    return count


def open_index(
    files: MemoryFiles, *, now: Callable[[], int] = lambda: START, slots: int = 7, entries: int = 20
) -> KeyIndex:
    index = KeyIndex(files, FOLDER, slots, entries, now)
    index.load()
    return index


def put(index: KeyIndex, number: int, *keys: str) -> None:
    """Index a message at physical offset 100 * number, one second after the previous one."""
    hashes = [index_key_hash("T", key) for key in (keys or (f"k{number}",))]
    index.put(hashes, 100 * number, START + 1000 * number)


def test_a_file_has_the_expected_bytes() -> None:
    files = MemoryFiles()
    index = open_index(files)
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


def test_an_index_rolls_to_the_next_file() -> None:
    files = MemoryFiles()
    index = open_index(files)
    for number in range(100):
        put(index, number)
    names = sorted(path.rpartition("/")[2] for path in files.nodes)
    assert len(names) == 6, "a file has 19 entries"
    assert all(len(name) == 17 and name.isdigit() for name in names)
    for number in range(100):
        assert index.find("T", f"k{number}", 9, 0, LAST) == [100 * number]
    reopened = open_index(files)
    reopened.finish_recovery(1 << 40, None)
    assert reopened.find("T", "k0", 9, 0, LAST) == [0]
    assert reopened.end_offset == 9900
    assert reopened.last_update == (START + 99_000, 9900)


def test_file_names_grow_although_the_clock_goes_back() -> None:
    files = MemoryFiles()
    rng = random.Random(1)
    index = open_index(files, now=lambda: START + rng.randint(-10_000_000, 10_000_000))
    paths: list[str] = []
    for number in range(200):
        put(index, number)
        if not paths or index._index_files[-1].path != paths[-1]:
            paths.append(index._index_files[-1].path)
    assert paths == sorted(paths) and len(set(paths)) == 11


@pytest.mark.parametrize("count", range(1, 60))
def test_dispatch_resumes_with_the_last_indexed_message(count: int) -> None:
    """The keys of that message may be in any number of files."""
    files = MemoryFiles()
    index = open_index(files)
    complete = open_index(MemoryFiles())
    for number in range(count):
        put(index, number, "u", "v", f"w{number}")
        put(complete, number, "u", "v", f"w{number}")
    reopened = open_index(files)
    reopened.finish_recovery(1 << 40, None)
    for number in range(count - 1, count + 3):
        put(reopened, number, "u", "v", f"w{number}")
        if number >= count:
            put(complete, number, "u", "v", f"w{number}")
    ours = [file.header for file in reopened._index_files]
    assert ours == [file.header for file in complete._index_files]
    assert sum(header.index_count - 1 for header in ours) == 3 * (count + 3)


def packed(first: int, count: int) -> bytes:
    """Return the keys of messages as dispatch packs them: one to three of each."""
    return b"".join(
        KEY.pack(index_key_hash("T", f"k{key}"), 100 * number, START + 1000 * number)
        for number in range(first, first + count)
        for key in range(1 + number % 3)
    )


@pytest.mark.parametrize("reserved", [1, 2, 5, 64])
@pytest.mark.parametrize("messages_at_once", [1, 4, 100])
def test_packed_keys_lead_to_the_same_files(
    reserved: int, messages_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "RESERVED_ENTRIES", reserved)
    one_by_one, at_once = MemoryFiles(), MemoryFiles()
    index = open_index(one_by_one)
    for key_hash, offset, store_ms in KEY.iter_unpack(packed(1, 100)):
        index.put([key_hash], offset, store_ms)
    index = open_index(at_once)
    for first in range(1, 101, messages_at_once):
        index.put_packed(packed(first, messages_at_once))
    assert [bytes(node.data) for node in at_once.nodes.values()] == [
        bytes(node.data) for node in one_by_one.nodes.values()
    ]


def test_only_messages_at_the_ends_of_files_are_put_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_file, "RESERVED_ENTRIES", 64)
    alone: list[int] = []
    put_alone = KeyIndex.put

    def counted(index: KeyIndex, hashes: list[int], offset: int, store_ms: int) -> None:
        alone.append(offset)
        put_alone(index, hashes, offset, store_ms)

    monkeypatch.setattr(KeyIndex, "put", counted)
    index = open_index(MemoryFiles(), entries=200)
    index.put_packed(packed(1, 300))
    assert len(index.parts) == 4
    assert len(alone) <= 4 * len(index.parts)


def test_packed_keys_continue_after_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "RESERVED_ENTRIES", 2)
    files, complete = MemoryFiles(), open_index(MemoryFiles())
    complete.put_packed(packed(1, 30))
    index = open_index(files)
    index.put_packed(packed(1, 8))
    files.fail_write("index", errno.ENOSPC)
    with pytest.raises(OSError):
        index.put_packed(packed(9, 22))
    files.heal()
    index.put_packed(packed(9, 22))
    assert [bytes(file.view) for file in index.parts] == [
        bytes(file.view) for file in complete.parts
    ]


def test_a_partly_indexed_message_is_completed() -> None:
    """After a kill between the first and the second key, only two keys are added."""
    files = MemoryFiles()
    index = open_index(files)
    put(index, 1, "a", "b", "c")
    index.put([index_key_hash("T", "a")], 200, START + 2000)
    reopened = open_index(files)
    reopened.finish_recovery(1 << 40, None)
    put(reopened, 2, "a", "b", "c")
    assert reopened._index_files[0].header.index_count - 1 == 6
    for key in "abc":
        assert reopened.find("T", key, 9, 0, LAST) == [200, 100]


def test_files_newer_than_the_checkpoint_are_removed() -> None:
    """After an unclean stop they and all later files are rebuilt."""
    files = MemoryFiles()
    index = open_index(files)
    for number in range(60):
        put(index, number)
    names = sorted(files.nodes)
    ends = [file.header.end_timestamp_ms for file in index._index_files]
    for safe, kept in ((0, 0), (ends[0], 1), (ends[1], 2), (ends[1] - 1, 1), (LAST, 4)):
        left = files.kill()
        left.sync_dir(FOLDER)
        reopened = open_index(left)
        reopened.finish_recovery(1 << 40, safe)
        assert sorted(left.nodes) == names[:kept]
        assert sorted(left.crash().nodes) == names[:kept], "the removal must be durable"
    left = files.kill()
    left.nodes[names[1]].data[:40] = bytes(40)
    reopened = open_index(left)
    reopened.finish_recovery(1 << 40, LAST)
    assert sorted(left.nodes) == names[:1], "an empty file and all later ones are removed"


def test_files_with_keys_beyond_the_log_are_removed() -> None:
    files = MemoryFiles()
    index = open_index(files)
    for number in range(60):
        put(index, number)
    names = sorted(files.nodes)
    reopened = open_index(files)
    reopened.finish_recovery(index._index_files[1].header.end_offset, None)
    assert sorted(files.nodes) == names[:1]
    reopened.finish_recovery(0, None)
    assert sorted(files.nodes) == []


def test_a_crowded_slot_finds_every_key() -> None:
    """One slot has all keys; the result is that of a search in a list of all entries."""
    rng = random.Random(5)
    index = open_index(MemoryFiles(), slots=1, entries=50)
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


def test_a_damaged_chain_ends_the_search() -> None:
    """A link that leads forward or to itself is not followed."""
    files = MemoryFiles()
    index = open_index(files, slots=1)
    for number in range(10):
        put(index, number, "k")
    (node,) = files.nodes.values()
    place = 40 + 4 + 20 * 5 + 16
    for link in (5, 9, 1000, -1):
        node.data[place : place + 4] = link.to_bytes(4, signed=True)
        found = index.find("T", "k", 99, 0, LAST)
        assert found == [100 * number for number in range(9, 3, -1)]


def test_the_last_file_does_not_expire() -> None:
    files = MemoryFiles()
    index = open_index(files)
    for number in range(60):
        put(index, number)
    assert expire(files, index, 0) == 0
    assert expire(files, index, index._index_files[0].header.end_offset) == 0
    assert expire(files, index, index._index_files[0].header.end_offset + 1) == 1
    assert expire(files, index, 1 << 40) == 2
    assert len(files.nodes) == 1
    assert index.find("T", "k59", 9, 0, LAST) == [5900]


def test_an_empty_file_is_removed() -> None:
    """A kill between the creation of a file and its sizing leaves 0 bytes, in any position."""
    files = MemoryFiles()
    index = open_index(files)
    put(index, 1)
    empty = [f"{FOLDER}/20010101000000000", f"{FOLDER}/20990101000000000"]
    for path in empty:
        files.replace_bytes(path, b"")
    reopened = open_index(files)
    assert all(files.exists(path) for path in empty), "loading changes nothing"
    reopened.finish_recovery(1000, None)
    assert not any(files.exists(path) for path in empty)
    assert reopened.find("T", "k1", 10, 0, LAST) == [100]
