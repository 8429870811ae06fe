"""Tests of how a follower changes the entry files: it appends entries byte for byte, truncates its
tail, resets its log, and recovers from a crash in between.
"""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
from attrs import evolve
from harness.store import MemoryRig, bodies_of, entries_of

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.message import encode_message, set_offsets
from rmqpy.dledger.entry_log import frame
from rmqpy.dledger.protocol.messages import Entry
from rmqpy.dledger.state import LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.model.message import OutgoingMessage
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.message_store import MessageStore

DATA = "/store/dledger-n0/data"
INDEX = "/store/dledger-n0/index"
FILE_SIZE = 4096
INDEX_FILE_SIZE = 32 * 16


@pytest.fixture
def leader(make_rig: type[MemoryRig]) -> list[Entry]:
    """Return forty entries of another member, which fill several files."""
    rig = make_rig(flag=True)
    store = rig.open()
    for number in range(40):
        rig.put(store, number)
    entries = [
        Entry(header, bytes(body)) for header, body in map(entries_of(store).entry, range(40))
    ]
    store.shutdown()
    return entries


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=True)


def opened(rig: MemoryRig, peers: str | None = None) -> MessageStore:
    """Open a store as a follower, alone or in a group of ``peers``."""
    changes = rig.changes if peers is None else {"dledger_peers": peers}
    return evolve(rig, changes=changes).open(lead=False)


def take(entries: EntryStore, new: list[Entry]) -> None:
    entries.receive(new)
    entries.commit()


def shortest(size_max: int) -> bytearray:
    """Return a record of at most ``size_max`` bytes."""
    host = (bytes(4), 1)
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=0,
        body=b"b",
        properties=b"",
        born_timestamp_ms=1,
        born_host=host,
        store_host=host,
    )
    record = encode_message(draft)
    assert len(record) <= size_max
    return record


def bytes_of(rig: MemoryRig, folder: str) -> dict[str, bytes]:
    """Return the files of a folder without the zeros at their ends."""
    return {
        path: bytes(node.data).rstrip(b"\0")
        for path, node in rig.files.nodes.items()
        if path.startswith(folder)
    }


def entry_at(index: int, term: int, position: int, body: bytes | bytearray | memoryview) -> Entry:
    """Return an entry whose record contains its physical offset."""
    record = bytearray(body)
    set_offsets(record, 0, None, position + ENTRY_HEADER_SIZE, 1_700_000_000_000)
    return Entry.of(index, term, position, bytes(record))


def with_term(entries: list[Entry], term: int) -> list[Entry]:
    """Return entries of another term with the same bodies, one after the other."""
    placed: list[Entry] = []
    end = entries[0].position
    for entry in entries:
        position = frame(end, entry.size, FILE_SIZE)
        placed.append(entry_at(entry.index, term, position, entry.body))
        end = position + entry.size
    return placed


def read_entries(entries: EntryStore, indexes: Iterable[int]) -> list[Entry]:
    return [Entry(*entries.entry(index)) for index in indexes]


@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_received_entries_are_stored_unchanged(
    rig: MemoryRig, leader: list[Entry], at_once: int
) -> None:
    store = opened(rig)
    entries = entries_of(store)
    for start in range(0, 40, at_once):
        take(entries, leader[start : start + at_once])
    assert entries.end == LedgerEnd(LedgerIndex(39), Term(0))
    assert read_entries(entries, range(40)) == leader
    assert entries.end_offset == leader[-1].end_offset
    store.close_without_flush()
    store = opened(rig)
    assert read_entries(entries_of(store), range(40)) == leader
    store.close_without_flush()


@pytest.mark.parametrize("kept", [1, 5, 14, 15, 16, 30, 39])
def test_a_tail_is_truncated_and_replaced(rig: MemoryRig, leader: list[Entry], kept: int) -> None:
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader)
    rig.flush(store)
    entries.truncate_from(kept)
    assert entries.end.index == entries.stored_index == kept - 1
    assert entries.end_offset == leader[kept - 1].end_offset
    assert entries.flushed_offset <= entries.end_offset
    with pytest.raises(IndexError):
        entries.entry(kept)
    reopened = opened(rig.after_end("crash"))
    assert entries_of(reopened).end.index == kept - 1, "a truncation is durable at once"
    reopened.close_without_flush()
    position = frame(entries.end_offset, leader[0].size, FILE_SIZE)
    shorter = [entry_at(kept, 3, position, leader[0].body)]
    take(entries, shorter)
    assert Entry(*entries.entry(kept)) == shorter[0]
    assert entries.term_of(kept) == 3
    rig.flush(store)
    assert entries.flushed_offset == entries.end_offset
    store.close_without_flush()
    for after in (rig, rig.after_end("crash")):
        store = opened(after)
        assert entries_of(store).end == LedgerEnd(LedgerIndex(kept), Term(3))
        assert Entry(*entries_of(store).entry(kept)) == shorter[0]
        store.close_without_flush()


def test_committed_entries_cannot_be_truncated(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    take(entries_of(store), leader)
    entries_of(store).commit_to(LedgerIndex(20))
    with pytest.raises(AssertionError):
        entries_of(store).truncate_from(20)
    entries_of(store).truncate_from(21)
    store.close_without_flush()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("count", [0, 20], ids=["nothing", "readable"])
def test_a_log_can_be_reset_to_an_earlier_file(
    rig: MemoryRig, leader: list[Entry], count: int, restart: bool
) -> None:
    """One leader's log begins late, the next one's at 0; all of the latter is readable."""
    store = opened(rig)
    if count:
        take(entries_of(store), leader[:count])
        entries_of(store).commit_to(LedgerIndex(count - 1))
        store.dispatch()
    late = next(entry for entry in leader if entry.position == 2 * FILE_SIZE)
    assert late.index >= count
    entries_of(store).begin_again(late.index, late.position)
    store.on_log_reset()
    if restart:
        store.close_without_flush()
        store = opened(rig)
    assert store.reader.min_queue_offset("Topic", 0) == (count + 1) // 2
    entries_of(store).begin_again(0, 0)
    store.on_log_reset()
    take(entries_of(store), leader)
    entries_of(store).commit_to(LedgerIndex(39))
    store.dispatch()
    assert (
        store.reader.min_queue_offset("Topic", 0) == store.reader.min_queue_offset("Topic", 1) == 0
    )
    assert bodies_of(store) == {rig.draft(number).body for number in range(40)}
    store.close_without_flush()


@pytest.mark.parametrize("is_flushing", [False, True])
def test_a_power_loss_after_a_reset_hides_no_message(
    rig: MemoryRig, leader: list[Entry], is_flushing: bool
) -> None:
    """A flush covers everything before the later begin. Then the log is reset to its earlier begin;
    of these entries only the log is on disk, and the units of one queue, which the operating system
    has written. The leader's clock was set back, so that store times are useless.
    """
    for entry in leader[20:]:
        body = bytearray(entry.body)
        set_offsets(body, 0, None, entry.position + ENTRY_HEADER_SIZE, 1_600_000_000_000)
        leader[entry.index] = Entry.of(entry.index, 0, entry.position, bytes(body))
    store = opened(rig)
    take(entries_of(store), leader[:20])
    entries_of(store).commit_to(LedgerIndex(19))
    store.dispatch()
    rig.flush(store)
    store.flush_tracker.flush_queues()
    late = next(entry for entry in leader if entry.position == 2 * FILE_SIZE)
    entries_of(store).begin_again(late.index, late.position)
    store.close_without_flush()
    store = opened(rig)
    flush = store.flush_tracker.queue_flush_task()
    assert flush is not None
    if not is_flushing:
        flush.run()
        store.flush_tracker.queues_flushed(flush)
    entries_of(store).begin_again(0, 0)
    store.on_log_reset()
    if is_flushing:
        flush.run()
        store.flush_tracker.queues_flushed(flush)
    take(entries_of(store), leader)
    entries_of(store).commit_to(LedgerIndex(39))
    store.dispatch()
    rig.flush(store)
    rig.write_back("/consumequeue/Topic/1/")
    store = opened(rig.after_end("crash"))
    entries_of(store).commit_to(LedgerIndex(39))
    store.dispatch()
    assert bodies_of(store) == {rig.draft(number).body for number in range(40)}
    store.close_without_flush()


def test_a_log_can_be_reset_to_a_later_file(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader[:5])
    first = next(entry for entry in leader if entry.position == 2 * FILE_SIZE)
    entries.begin_again(first.index, first.position)
    assert entries.end.index == first.index - 1 and entries.begin_index == -1
    later = leader[first.index :]
    take(entries, later)
    assert (entries.begin_index, entries.end.index) == (first.index, 39)
    assert read_entries(entries, [entry.index for entry in later]) == later
    assert min(bytes_of(rig, DATA)) == f"{DATA}/{2 * FILE_SIZE:020d}"
    store.close_without_flush()
    store = opened(rig)
    assert entries_of(store).begin_index == first.index and entries_of(store).end.index == 39
    store.close_without_flush()


def test_a_roll_without_an_entry_is_undone(rig: MemoryRig, leader: list[Entry]) -> None:
    """After a crash between the filler and the entry, the next entry has the position that all
    members give it.
    """
    store = opened(rig)
    entries = entries_of(store)
    rolled = next(
        entry
        for before, entry in pairwise(leader)
        if entry.position % FILE_SIZE == 0 and FILE_SIZE - before.end_offset % FILE_SIZE >= 150
    )
    take(entries, leader[: rolled.index])
    end = entries.end_offset
    entries.make_room(rolled.size)
    assert entries.end_offset == end
    store.close_without_flush()
    store = opened(rig)
    assert entries_of(store).end_offset == end
    small = entry_at(rolled.index, 0, end, shortest(FILE_SIZE - end % FILE_SIZE - 56))
    assert frame(end, small.size, FILE_SIZE) == end
    take(entries_of(store), [small])
    assert entries_of(store).end.index == rolled.index
    store.close_without_flush()
    store = opened(rig)
    assert Entry(*entries_of(store).entry(rolled.index)) == small
    store.close_without_flush()


def test_a_damaged_entry_is_reported_and_repaired(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader)
    for position in (0, 9, 30, 53, 48 + 90):
        name, at = divmod(leader[20].position + position, FILE_SIZE)
        rig.files.nodes[f"{DATA}/{name * FILE_SIZE:020d}"].data[at] ^= 0x11
        with pytest.raises(CorruptEntryError, match="entry 20 is damaged"):
            entries.entry(20)
        with pytest.raises(CorruptEntryError, match="another entry"):
            entries.repair(with_term(leader, 7)[20])
        entries.repair(leader[20])
        assert Entry(*entries.entry(20)) == leader[20]
    store.close_without_flush()


def test_a_missing_index_unit_is_reported_and_repaired(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    take(entries_of(store), leader)
    node = rig.files.nodes[f"{INDEX}/{0:020d}"]
    node.data[5 * 32 : 6 * 32] = bytes(32)
    for read in (entries_of(store).entry, entries_of(store).term_of):
        with pytest.raises(CorruptEntryError, match="no index unit of entry 5"):
            read(5)
    with pytest.raises(CorruptEntryError, match="another entry"):
        entries_of(store).repair(with_term(leader, 7)[5])
    entries_of(store).repair(leader[5])
    assert Entry(*entries_of(store).entry(5)) == leader[5]
    store.close_without_flush()


def test_a_check_reads_one_file_at_a_time_and_reports_damage(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader)
    entries.commit_to(LedgerIndex(39))
    index, checks = 0, 0
    while index < 40:
        count, size = entries.check(index, 39, 1 << 20)
        assert size >= sum(entry.size for entry in leader[index : index + count])
        index, checks = index + count, checks + 1
    assert index == 40 and 1 < checks < 20
    name, at = divmod(leader[1].position + 48 + 90, FILE_SIZE)
    rig.files.nodes[f"{DATA}/{name * FILE_SIZE:020d}"].data[at] ^= 1
    with pytest.raises(CorruptEntryError, match="entry 1 is damaged"):
        entries.check(0, 39, 1 << 20)
    rig.files.nodes[f"{INDEX}/{0:020d}"].data[10 * 32 + 20] ^= 1
    rig.files.nodes[f"{INDEX}/{0:020d}"].data[12 * 32 + 5] ^= 1
    for damaged in (10, 12):
        index = 2 if damaged == 10 else 11
        with pytest.raises(CorruptEntryError, match=f"entry {damaged} is damaged"):
            while index < 40:
                index += entries.check(index, 39, 1 << 20)[0]
    store.close_without_flush()


def test_a_sync_does_not_cover_entries_written_after_its_start(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    """The tail is truncated and replaced while the sync runs."""
    store = opened(rig)
    entries = entries_of(store)
    flushed: list[LedgerEnd] = []
    entries.subscribe(flushed=flushed.append)
    take(entries, leader[:10])
    task = store.flush_tracker.flush_task()
    assert task is not None
    entries.truncate_from(5)
    take(entries, with_term(leader[5:12], 2))
    task.run()
    store.flush_tracker.flushed(task.offset)
    assert flushed == [LedgerEnd(LedgerIndex(4), Term(0))], "the last entry that was not replaced"
    assert entries.flushed_offset <= leader[4].end_offset
    rig.flush(store)
    assert entries.flushed_offset == entries.end_offset
    store.close_without_flush()
    store = opened(rig.after_end("crash"))
    assert entries_of(store).end == LedgerEnd(LedgerIndex(11), Term(2))
    store.close_without_flush()


def test_a_flush_of_the_log_syncs_the_data_and_no_units(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    """The units of entries since the last checkpoint are lost with the power, and written again."""
    store = opened(rig)
    take(entries_of(store), leader)
    rig.flush(store)
    units = bytes_of(rig, INDEX)
    rig = rig.after_end("crash")
    store.close_without_flush()
    assert not any(bytes_of(rig, INDEX).values())
    store = opened(rig)
    assert bytes_of(rig, INDEX) == units
    assert read_entries(entries_of(store), range(40)) == leader
    store.close_without_flush()


@pytest.mark.parametrize("seed", range(20))
def test_units_that_a_power_loss_keeps_in_any_combination_are_completed(
    rig: MemoryRig, leader: list[Entry], seed: int
) -> None:
    """The time up to which the log was flushed may lead recovery to a file after lost units."""
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader[:12])
    rig.flush(store)
    entries.commit_to(LedgerIndex(8))
    for file in entries.take_dirty_index():
        file.sync()
    entries.mark_index_flushed()
    entries.checkpoint_task()()
    take(entries, leader[12:])
    rig.flush(store)
    store.flush_tracker.flush_queues()
    checkpoint = rig.files.open("/store/checkpoint", size=4096)
    late_ms = rig.clock.now_ms() + 3_600_000
    checkpoint.write(0, struct.pack(">qqq", late_ms, late_ms, late_ms))
    checkpoint.sync()
    rig.files.sync_dir("/store")
    units = bytes_of(rig, INDEX)
    after = rig.after(rig.files.tear(random.Random(seed), page_bytes=64))
    store.close_without_flush()
    store = opened(after)
    assert bytes_of(after, INDEX) == units
    assert read_entries(entries_of(store), range(40)) == leader
    store.close_without_flush()


def test_cut_units_do_not_return_after_a_power_loss(rig: MemoryRig, leader: list[Entry]) -> None:
    """Otherwise they would differ from the units of the entries that replaced theirs only in the
    term, and the entries would count as damaged.
    """
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader[:12])
    rig.flush(store)
    rig.write_back("/index/")
    entries.truncate_from(5)
    take(entries, with_term(leader[5:12], 2))
    rig.flush(store)
    rig = rig.after_end("crash")
    store.close_without_flush()
    store = opened(rig, "n0-127.0.0.1:20911;n1-127.0.0.1:20912")
    assert entries_of(store).end == LedgerEnd(LedgerIndex(11), Term(2))
    assert not entries_of(store).holes
    store.close_without_flush()


def test_a_sync_does_not_cover_entries_whose_units_are_not_written(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    """Otherwise no later sync would report them, because nothing would be left to write."""
    store = opened(rig)
    entries = entries_of(store)
    ends: list[int] = []
    entries.subscribe(flushed=lambda end: ends.append(end.index))
    rig.files.fail_write(INDEX, errno.ENOSPC)
    with pytest.raises(OSError):
        take(entries, leader[:1])
    rig.flush(store)
    rig.files.heal()
    entries.commit()
    assert entries.stored_index == 0
    rig.flush(store)
    assert ends[-1] == 0
    with pytest.raises(OSError):
        rig.files.fail_write(INDEX, errno.ENOSPC)
        take(entries, leader[1:2])
    rig.flush(store)
    rig.files.heal()
    entries.commit()
    rig.flush(store)
    assert ends[-1] == 1
    store.close_without_flush()


MEMBERS = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"


@pytest.mark.parametrize("wrong", ["header", "unit"])
@pytest.mark.parametrize("index", [0, 7, 20, 38])
def test_an_entry_whose_header_and_unit_have_different_terms_is_damaged(
    rig: MemoryRig, leader: list[Entry], index: int, wrong: str
) -> None:
    """Both terms fit the entries around it, and with the wrong one the logs of members would
    silently differ.
    """
    terms = [2 if number < index else 6 for number in range(40)]
    some = [
        entry_at(entry.index, term, entry.position, entry.body)
        for entry, term in zip(leader, terms, strict=True)
    ]
    store = opened(rig)
    take(entries_of(store), some)
    rig.flush(store)
    store.close_without_flush()
    folder, size, place = DATA, FILE_SIZE, some[index].position + 16
    if wrong == "unit":
        folder, size, place = INDEX, INDEX_FILE_SIZE, index * 32 + 24
    start = place - place % size
    rig.files.nodes[f"{folder}/{start:020d}"].data[place - start + 7] = 4
    store = opened(rig, MEMBERS)
    entries = entries_of(store)
    assert {index} == set(entries.holes)
    assert entries.end == LedgerEnd(LedgerIndex(39), Term(6))
    with pytest.raises(CorruptEntryError):
        entries.entry(index)
    entries.repair(some[index])
    assert not entries.holes
    assert read_entries(entries, range(40)) == some
    store.close_without_flush()


@pytest.mark.parametrize("byte", [16 + 7, 12 + 3, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_damaged_entries_at_the_end_are_a_torn_tail(
    rig: MemoryRig, leader: list[Entry], count: int, byte: int
) -> None:
    """Their term, index or magic is wrong, and no valid entry follows."""
    store = opened(rig)
    take(entries_of(store), leader)
    rig.flush(store)
    store.close_without_flush()
    rig.files.power_failures += 1
    for entry in leader[-count:]:
        start = entry.position - entry.position % FILE_SIZE
        rig.files.nodes[f"{DATA}/{start:020d}"].data[entry.position - start + byte] = 99
    store = opened(rig, MEMBERS)
    entries = entries_of(store)
    assert not entries.holes
    assert entries.end == LedgerEnd(LedgerIndex(39 - count), Term(0))
    assert entries.end_offset == leader[39 - count].end_offset
    take(entries, leader[-count:])
    assert read_entries(entries, range(40)) == leader
    store.close_without_flush()
