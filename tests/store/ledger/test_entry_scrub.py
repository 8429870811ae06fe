"""Tests of the scrub: which entries it requests, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness.store import MemoryRig, entries_of

from rmqpy.dledger.protocol.messages import Entry
from rmqpy.model.ids import LedgerIndex
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_scrub import PERIOD_MS, REST_MS, RETRY_MS, Scrub
from rmqpy.store.message_store import MessageStore

FILE_SIZE = 4096


Request = tuple[int, Callable[[Entry | None], None]]


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=True)


@pytest.fixture
def store(rig: MemoryRig) -> Iterator[MessageStore]:
    store = rig.open()
    for number in range(40):
        rig.put(store, number)
    yield store
    store.close_without_flush()


def flip(rig: MemoryRig, store: MessageStore, index: int) -> None:
    """Damage the body of an entry."""
    header, _ = entries_of(store).entry(index)
    name, at = divmod(header.position + 48 + 90, FILE_SIZE)
    path = f"/store/dledger-n0/data/{name * FILE_SIZE:020d}"
    rig.files.nodes[path].data[at] ^= 1


def test_a_damaged_entry_is_requested_until_it_is_repaired(
    rig: MemoryRig, store: MessageStore
) -> None:
    entries = entries_of(store)
    intact = Entry(*entries.entry(30))
    intact = Entry(intact.header, bytes(intact.body))
    requested: list[Request] = []

    def fetch(index: int, done: Callable[[Entry | None], None]) -> bool:
        requested.append((index, done))
        return True

    scrub = Scrub(entries, fetch)
    scrub.tick(0)
    flip(rig, store, 30)
    scrub.tick(REST_MS - 1)
    with pytest.raises(CorruptEntryError, match="entry 30") as found:
        scrub.tick(REST_MS)
    scrub.on_damage_found(found.value)
    scrub.tick(REST_MS + PERIOD_MS)
    requested[0][1](None)
    scrub.tick(REST_MS + PERIOD_MS + RETRY_MS)
    assert [index for index, _ in requested] == [30, 30] and scrub.damaged == {30}
    requested[1][1](intact)
    assert scrub.damaged == set() and Entry(*entries.entry(30)) == intact
    scrub.tick(10 * REST_MS)
    assert len(requested) == 2


def test_old_entries_are_checked_again_while_new_ones_arrive(
    rig: MemoryRig, store: MessageStore
) -> None:
    scrub = Scrub(entries_of(store), lambda index, done: True)
    scrub.tick(0)
    flip(rig, store, 5)
    rig.put(store, 40)
    with pytest.raises(CorruptEntryError, match="entry 5"):
        scrub.tick(REST_MS)


def test_expired_and_truncated_entries_are_not_requested(store: MessageStore) -> None:
    requested: list[int] = []

    def fetch(index: int, done: Callable[[Entry | None], None]) -> bool:
        requested.append(index)
        return True

    entries = entries_of(store)
    scrub = Scrub(entries, fetch)
    for index in (3, 39):
        scrub.on_damage_found(CorruptEntryError("/store/x", index, "a bit that flipped"))
    entries.release_first_file().close()
    assert entries.begin_index > 3
    scrub.tick(0)
    assert requested == [39] and scrub.damaged == {39}
    entries.committed_index = LedgerIndex(20)
    entries.truncate_from(30)
    scrub.tick(RETRY_MS)
    assert requested == [39] and scrub.damaged == set()
