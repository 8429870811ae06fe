"""Tests of the recovery of a log whose last bytes never reached the disk, and of one with damage
before valid records.
"""

from __future__ import annotations

import random

import pytest
from harness.store import FILE_SIZE, MemoryRig, bodies_of, entries_of, read_all

from rmqpy.model.errors import StoreError

ROOT = "/store"


def junk_zeros(count: int, seed: int) -> bytes:
    return bytes(count)


def junk_ones(count: int, seed: int) -> bytes:
    return b"\xff" * count


def junk_random(count: int, seed: int) -> bytes:
    """Return random bytes that are no text, because the first is never valid in UTF-8."""
    rng = random.Random(seed)
    return bytes([0xFF, *rng.randbytes(count - 1)]) if count else b""


JUNK = {"zeros": junk_zeros, "ones": junk_ones, "random": junk_random}


@pytest.fixture(params=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig(flag=request.param == "dledger")


def filled(
    rig: MemoryRig, count: int, clean: bool, *, durable: bool = False
) -> tuple[list[int], int, set[bytes]]:
    """Put messages, flush the log, and stop or lose the power, with ``durable`` after a checkpoint;
    return the records' offsets, the end of the log, and the bodies.
    """
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(count)]
    rig.flush(store)
    if durable:
        rig.save_checkpoint(store)
    end, bodies = store.log.max_offset, bodies_of(store)
    if clean:
        store.shutdown()
    else:
        store.close_without_flush()
        rig.files.power_failures += 1
    return offsets, end, bodies


def frame_of(rig: MemoryRig, offset: int) -> int:
    """Return the offset of the frame of a record."""
    return offset - (48 if rig.flag else 0)


@pytest.mark.slow
@pytest.mark.parametrize("junk", list(JUNK))
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_a_last_record_torn_at_any_byte_is_quarantined(
    rig: MemoryRig, junk: str, clean: bool
) -> None:
    """Exactly the intact messages remain, the torn bytes are in the quarantine and zeroed in the
    log, the next start is an ordinary one, and queue offsets stay dense.

    A record torn inside its properties has correct lengths and a correct body CRC; it is detected
    only if the junk is no text. So the random bytes here are no UTF-8.
    """
    offsets, end, bodies = filled(rig, 12, clean)
    frame = frame_of(rig, offsets[-1])
    path, position = rig.place(frame)
    stopped = rig.files.kill()
    # Without what these record, nobody knows that the last record was on disk.
    stopped.unlink(f"{ROOT}/rmqpy/recovery-point")
    for name in ("checkpoint", "checkpoint.bak"):
        stopped.unlink(f"{ROOT}/dledger-n0/{name}")
    lost = rig.draft(11).body
    written = bytes(stopped.nodes[f"{ROOT}/{path}"].data)[position : position + end - frame]
    for cut in range(end - frame):
        damaged = rig.after(stopped.kill())
        rest = JUNK[junk](end - frame - cut, cut)
        damaged.edit(path, position + cut, rest)
        torn = (written[:cut] + rest).rstrip(b"\0")
        store = damaged.open()
        assert store.log.max_offset == frame, cut
        assert bodies_of(store) == bodies - {lost}, cut
        assert any("torn" in note for note in store.opened.notes) == bool(torn), cut
        kept = {p: d for p, d in damaged.tree().items() if p.startswith("rmqpy/quarantine/")}
        assert kept == ({f"rmqpy/quarantine/{frame:020d}.bin": torn} if torn else {}), cut
        assert not any(damaged.tree()[path][position:]), cut
        damaged.put(store, 11, 13)
        assert bodies_of(store) == bodies | {rig.draft(13).body}, cut
        store.shutdown()
        reopened = damaged.open()
        assert reopened.opened.notes == [], cut
        assert bodies_of(reopened) == bodies | {rig.draft(13).body}, cut
        reopened.close_without_flush()


@pytest.mark.parametrize("junk", list(JUNK))
def test_a_torn_first_record_leaves_an_empty_log(rig: MemoryRig, junk: str) -> None:
    """The log has the same begin as before."""
    offsets, end, _ = filled(rig, 1, clean=False)
    frame = frame_of(rig, offsets[0])
    path, position = rig.place(frame)
    rig.edit(path, position + 60, JUNK[junk](end - frame - 60, 1))
    store = rig.open()
    assert (store.log.min_offset, store.log.max_offset) == (0, 0)
    assert bodies_of(store) == set()
    assert rig.put(store, 5) == offsets
    store.shutdown()


def test_a_torn_first_entry_leaves_the_old_log(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    rig.put(store, *range(4))
    store.shutdown()
    rig.flag = True
    store = rig.open()
    (offset,) = rig.put(store, 5)
    store.close_without_flush()
    rig.files.power_failures += 1
    assert offset == FILE_SIZE + 48
    path, position = rig.place(offset)
    rig.edit(path, position + 20, bytes(500))
    store = rig.open()
    assert store.opened.divided_offset == store.log.max_offset == FILE_SIZE
    assert bodies_of(store) == {rig.draft(number).body for number in range(4)}
    assert rig.put(store, 5) == [offset]
    store.shutdown()
    rig.open().shutdown()


@pytest.mark.slow
def test_a_torn_record_may_be_the_last_or_first_of_a_scan(
    rig: MemoryRig, make_rig: type[MemoryRig]
) -> None:
    """A scan returns at most 4096 records; the torn one is the last of a scan, then the first."""
    rig.changes |= {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 60000}
    for count in (4096, 4097):
        rig = make_rig(flag=rig.flag, changes=rig.changes)
        store = rig.open()
        rig.put(store, *range(count), body=b"", properties=b"A\x01bcd")
        assert store.log.max_offset < 1 << 20
        end = store.log.max_offset
        store.close_without_flush()
        rig.files.power_failures += 1
        path = f"dledger-n0/data/{0:020d}" if rig.flag else f"commitlog/{0:020d}"
        rig.edit(path, end - 2, bytes(2))
        store = rig.open()
        ends = [store.reader.max_queue_offset("Topic", queue_id) for queue_id in (0, 1)]
        assert sum(ends) == count - 1
        store.close_without_flush()


def test_a_property_with_a_zero_character_is_not_torn(rig: MemoryRig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.put(store, 2, properties=b"A\x01b\0c\x02D\x01e")
    store.close_without_flush()
    store = rig.open()
    assert not any("quarantine" in path for path in rig.tree())
    assert bodies_of(store) == {rig.draft(1).body, rig.draft(2).body}
    store.shutdown()


def test_the_quarantine_is_not_overwritten(rig: MemoryRig) -> None:
    """The log is torn at the same place twice."""
    offsets, _, _ = filled(rig, 2, clean=False)
    frame = frame_of(rig, offsets[-1])
    path, position = rig.place(frame)
    for byte in (b"\xfe", b"\xff"):
        rig.files.power_failures += 1
        rig.edit(path, position, byte * 90)
        rig.open().close_without_flush()
    kept = {p: d for p, d in rig.tree().items() if p.startswith("rmqpy/quarantine/")}
    name = f"rmqpy/quarantine/{frame:020d}.bin"
    assert set(kept) == {name, name + ".1"}
    assert kept[name][:90] == b"\xfe" * 90 and kept[name + ".1"] == b"\xff" * 90


def test_a_torn_tail_before_a_file_created_ahead_is_quarantined(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    number = 0
    while not any(path.endswith(f"{FILE_SIZE:020d}") for path in rig.files.nodes):
        (offset,) = rig.put(store, number)
        number += 1
    assert store.log.max_offset < FILE_SIZE
    store.close_without_flush()
    rig.edit(*rig.place(offset), b"\xff" * 50)
    store = rig.open()
    assert store.log.max_offset == offset
    assert not any(path.endswith(f"{FILE_SIZE:020d}") for path in rig.files.nodes)
    for more in range(number, number + 40):
        rig.put(store, more)
    read_all(store)
    store.shutdown()
    rig.open().shutdown()


def test_a_log_may_end_with_a_closed_file(rig: MemoryRig) -> None:
    """The broker was killed between the filler and the next file."""
    store = rig.open()
    number = 0
    while store.log.max_offset < FILE_SIZE + 100:
        rig.put(store, number)
        number += 1
    bodies = bodies_of(store)
    store.close_without_flush()
    folder = "dledger-n0/data" if rig.flag else "commitlog"
    for path in list(rig.files.nodes):
        if path.startswith(f"{ROOT}/{folder}/") and not path.endswith(f"{0:020d}"):
            del rig.files.nodes[path]
    for _ in range(2):
        store = rig.open()
        found = bodies_of(store)
        assert found < bodies and len(found) == number - 1
        store.close_without_flush()
    store = rig.open()
    rig.put(store, *range(100, 140))
    assert len(bodies_of(store)) == number - 1 + 40
    store.shutdown()
    store = rig.open()
    assert len(bodies_of(store)) == number - 1 + 40
    store.shutdown()


# ------------------------------------------------------------------------------- in the middle


def damage(rig: MemoryRig, place: int, data: bytes = b"\xff\xff\xff\xff") -> None:
    path, position = rig.place(place)
    rig.edit(path, position, data)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", ["size", "magic", "body", "place"])
def test_damage_in_the_middle_is_refused(rig: MemoryRig, what: str, clean: bool) -> None:
    offsets, _, _ = filled(rig, 8, clean, durable=True)
    damaged = offsets[3]
    damage(rig, damaged + {"size": 0, "magic": 4, "body": 90, "place": 28}[what])
    before = rig.tree()
    path, position = rig.place(frame_of(rig, damaged))
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert refused.value.path == f"{ROOT}/{path}"
    assert f"offset {frame_of(rig, damaged)} (byte {position} of the file)" in refused.value.found
    assert f"at offset {offsets[4]} in" in refused.value.found
    assert "with 4 messages that can be read, by starting once with --force-truncate" in (
        refused.value.remedy
    )
    assert rig.tree() == before
    rig.force = True
    store = rig.open()
    note = next(each for each in store.opened.notes if "gave up" in each)
    assert f"offset {frame_of(rig, damaged)} on" in note and "with 4 messages that could be" in note
    assert bodies_of(store) == {rig.draft(number).body for number in range(3)}
    kept = [p for p in rig.tree() if p.startswith("rmqpy/quarantine/")]
    assert kept == [f"rmqpy/quarantine/{frame_of(rig, damaged):020d}.bin"]
    assert rig.draft(7).body in rig.tree()[kept[0]]
    rig.put(store, 20, 21)
    store.shutdown()
    rig.force = False
    store = rig.open()
    assert store.opened.notes == []
    assert rig.draft(20).body in bodies_of(store)
    store.shutdown()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_damage_with_valid_records_in_a_later_file(rig: MemoryRig, clean: bool) -> None:
    """The rest of its file is zero; the next files are intact."""
    offsets, _, _ = filled(rig, 40, clean, durable=True)
    number = next(n for n, offset in enumerate(offsets) if offset >= FILE_SIZE)
    start = frame_of(rig, offsets[number - 1])
    path, position = rig.place(start)
    rig.edit(path, position, bytes(FILE_SIZE - position))
    before = rig.tree()
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert refused.value.path == f"{ROOT}/{path}"
    assert f"at offset {offsets[number]} in" in refused.value.found
    assert rig.tree() == before
    rig.force = True
    store = rig.open()
    assert store.log.max_offset == start
    assert len(bodies_of(store)) == number - 1
    rig.put(store, *range(100, 130))
    store.shutdown()
    rig.force = False
    store = rig.open()
    assert len(bodies_of(store)) == number - 1 + 30
    store.shutdown()


def test_a_forced_start_may_cut_at_the_start_of_a_file(rig: MemoryRig) -> None:
    """Recovery starts at the damage; the files before it provide the log and the last index."""
    offsets, _, _ = filled(rig, 110, clean=True)
    folder = "dledger-n0/data/" if rig.flag else "commitlog/"
    files = sorted(path for path in rig.tree() if path.startswith(folder))
    assert len(files) > 4
    rig.edit(files[-3], 0, b"\xff" * 60)
    rig.force = True
    store = rig.open()
    start = int(files[-3][-20:])
    left = [offset for offset in offsets if offset < start]
    assert len(bodies_of(store)) == len(left)
    assert all(store.reader.message_at(offset) is not None for offset in left)
    if rig.flag:
        assert entries_of(store).end.index == len(left) - 1
    (offset,) = rig.put(store, 500)
    assert offset >= left[-1]
    rig.force = False
    store.shutdown()
    store = rig.open()
    assert len(bodies_of(store)) == len(left) + 1
    store.shutdown()


def test_damage_before_the_scan_refuses_a_rebuild_of_the_queues(
    make_rig: type[MemoryRig],
) -> None:
    """A clean start scans three files and ignores older damage; a start that rebuilds the queues
    reads it and is refused with its place.
    """
    rig = make_rig()
    offsets, _, _ = filled(rig, 110, clean=True)
    damage(rig, offsets[3], b"\0\0\0\0\xff")
    store = rig.open()
    assert store.reader.message_at(offsets[3]) is None
    store.shutdown()
    for path in [path for path in rig.files.nodes if "/consumequeue/" in path]:
        del rig.files.nodes[path]
    with pytest.raises(StoreError, match=f"offset {offsets[3]}"):
        rig.open()


def test_entries_that_do_not_follow_each_other_are_refused(make_rig: type[MemoryRig]) -> None:
    rig = make_rig(flag=True)
    offsets, _, _ = filled(rig, 8, clean=True)
    path, position = rig.place(offsets[4] - 48)
    rig.edit(path, position + 8, (17).to_bytes(8))
    before = rig.tree()
    with pytest.raises(StoreError, match=f"offset {offsets[4] - 48} "):
        rig.open()
    assert rig.tree() == before


def test_files_of_entries_that_do_not_follow_each_other_are_refused(
    make_rig: type[MemoryRig],
) -> None:
    rig = make_rig(flag=True)
    offsets, _, _ = filled(rig, 40, clean=True)
    number = next(n for n, offset in enumerate(offsets) if offset >= FILE_SIZE)
    for later in range(number, 40):
        path, position = rig.place(offsets[later] - 48)
        rig.edit(path, position + 8, (later + 1).to_bytes(8))
    before = rig.tree()
    with pytest.raises(StoreError, match=f"offset {FILE_SIZE} "):
        rig.open()
    assert rig.tree() == before
