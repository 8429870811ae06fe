"""Tests of the view of a log with its pending changes, and of the positions of entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator.memory_log import MemoryLog

from rmqpy.codec.entry import encode_filler_head
from rmqpy.dledger.entry_log import LogView, frame
from rmqpy.dledger.protocol.messages import Entry
from rmqpy.dledger.state import LedgerEnd
from rmqpy.model.ids import LedgerIndex, Term

SIZE = 4096


def end(index: int, term: int) -> LedgerEnd:
    return LedgerEnd(LedgerIndex(index), Term(term))


def log_of(*terms: int) -> MemoryLog:
    log = MemoryLog(SIZE)
    for index, term in enumerate(terms):
        log.propose(Term(term), LedgerIndex(index), [b"x" * 10])
    return log


def next_entry(view: LogView, term: int, body: bytes = b"y") -> Entry:
    position = frame(view.end_offset, 48 + len(body), SIZE)
    return Entry.of(view.end.index + 1, term, position, body)


def test_an_entry_is_placed_where_it_and_the_filler_fit() -> None:
    assert frame(0, 100, SIZE) == 0
    assert frame(100, SIZE - 108, SIZE) == 100, "the filler's eight bytes just fit after the entry"
    assert frame(100, SIZE - 107, SIZE) == SIZE
    assert frame(SIZE, 100, SIZE) == SIZE
    assert frame(3 * SIZE - 8, 1, SIZE) == 3 * SIZE
    assert encode_filler_head(SIZE - 100).endswith((SIZE - 100).to_bytes(4))


@given(st.lists(st.integers(48, SIZE - 8), max_size=20), st.sampled_from([0, SIZE, 5 * SIZE]))
def test_entries_never_straddle_files(sizes: list[int], base: int) -> None:
    offset = base
    for size in sizes:
        position = frame(offset, size, SIZE)
        assert offset <= position < offset + SIZE
        assert position // SIZE == (position + size + 8 - 1) // SIZE
        offset = position + size


def test_a_view_answers_as_if_its_changes_had_been_applied() -> None:
    log = log_of(1, 1, 2, 2)
    view = LogView(log)
    assert not view.changed and view.end == end(3, 2) and view.begin_index == 0
    view.truncate_after(1)
    assert view.end == end(1, 1) and not view.has(2)
    assert view.end_offset == view.entry(1).end_offset == 116
    new = next_entry(view, 3)
    view.append(new)
    assert view.end == end(2, 3) and view.entry(2) == new and view.term_of(2) == 3
    assert log.end == end(3, 2), "the log itself must not change"
    assert view.take() == (2, False, (new,))
    assert not view.changed
    log.truncate_from(2)
    log.append([new])
    assert view.end == end(2, 3)


def test_pending_entries_can_be_dropped() -> None:
    view = LogView(log_of(1))
    first = next_entry(view, 2)
    view.append(first)
    view.append(next_entry(view, 2))
    view.truncate_after(1)
    assert view.end == end(1, 2)
    view.truncate_after(0)
    assert view.end == end(0, 1) and view.take() == (None, False, ())


def test_a_log_is_reset_at_the_start_of_a_file() -> None:
    view = LogView(log_of(1, 1))
    entry = Entry.of(40, 3, 2 * SIZE, b"z")
    view.reset(entry)
    view.append(next_entry(view, 3))
    assert view.begin_index == 40 and view.end == end(41, 3) and not view.has(1)
    first, is_reset, entries = view.take()
    assert (first, is_reset, [entry.index for entry in entries]) == (None, True, [40, 41])
    with pytest.raises(AssertionError):
        view.reset(Entry.of(40, 3, 2 * SIZE + 8, b"z"))


def test_entries_out_of_order_fail_an_assertion() -> None:
    view = LogView(log_of(1, 2))
    for wrong in (Entry.of(3, 2, 200, b""), Entry.of(2, 1, 116, b"")):
        with pytest.raises(AssertionError):
            view.append(wrong)
    with pytest.raises(AssertionError):
        view.entry(2)
    with pytest.raises(AssertionError):
        view.truncate_after(2)


def test_the_first_entry_of_an_empty_log_sets_its_begin() -> None:
    view = LogView(MemoryLog(SIZE, base_offset=3 * SIZE))
    assert view.begin_index == -1 and view.end == LedgerEnd() and view.end_offset == 3 * SIZE
    assert not view.has(-1) and not view.has(0)
    view.append(Entry.of(0, 1, 3 * SIZE, b"a"))
    assert view.begin_index == 0 and view.end == end(0, 1)


def test_the_memory_log_loses_unsynced_entries() -> None:
    log = log_of(1, 1)
    assert log.sync() == end(1, 1)
    log.propose(Term(2), LedgerIndex(2), [b"a", b"b", b"c"])
    log.lose_power(kept_unsynced=1)
    assert log.end == end(2, 2)
    log.sync()
    log.truncate_from(1)
    log.lose_power(kept_unsynced=5)
    assert log.end == end(2, 2), "an unsynced truncation is undone"


def test_the_memory_log_expires_whole_files_and_stays_readable() -> None:
    log = MemoryLog(SIZE)
    for index in range(200):
        log.propose(Term(1), LedgerIndex(index), [b"x" * 50])
    log.sync()
    log.expire_before(150)
    assert log.entries[0].position % SIZE == 0
    begin = log.begin_index
    assert 0 < begin <= 150 and log.end == end(199, 1)
    with pytest.raises(IndexError):
        log.entry(begin - 1)
    log.propose(Term(1), LedgerIndex(200), [b"late"])
    log.lose_power(0)
    assert (log.begin_index, log.end) == (begin, end(199, 1))
