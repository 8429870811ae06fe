"""A follower's changes of the entry files: entries taken byte for byte, a tail cut off, everything
begun again; what a crash in between leaves.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from harness.store import MemoryRig, bodies_of, entries_of

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.message import encode_messages, set_offsets
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
    """Forty entries as another member has them: they fill several files."""
    made = make_rig(flag=True)
    store = made.open()
    for number in range(40):
        made.put(store, number)
    entries = [
        Entry(header, bytes(body)) for header, body in map(entries_of(store).entry, range(40))
    ]
    store.shutdown()
    return entries


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=True)


def opened(rig: MemoryRig) -> MessageStore:
    return rig.open(lead=False)


def take(entries: EntryStore, new: list[Entry]) -> None:
    entries.receive(new)
    entries.commit()


def shortest(size_max: int) -> bytearray:
    """A record of no more bytes."""
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
    (record,) = encode_messages([draft])
    assert len(record) <= size_max
    return record


def bytes_of(rig: MemoryRig, folder: str) -> dict[str, bytes]:
    return {
        path: bytes(node.data).rstrip(b"\0")
        for path, node in rig.files.nodes.items()
        if path.startswith(folder)
    }


def entry_at(index: int, term: int, position: int, body: Any) -> Entry:
    """An entry whose record says where it stands."""
    record = bytearray(body)
    set_offsets(record, 0, None, position + ENTRY_HEADER_SIZE, 1_700_000_000_000)
    return Entry.of(index, term, position, bytes(record))


def with_term(entries: list[Entry], term: int) -> list[Entry]:
    """The same bodies, placed one behind the other in another term."""
    made, end = [], entries[0].position
    for entry in entries:
        position = frame(end, entry.size, FILE_SIZE)
        made.append(entry_at(entry.index, term, position, entry.body))
        end = position + entry.size
    return made


@pytest.mark.parametrize("at_once", [1, 7, 40])
def test_what_is_received_is_what_was_sent(
    rig: MemoryRig, leader: list[Entry], at_once: int
) -> None:
    store = opened(rig)
    entries = entries_of(store)
    for start in range(0, 40, at_once):
        take(entries, leader[start : start + at_once])
    assert entries.end == LedgerEnd(LedgerIndex(39), Term(0))
    assert [Entry(*entries.entry(index)) for index in range(40)] == leader
    assert entries.end_offset == leader[-1].end_offset
    store.close_without_flush()
    store = opened(rig)
    assert [Entry(*entries_of(store).entry(index)) for index in range(40)] == leader
    store.close_without_flush()


@pytest.mark.parametrize("kept", [1, 5, 14, 15, 16, 30, 39])
def test_a_tail_is_cut_and_replaced(rig: MemoryRig, leader: list[Entry], kept: int) -> None:
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
    cut = rig.after(rig.files.crash())
    again = opened(cut)
    assert entries_of(again).end.index == kept - 1, "a cut is durable at once"
    again.close_without_flush()
    position = frame(entries.end_offset, leader[0].size, FILE_SIZE)
    shorter = [entry_at(kept, 3, position, leader[0].body)]
    take(entries, shorter)
    assert Entry(*entries.entry(kept)) == shorter[0]
    assert entries.term_of(kept) == 3
    rig.flush(store)
    assert entries.flushed_offset == entries.end_offset
    store.close_without_flush()
    for after in (rig, rig.after(rig.files.crash())):
        store = opened(after)
        assert entries_of(store).end == LedgerEnd(LedgerIndex(kept), Term(3))
        assert Entry(*entries_of(store).entry(kept)) == shorter[0]
        store.close_without_flush()


def test_nothing_committed_is_cut(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    take(entries_of(store), leader)
    entries_of(store).commit_to(LedgerIndex(20))
    with pytest.raises(AssertionError):
        entries_of(store).truncate_from(20)
    entries_of(store).truncate_from(21)
    store.close_without_flush()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("had", [0, 20], ids=["nothing", "readable"])
def test_an_empty_log_begins_again_at_an_earlier_file(
    rig: MemoryRig, leader: list[Entry], had: int, restart: bool
) -> None:
    """One leader's log began late, the next one's at 0: all of it is readable then."""
    store = opened(rig)
    if had:
        take(entries_of(store), leader[:had])
        entries_of(store).commit_to(LedgerIndex(had - 1))
        store.dispatch()
    late = next(entry for entry in leader if entry.position == 2 * FILE_SIZE)
    assert late.index >= had
    entries_of(store).begin_again(late.index, late.position)
    store.on_log_reset()
    if restart:
        store.close_without_flush()
        store = opened(rig)
    assert store.reader.min_queue_offset("Topic", 0) == (had + 1) // 2
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


@pytest.mark.parametrize("under_way", [False, True])
def test_a_power_failure_behind_a_log_that_began_again_hides_no_message(
    rig: MemoryRig, leader: list[Entry], under_way: bool
) -> None:
    """A flush has told of all in front of a later begin. Of the earlier begin's entries nothing is
    on disk but the log, and the units of one queue, which the system has written by itself; the
    leader's clock was set back in the middle, so that times tell nothing.
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
    if not under_way:
        flush.run()
        store.flush_tracker.queues_flushed(flush)
    entries_of(store).begin_again(0, 0)
    store.on_log_reset()
    if under_way:
        flush.run()
        store.flush_tracker.queues_flushed(flush)
    take(entries_of(store), leader)
    entries_of(store).commit_to(LedgerIndex(39))
    store.dispatch()
    rig.flush(store)
    rig.write_back("/consumequeue/Topic/1/")
    store = opened(rig.after(rig.files.crash()))
    entries_of(store).commit_to(LedgerIndex(39))
    store.dispatch()
    assert bodies_of(store) == {rig.draft(number).body for number in range(40)}
    store.close_without_flush()


def test_a_log_begins_again_at_a_later_file(rig: MemoryRig, leader: list[Entry]) -> None:
    store = opened(rig)
    entries = entries_of(store)
    take(entries, leader[:5])
    first = next(entry for entry in leader if entry.position == 2 * FILE_SIZE)
    entries.begin_again(first.index, first.position)
    assert entries.end.index == first.index - 1 and entries.begin_index == -1
    later = leader[first.index :]
    take(entries, later)
    assert (entries.begin_index, entries.end.index) == (first.index, 39)
    assert [Entry(*entries.entry(entry.index)) for entry in later] == later
    assert min(bytes_of(rig, DATA)) == f"{DATA}/{2 * FILE_SIZE:020d}"
    store.close_without_flush()
    store = opened(rig)
    assert entries_of(store).begin_index == first.index and entries_of(store).end.index == 39
    store.close_without_flush()


def test_a_roll_without_an_entry_is_taken_back(rig: MemoryRig, leader: list[Entry]) -> None:
    """A crash between the filler and the entry behind it: the next entry stands where all members
    place it.
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


def test_a_damaged_entry_is_named_and_mended(rig: MemoryRig, leader: list[Entry]) -> None:
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


def test_an_index_unit_that_is_gone_is_named(rig: MemoryRig, leader: list[Entry]) -> None:
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


def test_a_check_takes_a_file_at_a_time_and_names_what_is_damaged(
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


def test_a_sync_that_is_under_way_while_the_tail_is_cut(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    """What stands there afterwards is not covered by it."""
    store = opened(rig)
    entries = entries_of(store)
    told: list[LedgerEnd] = []
    entries.on_flushed = told.append
    take(entries, leader[:10])
    task = store.flush_tracker.flush_task()
    entries.truncate_from(5)
    take(entries, with_term(leader[5:12], 2))
    task.run()
    store.flush_tracker.flushed(task.offset)
    assert told == [LedgerEnd(LedgerIndex(9), Term(0))], "as it was when the sync began"
    assert entries.flushed_offset <= leader[4].end_offset
    rig.flush(store)
    assert entries.flushed_offset == entries.end_offset
    store.close_without_flush()
    store = opened(rig.after(rig.files.crash()))
    assert entries_of(store).end == LedgerEnd(LedgerIndex(11), Term(2))
    store.close_without_flush()


def test_a_sync_counts_no_entry_whose_unit_found_no_room(
    rig: MemoryRig, leader: list[Entry]
) -> None:
    """Else no sync would ever tell of it: all that it has to write is written."""
    store = opened(rig)
    entries = entries_of(store)
    ends: list[int] = []
    entries.on_flushed = lambda end: ends.append(end.index)
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


def reopened(rig: MemoryRig, members: str) -> Any:
    """As a member of a group."""
    return opened(evolve(rig, changes={"dledger_peers": members}))


@pytest.mark.parametrize("wrong", ["header", "unit"])
@pytest.mark.parametrize("index", [0, 7, 20, 38])
def test_an_entry_of_which_header_and_unit_name_different_terms_is_damaged(
    rig: MemoryRig, leader: list[Entry], index: int, wrong: str
) -> None:
    """Both terms may be right by what stands around it: whoever believed the wrong one would have
    another log than the others, and not know."""
    terms = [2 if number < index else 6 for number in range(40)]
    some = [
        entry_at(entry.index, term, entry.position, entry.body)
        for entry, term in zip(leader, terms, strict=True)
    ]
    store = opened(rig)
    take(entries_of(store), some)
    rig.flush(store)
    store.close_without_flush()
    folder, size, place_of_term = DATA, FILE_SIZE, some[index].position + 16
    if wrong == "unit":
        folder, size, place_of_term = INDEX, INDEX_FILE_SIZE, index * 32 + 24
    start = place_of_term - place_of_term % size
    rig.files.nodes[f"{folder}/{start:020d}"].data[place_of_term - start + 7] = 4
    store = reopened(rig, MEMBERS)
    entries = entries_of(store)
    assert {index} == set(entries.holes)
    assert entries.end == LedgerEnd(LedgerIndex(39), Term(6))
    with pytest.raises(CorruptEntryError):
        entries.entry(index)
    entries.repair(some[index])
    assert not entries.holes
    assert [Entry(*entries.entry(number)) for number in range(40)] == some
    store.close_without_flush()


@pytest.mark.parametrize("place_of_byte", [16 + 7, 12 + 3, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_damaged_entries_at_the_end_are_a_torn_tail(
    rig: MemoryRig, leader: list[Entry], count: int, place_of_byte: int
) -> None:
    """Term, index or magic: nothing that is whole follows, so nothing waits for them."""
    store = opened(rig)
    take(entries_of(store), leader)
    rig.flush(store)
    store.close_without_flush()
    for entry in leader[-count:]:
        start = entry.position - entry.position % FILE_SIZE
        rig.files.nodes[f"{DATA}/{start:020d}"].data[entry.position - start + place_of_byte] = 99
    store = reopened(rig, MEMBERS)
    entries = entries_of(store)
    assert not entries.holes
    assert entries.end == LedgerEnd(LedgerIndex(39 - count), Term(0))
    assert entries.end_offset == leader[39 - count].end_offset
    take(entries, leader[-count:])
    assert [Entry(*entries.entry(number)) for number in range(40)] == leader
    store.close_without_flush()
