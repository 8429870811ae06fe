"""The audit kernel: C and Python give equal tallies on any bytes, split or whole."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import EVENT_LIMIT, EventKind, Tally, TallyPlan, UnitRow, count_frames

FILES = [
    ("A-classic-clean-v497", "store/commitlog", False),
    ("A-classic-clean-v533", "store/commitlog", False),
    ("C-upgraded-v497", "n0/commitlog", False),
    ("C-upgraded-v497", "n0/dledger-n0/data", True),
    ("D-dledger-v497", "n1/dledger-n1/data", True),
]


EACH_BYTE, LEAP = 400, 61
"""Behind what cannot be walked over: byte by byte so often, then with larger steps."""


def walk(tally, data, base, plan, pieces=None):
    """Everything a walk says about a file; it goes on behind what cannot be walked over."""
    view = memoryview(data)
    state = Tally(plan)
    position, stops = 0, []
    events = []
    for stop in [*(pieces or []), len(view)]:
        while position < stop:
            position, reason = tally(view, base, position, stop, state)
            events += state.events
            state.events.clear()
            if reason in (StopReason.END, StopReason.LIMIT):
                continue
            stops.append((position, reason))
            position += 1 if len(stops) < EACH_BYTE else LEAP
    state.events = events
    tree = attrs.asdict(state, filter=lambda attribute, _: attribute.name not in SKIPPED)
    return tree, stops


SKIPPED = ("plan", "unit_rows")


def plan_for(folder, dledger):
    """With consume queues, index units and keys."""

    def units_of(topic, queue_id):
        queue = folder / "consumequeue" / topic.decode("utf-8", "replace") / str(queue_id)
        files = sorted(queue.iterdir()) if queue.is_dir() else []
        return rows_of(files)

    index = sorted(folder.glob("dledger-*/index/*"))
    return TallyPlan(
        dledger=dledger,
        units_of=units_of,
        entry_units=rows_of(index) if dledger else None,
        keys=(1000, 200000),
    )


def rows_of(files):
    if not files:
        return None
    views = tuple(memoryview(file.read_bytes()[: 1 << 20]) for file in files)
    return UnitRow(views, int(files[0].name), len(views[0]), any_tags=False)


@pytest.fixture(params=FILES, ids=lambda case: f"{case[0]}/{case[1]}")
def logs(request: pytest.FixtureRequest, golden: Callable[[str], Path]):
    name, place, dledger = request.param
    folder = golden(name) / place
    store = next(parent for parent in folder.parents if (parent / "consumequeue").is_dir())
    plan = plan_for(store, dledger)
    return [(int(f.name), f.read_bytes(), plan) for f in sorted(folder.iterdir())]


@pytest.mark.slow
def test_golden_files(logs) -> None:
    for base, data, plan in logs:
        tree, stops = walk(tally_frames, data, base, plan)
        assert (tree, stops) == walk(count_frames, data, base, plan)
        assert tree["records"] > 5 and not [e for e in tree["events"] if e[0] != EventKind.UNIT]


@pytest.mark.slow
def test_damaged_golden_files(logs) -> None:
    rng = random.Random(20240611)
    for base, data, plan in logs:
        for _ in range(1):
            damaged = bytearray(data)
            for _ in range(12):
                place = rng.randrange(len(data))
                damaged[place] = rng.choice([0, 1, 2, 0xFF, damaged[place] ^ 1])
            ours = walk(tally_frames, bytes(damaged), base, plan)
            assert ours == walk(count_frames, bytes(damaged), base, plan)


@pytest.mark.slow
def test_in_pieces_it_counts_the_same(logs) -> None:
    base, data, plan = logs[0]
    whole, stops = walk(tally_frames, data, base, plan)
    for pieces in ([1], [30000], [10, 5000, 5001, 65000]):
        assert walk(tally_frames, data, base, plan, pieces) == (whole, stops)


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes(data, dledger) -> None:
    plan = TallyPlan(dledger=dledger, keys=(0, 1 << 40))
    assert walk(tally_frames, data, 0, plan) == walk(count_frames, data, 0, plan)


PIECES = [
    *(b"A", b"\x01", b"\x02", b"\0", b"\xff", "é€😀".encode(), b"\xed\xa0\x80"),
    *(b"__CRC32#\x01", b"KEYS\x01a b", b"TAGS\x01t"),
]


@given(
    st.lists(st.sampled_from(PIECES)),
    st.integers(0, 0x3F),
)
def test_any_properties(pieces, sys_flag) -> None:
    raw = b"".join(pieces)[:2000]
    data = record(raw, sys_flag=sys_flag) + record(raw, sys_flag=sys_flag | 0x80)
    plan = TallyPlan(dledger=False, keys=(0, 1 << 40))
    tree, stops = walk(count_frames, data, 0, plan)
    assert walk(tally_frames, data, 0, plan) == (tree, stops)


def record(properties, sys_flag=0, topic=b"T", body=b"body"):
    """A version 1 record; its CRC and its place may be wrong."""
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
def test_many_queues_and_many_events() -> None:
    """More than C has room for at first: queues 200, events more than a walk may hold."""
    one = b"".join(record(b"", topic=b"Topic%d" % (n % 200)) for n in range(2 * EVENT_LIMIT))
    plan = TallyPlan(dledger=False)
    tree, stops = walk(tally_frames, one, 7, plan)
    assert (tree, stops) == walk(count_frames, one, 7, plan)
    assert len(tree["queues"]) == 200 and len(tree["events"]) > EVENT_LIMIT


def test_queue_offsets_over_many_buckets() -> None:
    parts = []
    for n in range(300):
        data = bytearray(record(b"", topic=b"A"))
        data[20:28] = (n * 700).to_bytes(8)
        parts.append(bytes(data))
    plan = TallyPlan(dledger=False)
    tree, _ = walk(tally_frames, b"".join(parts), 0, plan)
    assert (tree, []) == walk(count_frames, b"".join(parts), 0, plan)
    assert len(tree["queues"][0]["buckets"]) > 200


def test_what_is_no_part_of_a_message_does_not_count() -> None:
    """The property that covers an entry header, and the record checksum."""
    plan = TallyPlan(dledger=False)
    found = walk(tally_frames, record(b"KEYS\x01a"), 0, plan)[0]
    plain = found["queues"][0]["buckets"]
    for more in (b"\x02__RMQPY_ENTRY\x01abc", b"\x02", b"\x02__CRC32#\x010123456789\x02"):
        raw = b"KEYS\x01a" + more
        tree = walk(tally_frames, record(raw), 0, plan)[0]
        assert tree["queues"][0]["buckets"] == plain
    other = walk(tally_frames, record(b"KEYS\x01b"), 0, plan)[0]
    assert other["queues"][0]["buckets"] != plain


def test_the_c_core_is_what_is_tested() -> None:
    if shutil.which("cc") and backend.implementation == "c":
        assert tally_frames is not count_frames
