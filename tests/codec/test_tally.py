"""Tests that C and Python give equal tallies for any bytes, split or whole."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import define, evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import (
    EVENT_LIMIT,
    Event,
    EventKind,
    Tally,
    TallyPlan,
    UnitRow,
    count_frames,
)

FILES = [
    ("A-classic-clean-v497", "store/commitlog", False),
    ("A-classic-clean-v533", "store/commitlog", False),
    ("C-upgraded-v497", "n0/commitlog", False),
    ("C-upgraded-v497", "n0/dledger-n0/data", True),
    ("D-dledger-v497", "n1/dledger-n1/data", True),
]


EACH_BYTE, LEAP = 400, 61
"""After a stop, the walk continues one byte later this many times, then with larger steps."""

TallyFrames = Callable[[memoryview, int, int, int, Tally], tuple[int, StopReason]]


@define(frozen=True)
class LogFile:
    """A file of a golden store and the plan to tally it."""

    base: int
    data: bytes
    plan: TallyPlan


@define(frozen=True)
class Walked:
    """The tally of a file, and the places and reasons of the stops."""

    tally: Tally
    stops: list[tuple[int, StopReason]]


def walk(
    tally_frames: TallyFrames,
    data: bytes,
    base: int,
    plan: TallyPlan,
    pieces: Sequence[int] = (),
) -> Walked:
    """Tally a file in ``pieces``, given by their ends, and continue after each stop."""
    view = memoryview(data)
    state = Tally(plan)
    position = 0
    stops: list[tuple[int, StopReason]] = []
    events: list[Event] = []
    for stop in [*pieces, len(view)]:
        while position < stop:
            position, reason = tally_frames(view, base, position, stop, state)
            events += state.events
            state.events.clear()
            if reason in (StopReason.END, StopReason.LIMIT):
                continue
            stops.append((position, reason))
            position += 1 if len(stops) < EACH_BYTE else LEAP
    state.events = events
    state.unit_rows.clear()  # They are input, and large.
    return Walked(state, stops)


def plan_for(folder: Path, dledger: bool) -> TallyPlan:
    """Return a plan with consume queues, index units and keys."""

    def units_of(topic: bytes, queue_id: int) -> UnitRow | None:
        queue = folder / "consumequeue" / topic.decode("utf-8", "replace") / str(queue_id)
        files = sorted(queue.iterdir()) if queue.is_dir() else []
        return rows_of(files)

    index = sorted(folder.glob("dledger-*/index/*"))
    return TallyPlan(
        dledger=dledger,
        units_of=units_of,
        entry_units=rows_of(index) if dledger else None,
        keys=(1000, 200000),
        sums=True,
    )


def pooled_plan(plan: TallyPlan) -> TallyPlan:
    return evolve(plan, pooled=True, digests=False, sums=False, units_of=None)


def rows_of(files: Sequence[Path]) -> UnitRow | None:
    if not files:
        return None
    views = tuple(memoryview(file.read_bytes()[: 1 << 20]) for file in files)
    return UnitRow(views, int(files[0].name), len(views[0]), any_tags=False)


@pytest.fixture(params=FILES, ids=lambda case: f"{case[0]}/{case[1]}")
def logs(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> list[LogFile]:
    name, place, dledger = request.param
    folder = golden(name) / place
    store = next(parent for parent in folder.parents if (parent / "consumequeue").is_dir())
    plan = plan_for(store, dledger)
    return [LogFile(int(f.name), f.read_bytes(), plan) for f in sorted(folder.iterdir())]


@pytest.mark.slow
def test_tallies_of_golden_files_are_equal(logs: list[LogFile]) -> None:
    for log in logs:
        found = walk(tally_frames, log.data, log.base, log.plan)
        assert found == walk(count_frames, log.data, log.base, log.plan)
        assert found.tally.records > 5
        pooled = walk(tally_frames, log.data, log.base, pooled_plan(log.plan))
        assert pooled == walk(count_frames, log.data, log.base, pooled_plan(log.plan))
        queues = found.tally.queues
        assert pooled.tally.pooled_count == sum(each.count for each in queues)
        assert pooled.tally.pooled_without == sum(each.unqueued for each in queues)
        assert pooled.tally.key_sum == found.tally.key_sum
        assert not [event for event in found.tally.events if event[0] != EventKind.UNIT]


@pytest.mark.slow
def test_tallies_of_damaged_golden_files_are_equal(logs: list[LogFile]) -> None:
    rng = random.Random(20240611)
    for log in logs:
        damaged = bytearray(log.data)
        for _ in range(12):
            place = rng.randrange(len(damaged))
            damaged[place] = rng.choice([0, 1, 2, 0xFF, damaged[place] ^ 1])
        for plan in (log.plan, pooled_plan(log.plan)):
            found = walk(tally_frames, bytes(damaged), log.base, plan)
            assert found == walk(count_frames, bytes(damaged), log.base, plan)


@pytest.mark.slow
def test_a_file_in_pieces_has_the_tally_of_the_whole(logs: list[LogFile]) -> None:
    log = logs[0]
    whole = walk(tally_frames, log.data, log.base, log.plan)
    for pieces in ([1], [30000], [10, 5000, 5001, 65000]):
        assert walk(tally_frames, log.data, log.base, log.plan, pieces) == whole


@given(st.binary(max_size=400), st.booleans())
def test_tallies_of_any_bytes_are_equal(data: bytes, dledger: bool) -> None:
    plan = TallyPlan(dledger=dledger, keys=(0, 1 << 40))
    assert walk(tally_frames, data, 0, plan) == walk(count_frames, data, 0, plan)


PIECES = [
    *(b"A", b"\x01", b"\x02", b"\0", b"\xff", "é€😀".encode(), b"\xed\xa0\x80"),
    *(b"__CRC32#\x01", b"KEYS\x01a b", b"TAGS\x01t", b"UNIQ_KEY\x01u", b"x" * 61),
]


@given(
    st.lists(st.sampled_from(PIECES)),
    st.integers(0, 0x3F),
)
def test_tallies_of_any_properties_are_equal(pieces: list[bytes], sys_flag: int) -> None:
    raw = b"".join(pieces)[:2000]
    data = record(raw, sys_flag=sys_flag) + record(raw, sys_flag=sys_flag | 0x80)
    plan = TallyPlan(dledger=False, keys=(0, 1 << 40), sums=True)
    for each in (plan, pooled_plan(plan)):
        assert walk(tally_frames, data, 0, each) == walk(count_frames, data, 0, each)


@pytest.mark.parametrize("tail", [b"", b"\x02", b"\x02TAGS\x01t", b"\x02UNIQ_KEY\x01"])
def test_properties_across_the_steps_of_the_c_core_are_tallied_equally(tail: bytes) -> None:
    """C looks at 64 bytes at once, and past the last property if the file goes on."""
    plan = TallyPlan(dledger=False, keys=(0, 1 << 40), sums=True)
    for length in range(140):
        one = b"A\x01" + b"x" * length + b"\x02UNIQ_KEY\x01u" + tail
        two = b"B" * (length + 1) + b"\x01y\x01\x02KEYS\x01k" + tail
        data = record(one) + record(two) + record(one)
        for each in (plan, pooled_plan(plan)):
            found = walk(tally_frames, data, 0, each)
            assert found == walk(count_frames, data, 0, each)
            assert found.tally.key_count >= 3


def test_topics_are_judged_alike() -> None:
    """Pooled, C judges the topic of each record anew."""
    topics = [bytes([byte]) for byte in range(256)] + [
        b"",
        b"a" * 127,
        b"a" * 63 + b".",
        b"RETRY%g|",
    ]
    data = b"".join(record(b"", topic=topic) for topic in topics)
    for plan in (TallyPlan(dledger=False), pooled_plan(TallyPlan(dledger=False))):
        found = walk(tally_frames, data, 0, plan)
        assert found == walk(count_frames, data, 0, plan)
        wrong = {event[1] for event in found.tally.events if event[0] == EventKind.TOPIC}
        assert len(wrong) == len(topics) - 26 * 2 - 10 - len("%|_-") - 2


def record(
    properties: bytes, sys_flag: int = 0, topic: bytes = b"T", body: bytes = b"body"
) -> bytes:
    """Return a version 1 record, without a correct CRC or place."""
    hosts = b"".join(bytes(16 if sys_flag & bit else 4) + bytes(4) for bit in (0x10, 0x20))
    born, store = hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :]
    if sys_flag & 0x10 and not sys_flag & 0x20:
        born, store = bytes(20), bytes(8)
    elif sys_flag & 0x20 and not sys_flag & 0x10:
        born, store = bytes(8), bytes(20)
    size = 91 + 12 * (len(born) == 20) + 12 * (len(store) == 20)
    size += len(body) + len(topic) + len(properties)
    head = size.to_bytes(4) + 0xDAA320A7.to_bytes(4) + bytes(28) + sys_flag.to_bytes(4) + bytes(8)
    tail = bytes(12) + len(body).to_bytes(4) + body + bytes([len(topic)]) + topic
    return head + born + bytes(8) + store + tail + len(properties).to_bytes(2) + properties


@pytest.mark.slow
def test_tallies_of_many_queues_and_events_are_equal() -> None:
    """There are 200 queues and more events than one walk holds, so C must enlarge its memory."""
    data = b"".join(record(b"", topic=b"Topic%d" % (n % 200)) for n in range(2 * EVENT_LIMIT))
    plan = TallyPlan(dledger=False)
    found = walk(tally_frames, data, 7, plan)
    assert found == walk(count_frames, data, 7, plan)
    assert len(found.tally.queues) == 200 and len(found.tally.events) > EVENT_LIMIT


def test_queue_offsets_are_summed_in_many_buckets() -> None:
    parts = []
    for n in range(300):
        data = bytearray(record(b"", topic=b"A"))
        data[20:28] = (n * 700).to_bytes(8)
        parts.append(bytes(data))
    plan = TallyPlan(dledger=False)
    found = walk(tally_frames, b"".join(parts), 0, plan)
    assert found == walk(count_frames, b"".join(parts), 0, plan)
    assert not found.stops and len(found.tally.queues[0].buckets) > 200


def buckets_of(properties: bytes) -> dict[int, list[int]]:
    """Return the sums of a record with these properties."""
    found = walk(tally_frames, record(properties), 0, TallyPlan(dledger=False))
    return found.tally.queues[0].buckets


def test_properties_that_depend_on_the_place_are_not_part_of_the_content() -> None:
    """These are the property that covers an entry header, and the record checksum."""
    expected = buckets_of(b"KEYS\x01a")
    for more in (b"\x02__RMQPY_ENTRY\x01abc", b"\x02", b"\x02__CRC32#\x010123456789\x02"):
        assert buckets_of(b"KEYS\x01a" + more) == expected
    assert buckets_of(b"KEYS\x01b") != expected


def test_the_c_core_is_tested_where_it_is_built() -> None:
    if shutil.which("cc") and backend.implementation == "c":
        assert tally_frames is not count_frames
