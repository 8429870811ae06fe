"""Tests of a start after a kill on a machine that kept running: all that was written is in the
files, so an incomplete record is damage if a unit or a later record shows that it was complete, and
otherwise what the kill has interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define
from harness.store import CrashingFiles, KilledError, MemoryRig, StoreRig, bodies_of, entries_of

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.message import encode_message, set_offsets
from rmqpy.dledger.entries import Entry
from rmqpy.dledger.entry_log import frame
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import LedgerIndex
from rmqpy.store.files.disk import OsFileSystem, boot_id
from rmqpy.testing.memory_files import MemoryFile

FILE_SIZE = 4096
FLUSHED, UNFLUSHED = 6, 6
PAGE_BYTES = 32
NOTE, ABORT = "/store/rmqpy/boot", "/store/abort"
PEERS = ";".join(f"n{number}-127.0.0.1:{number + 1}" for number in range(3))


def flip(rig: StoreRig, offset: int) -> None:
    """Flip a bit of the checksum of a record."""
    path, position = rig.place(offset)
    (byte,) = rig.files.read_bytes(f"{rig.root}/{path}")[position + 8 : position + 9]
    rig.edit(path, position + 8, bytes([byte ^ 1]))


def killed(rig: StoreRig) -> list[int]:
    """Put messages, of which the first ones are flushed and committed, and kill the process; return
    their offsets.
    """
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(FLUSHED)]
    rig.flush(store)
    rig.save_checkpoint(store)
    offsets += [rig.put(store, number)[0] for number in range(FLUSHED, FLUSHED + UNFLUSHED)]
    store.close_without_flush()
    return offsets


@pytest.fixture(params=[False, True], ids=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=request.param)


@pytest.mark.parametrize("number", [FLUSHED, FLUSHED + 3, FLUSHED + UNFLUSHED - 1])
def test_a_damaged_record_stops_the_start_of_a_single_broker(rig: MemoryRig, number: int) -> None:
    offsets = killed(rig)
    flip(rig, offsets[number])
    before = rig.tree()
    at = offsets[number] - (ENTRY_HEADER_SIZE if rig.flag else 0)
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"damaged (last )?record at offset {at} "):
            rig.open()
    assert rig.tree() == before
    rig.force = True
    store = rig.open()
    assert store.log.max_offset == at
    store.close_without_flush()
    rig.force = False
    rig.open().shutdown()


@pytest.mark.parametrize("change", ["other boot", "no note", "bad note", "copy", "no boot id"])
@pytest.mark.parametrize("number", [FLUSHED, FLUSHED + UNFLUSHED - 1])
def test_what_shows_no_kill_may_be_a_power_failure(
    rig: MemoryRig, number: int, change: str
) -> None:
    offsets = killed(rig)
    flip(rig, offsets[number])
    if change == "other boot":
        rig.files.power_failures += 1
    elif change == "no note":
        rig.files.unlink(NOTE)
    elif change == "bad note":
        rig.files.put(NOTE, b"\xff\n")
    elif change == "copy":
        rig.files.put(ABORT, b"")
    else:
        rig.knows_boot = False
    store = rig.open()
    assert store.log.max_offset == offsets[number] - (ENTRY_HEADER_SIZE if rig.flag else 0)
    store.close_without_flush()
    assert (NOTE in rig.files.nodes) == rig.knows_boot


def test_a_java_broker_that_has_run_since_counts_as_a_power_failure(rig: MemoryRig) -> None:
    """It may leave earlier bytes after the end of its log. Its checkpoints lack what ours have."""
    offsets = killed(rig)
    if rig.flag:
        for name in ("checkpoint", "checkpoint.bak"):
            rig.files.put(f"/store/dledger-n0/{name}", b"committedIndex=5\nendIndex=11\n")
    else:
        rig.edit("checkpoint", 0, (int.from_bytes(rig.tree()["checkpoint"][:8]) + 1).to_bytes(8))
    flip(rig, offsets[-1])
    store = rig.open()
    assert store.log.max_offset == offsets[-1] - (ENTRY_HEADER_SIZE if rig.flag else 0)
    store.close_without_flush()


@pytest.mark.parametrize("lost", ["nothing", "the checkpoint"])
def test_a_power_failure_of_a_new_member_leaves_a_torn_tail(
    make_rig: type[MemoryRig], lost: str
) -> None:
    """It comes before the first checkpoint with an entry, and takes a page in the middle."""
    rig = make_rig(flag=True)
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(FLUSHED)]
    store.close_without_flush()
    flip(rig, offsets[2])
    rig.files.power_failures += 1
    if lost == "nothing":
        store = rig.open()
        assert store.log.max_offset == offsets[2] - ENTRY_HEADER_SIZE
        store.close_without_flush()
    else:  # A Java broker may have written all that, and synced it.
        rig.files.unlink("/store/dledger-n0/checkpoint")
        with pytest.raises(StoreError, match="damaged record"):
            rig.open()


def test_the_start_of_an_empty_log_keeps_an_older_checkpoint(make_rig: type[MemoryRig]) -> None:
    """It shows that the member has had entries, so that it does not lead without them."""
    rig = make_rig(flag=True)
    killed(rig)
    folder = "/store/dledger-n0"
    rig.files.put(f"{folder}/checkpoint.bak", rig.files.read_bytes(f"{folder}/checkpoint"))
    for path in [path for path in rig.files.nodes if path.startswith(folder)]:
        if not path.endswith((".bak", "currterm")):
            rig.files.unlink(path)
    with pytest.raises(StoreError, match=f"entries up to {FLUSHED - 1}, which were on disk"):
        rig.open()


@pytest.mark.parametrize("number", [FLUSHED, FLUSHED + 3, FLUSHED + UNFLUSHED - 1])
def test_a_damaged_young_entry_of_a_member_is_a_gap(make_rig: type[MemoryRig], number: int) -> None:
    rig = make_rig(flag=True)
    offsets = killed(rig)
    rig.changes["dledger_peers"] = PEERS
    store = rig.open(lead=False)
    intact = [Entry(*entries_of(store).entry(index)) for index in range(len(offsets))]
    intact = [Entry(entry.header, bytes(entry.body)) for entry in intact]
    store.close_without_flush()
    flip(rig, offsets[number])
    for _ in range(2):
        store = rig.open(lead=False)
        entries = entries_of(store)
        assert set(entries.holes) == {number}
        assert entries.end.index == len(offsets) - 1
        store.close_without_flush()
    store = rig.open(lead=False)
    entries = entries_of(store)
    entries.repair(intact[number])
    assert [Entry(*entries.entry(index)) for index in range(len(offsets))] == intact
    store.shutdown()
    assert rig.open(lead=False).opened.notes == []


def test_units_are_found_in_a_log_that_has_started_over(make_rig: type[MemoryRig]) -> None:
    """The first units of its index file were never written."""
    store = make_rig(flag=True, changes={"dledger_peers": PEERS}).open(lead=False)
    entries = entries_of(store)
    entries.begin_again(61, 20 * FILE_SIZE)
    new = entries_for([3] * 9, 61, 20 * FILE_SIZE)
    entries.receive(new)
    entries.commit()
    for entry in new:
        unit = entries._index.find(entry.position)
        assert unit is not None and unit.index == entry.index
    store.close_without_flush()


@define(slots=True, eq=False, repr=False)
class TornFile(MemoryFile):
    """A file in which the write that is interrupted by the kill has begun: it ends at a page."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        layer = self._layer
        assert isinstance(layer, TornFiles)
        if layer.dies_at is not None and layer.operations >= layer.dies_at:
            stop = (position + len(data) * layer.quarters // 4) // PAGE_BYTES * PAGE_BYTES
            part = bytes(data)[: max(0, stop - position)]
            self._node.data[position : position + len(part)] = part
            self._node.extent = max(self._node.extent, position + len(part))
        MemoryFile.write(self, position, data)


class TornFiles(CrashingFiles):
    """Files of a process that is killed in the middle of a write, of which ``quarters`` of the
    bytes are there.
    """

    quarters = 0

    def open(self, path: str, *, size: int | None = None) -> MemoryFile:
        file = super().open(path, size=size)
        return TornFile(file.path, file._node, self)


def each_kill(run: Callable[[MemoryRig], None], make_rig: type[MemoryRig], flag: bool) -> int:
    """Run an operation on a new store, killed at each of its changes of files, until it is not
    killed; return how often it was. ``run`` is called with the rig of the killed process first and
    must raise KilledError, and then with that of the next process.
    """
    kills = 0
    for number in range(1000):
        for quarters in range(4):
            files = TornFiles()
            files.quarters = quarters
            files.dies_at = number
            rig = make_rig(files=files, flag=flag, changes={"dledger_peers": PEERS})
            try:
                run(rig)
            except KilledError as kill:
                kills += 1
                if kill.args[0] != "write":
                    break
            else:
                return kills
    pytest.fail("it never ends")


@pytest.mark.slow
def test_a_classic_store_starts_after_a_kill_at_every_change(make_rig: type[MemoryRig]) -> None:
    def run(rig: MemoryRig) -> None:
        stored: list[int] = []
        try:
            store = rig.open()
            for number in range(0, 24, 3):
                rig.put(store, number, number + 1, number + 2)
                stored += range(number, number + 3)
                if number == 6:
                    rig.flush(store)
                    store.flush_tracker.flush_queues()
        except KilledError:
            store = rig.after_end("kill").open()
            assert bodies_of(store) >= {rig.draft(number).body for number in stored}
            store.close_without_flush()
            raise
        store.close_without_flush()

    assert each_kill(run, make_rig, flag=False) > 100


def entries_for(terms: list[int], first: int, end: int) -> list[Entry]:
    """Return entries of these terms that follow an entry which ends at ``end``."""
    made = []
    for number, term in enumerate(terms, first):
        record = bytearray(encode_message(MemoryRig.draft(number)))
        position = frame(end, ENTRY_HEADER_SIZE + len(record), FILE_SIZE)
        set_offsets(record, 0, None, position + ENTRY_HEADER_SIZE, 1_700_000_000_000)
        made.append(Entry.of(number, term, position, bytes(record)))
        end = made[-1].end_offset
    return made


def follow(rig: MemoryRig, sure: list[Entry]) -> None:
    """Let a follower receive entries, replace its tail, and start over. ``sure`` is kept to what it
    has acknowledged and no leader may have cut off.
    """
    store = rig.open(lead=False)
    entries = entries_of(store)

    def take(new: list[Entry]) -> None:
        for start in range(0, len(new), 3):
            entries.receive(new[start : start + 3])
            entries.commit()
            sure.extend(new[start : start + 3])

    take(entries_for([1] * 12, 0, 0))
    rig.flush(store)
    entries.commit_to(LedgerIndex(5))
    rig.save_checkpoint(store)
    take(entries_for([1] * 27, 12, sure[-1].end_offset))
    del sure[8:]
    entries.truncate_from(8)
    take(entries_for([2] * 20, 8, sure[-1].end_offset))
    sure.clear()
    entries.begin_again(60, 20 * FILE_SIZE)
    take(entries_for([3] * 3, 60, 20 * FILE_SIZE))
    store.close_without_flush()


@pytest.mark.slow
def test_a_follower_starts_after_a_kill_at_every_change(make_rig: type[MemoryRig]) -> None:
    def run(rig: MemoryRig) -> None:
        sure: list[Entry] = []
        try:
            follow(rig, sure)
        except KilledError:
            after = rig.after_end("kill")
            for _ in range(2):
                store = after.open(lead=False)
                entries = entries_of(store)
                assert not entries.holes
                last = sure[-1].index if sure else -1
                assert entries.end.index >= last
                for entry in sure:
                    header, body = entries.entry(entry.index)
                    assert Entry(header, bytes(body)) == entry
                store.close_without_flush()
            raise

    assert each_kill(run, make_rig, flag=True) > 200


@pytest.mark.skipif(not boot_id(), reason="the system has no boot id")
def test_the_disk_shows_a_kill(tmp_path: Path) -> None:
    """The note is that of the system, and a copy of the store is not taken for the store."""
    rig = StoreRig(OsFileSystem(), os.fspath(tmp_path / "store"))
    offsets = killed(rig)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    copy = StoreRig(OsFileSystem(), os.fspath(tmp_path / "copy"))
    for each in (rig, copy):
        flip(each, offsets[-1])
    with pytest.raises(StoreError, match="damaged last record"):
        rig.open()
    store = copy.open()
    assert store.log.max_offset == offsets[-1]
    store.close_without_flush()
