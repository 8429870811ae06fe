"""The scrub by itself: what it asks for, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.store import MemoryRig, entries_of

from rmqpy.dledger.protocol.messages import Entry
from rmqpy.model.ids import LedgerIndex
from rmqpy.store.ledger.entry_reader import CorruptEntryError
from rmqpy.store.ledger.entry_scrub import PERIOD_MS, REST_MS, RETRY_MS, Scrub
from rmqpy.store.message_store import MessageStore

FILE_SIZE = 4096


@pytest.fixture
def store(make_rig: type[MemoryRig]) -> MessageStore:
    rig = make_rig(flag=True)
    store = rig.open()
    for number in range(40):
        rig.put(store, number)
    store.rig = rig
    yield store
    store.close_without_flush()


def flip(store: MessageStore, index: int) -> None:
    header, _ = entries_of(store).entry(index)
    name, at = divmod(header.position + 48 + 90, FILE_SIZE)
    path = f"/store/dledger-n0/data/{name * FILE_SIZE:020d}"
    store.rig.files.nodes[path].data[at] ^= 1


def test_what_is_found_is_asked_for_until_it_is_whole(store: MessageStore) -> None:
    entries = entries_of(store)
    whole = Entry(*entries.entry(30))
    whole = Entry(whole.header, bytes(whole.body))
    asked: list[tuple[int, Callable[[Entry | None], None]]] = []
    scrub = Scrub(entries, lambda index, done: asked.append((index, done)) is None)
    scrub.tick(0)
    flip(store, 30)
    scrub.tick(REST_MS - 1)
    with pytest.raises(CorruptEntryError, match="entry 30") as found:
        scrub.tick(REST_MS)
    scrub.on_damage_found(found.value)
    scrub.tick(REST_MS + PERIOD_MS)
    asked[0][1](None)
    scrub.tick(REST_MS + PERIOD_MS + RETRY_MS)
    assert [index for index, _ in asked] == [30, 30] and scrub.damaged == {30}
    asked[1][1](whole)
    assert scrub.damaged == set() and Entry(*entries.entry(30)) == whole
    scrub.tick(10 * REST_MS)
    assert len(asked) == 2


def test_old_entries_are_looked_at_again_while_new_ones_come(store: MessageStore) -> None:
    scrub = Scrub(entries_of(store), lambda index, done: True)
    scrub.tick(0)
    flip(store, 5)
    store.rig.put(store, 40)
    with pytest.raises(CorruptEntryError, match="entry 5"):
        scrub.tick(REST_MS)


def test_nobody_asks_for_what_has_expired_or_was_cut_off(store: MessageStore) -> None:
    asked: list[int] = []
    scrub = Scrub(entries_of(store), lambda index, done: asked.append(index) is None)
    for index in (3, 39):
        scrub.on_damage_found(CorruptEntryError("/store/x", index, "a bit that flipped"))
    entries_of(store).release_first_file().close()
    assert entries_of(store).begin_index > 3
    scrub.tick(0)
    assert asked == [39] and scrub.damaged == {39}
    entries_of(store).committed_index = LedgerIndex(20)
    entries_of(store).truncate_from(30)
    scrub.tick(RETRY_MS)
    assert asked == [39] and scrub.damaged == set()
