"""Tests of the DLedger files of one member: index units, checkpoint, term."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from harness.store import MemoryRig, entries_of

from rmqpy.dledger.entries import Entry
from rmqpy.dledger.state import UNKNOWN_VOTE, HardState
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import LedgerIndex, Term

UNIT = struct.Struct(">iqiqq")
INDEX = "/store/dledger-n0/index"
UNITS_PER_FILE = 16


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    """Return a cleanly stopped store of 80 entries in five data files and five index files."""
    rig = make_rig(flag=True)
    rig.write(*range(80))
    return rig


def units(rig: MemoryRig) -> list[tuple[int, ...]]:
    """Return all index units that are not empty."""
    names = sorted(path for path in rig.files.nodes if path.startswith(INDEX))
    raw = b"".join(bytes(rig.files.nodes[name].data) for name in names)
    return [unit for unit in UNIT.iter_unpack(raw) if any(unit)]


def check(rig: MemoryRig, count: int) -> list[tuple[int, ...]]:
    """Check that the index agrees with ``count`` entries, and return its units."""
    store = rig.open()
    entries = entries_of(store)
    found = units(rig)
    assert (entries.begin_index, entries.end.index) == (0, count - 1)
    assert [unit[3] for unit in found] == list(range(count))
    for magic, position, size, index, term in found:
        header, body = entries.entry(index)
        assert (magic, header.position, header.size, header.index) == (1, position, size, index)
        assert header.term == term
        assert int.from_bytes(body[28:36]) == position + 48
    for outside in (-1, count):
        with pytest.raises(IndexError):
            entries.entry(outside)
    store.shutdown()
    return found


def test_index_units_follow_the_entries(rig: MemoryRig) -> None:
    found = check(rig, 80)
    assert len([path for path in rig.files.nodes if path.startswith(INDEX)]) == 5
    for before, unit in pairwise(found):
        end = before[1] + before[2]
        assert unit[1] == end or (unit[1] % 4096 == 0 and unit[1] - end < 4096)


@pytest.mark.parametrize("missing", ["all", "last", "two"])
def test_missing_index_files_are_rebuilt(rig: MemoryRig, missing: str) -> None:
    expected = units(rig)
    names = sorted(path for path in rig.files.nodes if path.startswith(INDEX))
    for name in {"all": names, "last": names[-1:], "two": names[-2:]}[missing]:
        del rig.files.nodes[name]
    check(rig, 80)
    assert units(rig) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 40, 63, 64, 78, 79])
@pytest.mark.parametrize("clean", [True, False])
def test_a_wrong_index_unit_is_rewritten(rig: MemoryRig, number: int, clean: bool) -> None:
    """Recovery reads the last three data files; after a clean stop, older units stay."""
    expected = units(rig)
    if not clean:
        rig.files.put("/store/abort", b"")
    file, place = divmod(number, UNITS_PER_FILE)
    node = rig.files.nodes[f"{INDEX}/{file * UNITS_PER_FILE * 32:020d}"]
    node.data[place * 32 + 9] ^= 0xFF
    store = rig.open()
    is_repaired = units(rig) == expected
    assert is_repaired or (clean and number in (0, 1))
    store.shutdown()


def test_units_after_the_last_entry_are_cleared(rig: MemoryRig) -> None:
    expected = units(rig)
    rig.files.put(f"{INDEX}/{5 * 512:020d}", UNIT.pack(1, 5, 5, 80, 0).ljust(512, b"\0"))
    check(rig, 80)
    assert units(rig) == expected
    store = rig.open()
    rig.put(store, *range(80, 90))
    store.shutdown()
    check(rig, 90)


def test_an_index_file_of_another_size_is_refused(rig: MemoryRig) -> None:
    rig.files.put(f"{INDEX}/{4 * 512:020d}", bytes(500))
    with pytest.raises(StoreError, match="500 bytes"):
        rig.open()


@pytest.mark.parametrize("size_max", [1, 700, 1 << 20])
def test_consecutive_batches_contain_every_entry(rig: MemoryRig, size_max: int) -> None:
    entries = entries_of(rig.open())
    expected = [Entry(*entries.entry(number)) for number in range(80)]
    first = 0
    while first < 80:
        last = min(79, first + 12)
        batch = entries.batch(first, last, size_max)
        assert 1 <= len(batch) <= last - first + 1
        assert list(batch) == expected[first : first + len(batch)]
        first += len(batch)
        assert entries.term_of(first - 1) == expected[first - 1].term
        assert entries.end_of(first - 1) == expected[first - 1].end_offset


def test_a_truncation_discards_the_position_of_the_last_batch(rig: MemoryRig) -> None:
    entries = entries_of(rig.open())
    entries.batch(70, 75, 1 << 20)
    entries.committed_index = LedgerIndex(70)
    entries.truncate_from(75)
    with pytest.raises(IndexError):
        entries.term_of(75)
    record = bytes(entries.entry(60)[1])
    entries.receive([Entry.of(75, 9, entries.end_offset, record)])
    entries.commit()
    assert entries.term_of(75) == 9
    ((header, body),) = [(each.header, each.body) for each in entries.batch(75, 75, 1 << 20)]
    assert (header.term, bytes(body)) == (9, record)


def test_the_checkpoint_determines_the_committed_index(rig: MemoryRig) -> None:
    end = units(rig)[79][1] + units(rig)[79][2]
    written = f"committedIndex=79\nendIndex=79\ndurableIndex=79\ndurableOffset={end}\n"
    assert rig.tree()["dledger-n0/checkpoint"] == written.encode()
    path = "/store/dledger-n0/checkpoint"
    for text, committed in (
        (b"#Sat Nov 21\nendIndex=79\ncommittedIndex=50\n", 50),
        (b"committedIndex=79\n", 79),
        (b"committedIndex=-1\n", -1),
    ):
        rig.files.put(path, text)
        store = rig.open(lead=False)
        assert entries_of(store).committed_index == committed
        position = units(rig)[committed][1:3]
        assert store.log.confirm_offset == (sum(position) if committed >= 0 else 0)
        store.close_without_flush()


def test_the_hard_state_is_durable_and_has_a_backup(rig: MemoryRig) -> None:
    store = rig.open()
    entries = entries_of(store)
    entries.member_files.save_hard_state(HardState(Term(7), "n2"))
    assert rig.tree()["dledger-n0/currterm"] == b"voteLeader=n2\ncurrTerm=7\n"
    assert rig.tree()["dledger-n0/currterm.bak"] == b"voteLeader=n2\ncurrTerm=7\n"
    assert rig.files.crash().read_bytes("/store/dledger-n0/currterm").endswith(b"currTerm=7\n")
    assert entries.member_files.load_hard_state() == HardState(Term(7), "n2")
    entries.member_files.save_hard_state(HardState(Term(8), None))
    assert entries.member_files.load_hard_state() == HardState(Term(8), None)
    for damaged in (b"", b"x", b"\xff="):
        rig.files.put("/store/dledger-n0/currterm", damaged)
        assert entries.member_files.load_hard_state() == HardState(Term(8), UNKNOWN_VOTE), (
            "a backup, which may be older than the vote"
        )
    store.shutdown()


def test_a_checkpoint_covers_every_index_file(rig: MemoryRig) -> None:
    """Since the last checkpoint, the units spread over two index files."""
    store = rig.open()
    entries = store.opened.entries
    assert entries is not None
    for number in range(80, 130):
        rig.put(store, number)
    rig.flush(store)
    for file in entries.take_dirty_index():
        file.sync()
    after = rig.files.crash()
    for path, node in rig.files.nodes.items():
        if path.startswith(INDEX):
            assert bytes(after.nodes[path].data) == bytes(node.data), path
    store.close_without_flush()


def flip_last(rig: MemoryRig) -> str:
    """Flip a bit in the body of the last entry, and return the path of its file."""
    found = units(rig)[-1]
    path = f"/store/dledger-n0/data/{found[1] // 4096 * 4096:020d}"
    rig.files.nodes[path].data[found[1] % 4096 + 48 + 100] ^= 1
    return path


@pytest.mark.parametrize("checkpoint", ["rmqpy", "java"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_group_of_one_does_not_cut_off_an_entry_that_was_on_the_disk(
    rig: MemoryRig, checkpoint: str, clean: bool
) -> None:
    """After an unclean stop, Java's checkpoint does not show what was on the disk."""
    if checkpoint == "java":
        for name in ("checkpoint", "checkpoint.bak"):
            rig.files.put(f"/store/dledger-n0/{name}", b"committedIndex=79\nendIndex=79\n")
    if not clean:
        rig.files.put("/store/abort", b"")
    path = flip_last(rig)
    before = bytes(rig.files.nodes[path].data)
    if checkpoint == "java" and not clean:
        assert entries_of(rig.open()).end.index == 78
        return
    for _ in range(2):
        with pytest.raises(StoreError, match=r"on disk.*/store/dledger-n0/checkpoint"):
            rig.open()
    assert bytes(rig.files.nodes[path].data) == before
    rig.force = True
    store = rig.open()
    assert entries_of(store).end.index == 78
    rig.put(store, 79)
    store.shutdown()
    rig.force = False
    check(rig, 80)


def test_a_lost_tail_is_known_until_it_has_been_supplied(rig: MemoryRig) -> None:
    peers = ";".join(f"n{number}-127.0.0.1:{number + 1}" for number in range(3))
    rig.changes["dledger_peers"] = peers
    lost = rig.open(lead=False)
    header, body = entries_of(lost).entry(79)
    last = Entry(header, bytes(body))
    lost.close_without_flush()
    flip_last(rig)
    last_index = f"{INDEX}/{79 // UNITS_PER_FILE * UNITS_PER_FILE * UNIT.size:020d}"
    rig.files.nodes[last_index].data[79 % UNITS_PER_FILE * UNIT.size] ^= 1
    for _ in range(2):
        store = rig.open(lead=False)
        entries = entries_of(store)
        assert (entries.end.index, entries.committed_index) == (78, 78)
        assert entries.durable.index == 79
        store.shutdown()
    store = rig.open(lead=False)
    entries = entries_of(store)
    entries.receive([last])
    entries.commit()
    rig.flush(store)
    entries.commit_to(LedgerIndex(79))
    store.shutdown()
    check(rig, 80)
