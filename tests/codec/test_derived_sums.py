"""Tests of the sums over derived files: C and Python agree, and they match the sums of the log."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, layout
from rmqpy.codec.tally.backend import rewind_index, sum_units, tally_frames, walk_index
from rmqpy.codec.tally.derived_sums import (
    rewind_index_in_python,
    slots_digest,
    sum_units_in_python,
    walk_index_in_python,
)
from rmqpy.codec.tally.kernel import Tally, TallyPlan
from rmqpy.codec.units import index_file_size

LOG_FILE = 1 << 16
NUMBERS = st.integers(0, 3 * LOG_FILE) | st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.lists(st.tuples(NUMBERS, st.integers(0, (1 << 31) - 1), NUMBERS), max_size=40),
    st.integers(0, 1 << 40),
)
def test_both_versions_sum_queue_units_alike(units: list[tuple[int, int, int]], first: int) -> None:
    data = b"".join(struct.pack(">qiq", *unit) for unit in units)
    view = memoryview(data)
    python = sum_units_in_python(view, 20, first, LOG_FILE)
    assert sum_units(view, 20, first, LOG_FILE) == python
    assert sum(count for count, _, _ in python.values()) == sum(
        (place, size) != (0, 0) and size != layout.QUEUE_FILLER_SIZE for place, size, _ in units
    )


@given(st.binary(max_size=400), st.integers(0, 1 << 40))
def test_both_versions_sum_entry_units_alike(data: bytes, first: int) -> None:
    view = memoryview(data)
    assert sum_units(view, 32, first, LOG_FILE) == sum_units_in_python(view, 32, first, LOG_FILE)


@given(
    st.lists(st.tuples(st.integers(-3, 30), NUMBERS, st.integers(-1, 12)), max_size=12),
    st.lists(st.integers(0, 12), min_size=5, max_size=5),
)
def test_both_versions_walk_an_index_alike(
    entries: list[tuple[int, int, int]], heads: list[int]
) -> None:
    data = bytearray(index_file_size(5, 13))
    struct.pack_into(">5i", data, layout.INDEX_HEADER_SIZE, *heads)
    for number, (key_hash, offset, previous) in enumerate(entries, 1):
        at = layout.INDEX_HEADER_SIZE + 20 + layout.INDEX_ENTRY_SIZE * number
        struct.pack_into(">iqii", data, at, key_hash, offset, 7, previous)
    arguments = memoryview(bytes(data)), 5, len(entries) + 1, LOG_FILE, 10, 2 * LOG_FILE
    assert walk_index(*arguments) == walk_index_in_python(*arguments)


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(1, 12), st.integers(0, 240))
def test_both_versions_take_an_index_back_alike(
    hashes: list[int], first: int, damaged: int
) -> None:
    """What the slots were before some entries is what a walk over the others finds."""
    data = bytearray(index_file_size(5, 13))
    heads = [0] * 5
    for number, key_hash in enumerate(hashes, 1):
        at = layout.INDEX_HEADER_SIZE + 20 + layout.INDEX_ENTRY_SIZE * number
        struct.pack_into(">iqii", data, at, key_hash, 1000 * number, 7, heads[key_hash % 5])
        heads[key_hash % 5] = number
    struct.pack_into(">5i", data, layout.INDEX_HEADER_SIZE, *heads)
    first, end = min(first, len(hashes) + 1), len(hashes) + 1
    everywhere = LOG_FILE, 0, 1 << 40
    view = memoryview(data)
    newest = rewind_index(view, 5, first, end)
    assert newest is not None and newest == rewind_index_in_python(view, 5, first, end)
    walked = array("i", bytes(20))
    walk_index(view, 5, first, *everywhere, (1, walked))
    assert slots_digest(newest) == slots_digest(walked)
    since = [(first, array("i", newest)) for _ in range(2)]
    rest = walk_index(view, 5, end, *everywhere, since[0])
    assert rest == walk_index_in_python(view, 5, end, *everywhere, since[1])
    assert rest.wrong == rest.wrong_slots == 0
    data[layout.INDEX_HEADER_SIZE + damaged] ^= 1
    assert rewind_index(view, 5, first, end) == rewind_index_in_python(view, 5, first, end)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "log", "dledger"),
    [("C-upgraded-v497", "n0/commitlog", False), ("C-upgraded-v497", "n0/dledger-n0/data", True)],
)
def test_sums_of_units_match_those_of_the_log(
    golden: Callable[[str], Path], store: str, log: str, dledger: bool
) -> None:
    root = golden(store) / log.partition("/")[0]
    files = sorted((golden(store) / log).iterdir())
    size = files[0].stat().st_size
    tallies = {int(file.name) // size: tally_of(file, dledger) for file in files}
    queues = {}
    for number, tally in tallies.items():
        for queue in tally.queues:
            key = number, queue.topic.decode(), queue.queue_id
            queues[key] = queue.unit_count, queue.unit_sum, queue.tags_sum
    found: dict[tuple[int, str, int], tuple[int, int, int]] = {}
    for folder in root.glob("consumequeue/*/*"):
        for file in sorted(folder.iterdir()):
            view = memoryview(file.read_bytes())
            sums = sum_units(view, 20, int(file.name) // 20, size)
            found |= {(n, folder.parent.name, int(folder.name)): each for n, each in sums.items()}
    # Tags codes of the delay topic are times.
    delayed = {key for key in queues if key[1] == "SCHEDULE_TOPIC_XXXX"}
    queues = {key: sums for key, sums in queues.items() if sums[0] and key not in delayed}
    assert queues
    assert {key: found[key] for key in queues} == queues
    if dledger:
        (index,) = root.glob("dledger-*/index/*")
        sums = sum_units(memoryview(index.read_bytes()), 32, int(index.name) // 32, size)
        assert sums == {
            number: (tally.records, tally.entry_sum, tally.term_sum)
            for number, tally in tallies.items()
            if tally.records
        }


def tally_of(file: Path, dledger: bool) -> Tally:
    data = memoryview(file.read_bytes())
    tally = Tally(TallyPlan(dledger=dledger, sums=True))
    tally_frames(data, int(file.name), 0, len(data), tally)
    return tally


def test_this_is_the_c_version() -> None:
    """Without C, the comparisons of this file would compare Python with itself."""
    expected = backend.implementation == "c"
    assert (sum_units is not sum_units_in_python) == expected
    assert (walk_index is not walk_index_in_python) == expected
