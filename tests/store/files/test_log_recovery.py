"""A log whose last bytes never reached the disk, and a log that is damaged where it must not be."""

from __future__ import annotations

import random

import pytest
from harness.store import FILE_SIZE, MakeStoreRig, StoreRig, bodies_of, read_all

from rmqpy.model.errors import StoreError

ROOT = "/store"


def junk_zeros(count: int, seed: int) -> bytes:
    return bytes(count)


def junk_ones(count: int, seed: int) -> bytes:
    return b"\xff" * count


def junk_random(count: int, seed: int) -> bytes:
    """Random bytes that are no text: the first is no UTF-8 wherever it stands."""
    rng = random.Random(seed)
    return bytes([0xFF, *rng.randbytes(count - 1)]) if count else b""


JUNK = {"zeros": junk_zeros, "ones": junk_ones, "random": junk_random}


@pytest.fixture(params=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: MakeStoreRig) -> StoreRig:
    return make_rig(flag=request.param == "dledger")


def filled(rig: StoreRig, count: int, clean: bool) -> tuple[list[int], int, set[bytes]]:
    """Put ``count`` messages and stop. (Offsets of the records, end of the log, bodies.)"""
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(count)]
    end, bodies = store.log.max_offset, bodies_of(store)
    if clean:
        store.shutdown()
    else:
        store.close_without_flush()
    return offsets, end, bodies


def frame_of(rig: StoreRig, offset: int) -> int:
    return offset - (48 if rig.flag else 0)


@pytest.mark.slow
@pytest.mark.parametrize("junk", list(JUNK))
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_the_last_record_cut_at_every_byte(rig: StoreRig, junk: str, clean: bool) -> None:
    """Exactly the intact messages come back, what was torn is in the quarantine and zeroed in the
    log, the next start is an ordinary one, and queue offsets stay dense.

    A cut inside the properties can only be told when what stands there instead is no text: the
    record's lengths and its body CRC are right then. So the random bytes here are no UTF-8.
    """
    offsets, end, bodies = filled(rig, 12, clean)
    frame = frame_of(rig, offsets[-1])
    path, position = rig.place(frame)
    whole = rig.files.kill()
    lost = rig.draft(11).body
    written = bytes(whole.nodes[f"{ROOT}/{path}"].data)[position : position + end - frame]
    for cut in range(end - frame):
        damaged = rig.after(whole.kill())
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
        again = damaged.open()
        assert again.opened.notes == [], cut
        assert bodies_of(again) == bodies | {rig.draft(13).body}, cut
        again.close_without_flush()


@pytest.mark.parametrize("junk", list(JUNK))
def test_the_first_record_of_all_cut(rig: StoreRig, junk: str) -> None:
    """Nothing is left; the log begins where it began."""
    offsets, end, _ = filled(rig, 1, clean=False)
    frame = frame_of(rig, offsets[0])
    path, position = rig.place(frame)
    rig.edit(path, position + 60, JUNK[junk](end - frame - 60, 1))
    store = rig.open()
    assert (store.log.min_offset, store.log.max_offset) == (0, 0)
    assert bodies_of(store) == set()
    assert rig.put(store, 5) == offsets
    store.shutdown()


def test_the_first_entry_behind_the_divide_cut(make_rig: MakeStoreRig) -> None:
    rig = make_rig()
    store = rig.open()
    rig.put(store, *range(4))
    store.shutdown()
    rig.flag = True
    store = rig.open()
    (offset,) = rig.put(store, 5)
    store.close_without_flush()
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
def test_the_last_record_is_the_last_of_a_scan(rig: StoreRig, make_rig: MakeStoreRig) -> None:
    """A scan returns at most 4096 records. The torn one is row 4096, and row 1 of the next scan."""
    rig.changes |= {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 60000}
    for count in (4096, 4097):
        rig = make_rig(flag=rig.flag, changes=rig.changes)
        store = rig.open()
        rig.put(store, *range(count), body=b"", properties=b"A\x01bcd")
        assert store.log.max_offset < 1 << 20
        end = store.log.max_offset
        store.close_without_flush()
        path = f"dledger-n0/data/{0:020d}" if rig.flag else f"commitlog/{0:020d}"
        rig.edit(path, end - 2, bytes(2))
        store = rig.open()
        ends = [store.reader.max_queue_offset("Topic", queue_id) for queue_id in (0, 1)]
        assert sum(ends) == count - 1
        store.close_without_flush()


def test_a_property_may_hold_a_zero_character(rig: StoreRig) -> None:
    """Legal, if odd: such a message is not taken for a torn one."""
    store = rig.open()
    rig.put(store, 1)
    rig.put(store, 2, properties=b"A\x01b\0c\x02D\x01e")
    store.close_without_flush()
    store = rig.open()
    assert store.opened.notes == []
    assert bodies_of(store) == {rig.draft(1).body, rig.draft(2).body}
    store.shutdown()


def test_what_was_kept_is_not_overwritten(rig: StoreRig) -> None:
    """Torn at the same place twice."""
    offsets, _, _ = filled(rig, 2, clean=False)
    frame = frame_of(rig, offsets[-1])
    path, position = rig.place(frame)
    for byte in (b"\xfe", b"\xff"):
        rig.edit(path, position, byte * 90)
        rig.open().close_without_flush()
    kept = {p: d for p, d in rig.tree().items() if p.startswith("rmqpy/quarantine/")}
    name = f"rmqpy/quarantine/{frame:020d}.bin"
    assert set(kept) == {name, name + ".1"}
    assert kept[name][:90] == b"\xfe" * 90 and kept[name + ".1"] == b"\xff" * 90


def test_a_torn_tail_in_a_file_whose_next_is_made_ahead(make_rig: MakeStoreRig) -> None:
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


def test_the_tail_is_a_closed_file(rig: StoreRig) -> None:
    """Killed between the filler and the next file."""
    store = rig.open()
    number = 0
    while store.log.max_offset < FILE_SIZE + 100:
        rig.put(store, number)
        number += 1
    in_first = [b for b in bodies_of(store)]
    store.close_without_flush()
    folder = "dledger-n0/data" if rig.flag else "commitlog"
    for path in list(rig.files.nodes):
        if path.startswith(f"{ROOT}/{folder}/") and not path.endswith(f"{0:020d}"):
            del rig.files.nodes[path]
    for _ in range(2):
        store = rig.open()
        found = bodies_of(store)
        assert found < set(in_first) and len(found) == number - 1
        store.close_without_flush()
    store = rig.open()
    rig.put(store, *range(100, 140))
    assert len(bodies_of(store)) == number - 1 + 40
    store.shutdown()
    store = rig.open()
    assert len(bodies_of(store)) == number - 1 + 40
    store.shutdown()


# ------------------------------------------------------------------------------- in the middle


def damage(rig: StoreRig, place: int, data: bytes = b"\xff\xff\xff\xff") -> None:
    path, position = rig.place(place)
    rig.edit(path, position, data)


def without_lock(rig: StoreRig) -> dict[str, bytes]:
    return dict(rig.tree())


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", ["size", "magic", "body", "place"])
def test_damage_in_the_middle_is_refused(rig: StoreRig, what: str, clean: bool) -> None:
    offsets, _, _ = filled(rig, 8, clean)
    victim = offsets[3]
    damage(rig, victim + {"size": 0, "magic": 4, "body": 90, "place": 28}[what])
    before = without_lock(rig)
    path, position = rig.place(frame_of(rig, victim))
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert refused.value.path == f"{ROOT}/{path}"
    assert f"offset {frame_of(rig, victim)} (byte {position} of the file)" in refused.value.found
    assert f"at offset {offsets[4]} in" in refused.value.found
    assert "--force-truncate" in refused.value.remedy
    assert without_lock(rig) == before
    rig.force = True
    store = rig.open()
    assert bodies_of(store) == {rig.draft(number).body for number in range(3)}
    kept = [p for p in rig.tree() if p.startswith("rmqpy/quarantine/")]
    assert kept == [f"rmqpy/quarantine/{frame_of(rig, victim):020d}.bin"]
    assert rig.draft(7).body in rig.tree()[kept[0]]
    rig.put(store, 20, 21)
    store.shutdown()
    rig.force = False
    store = rig.open()
    assert store.opened.notes == []
    assert rig.draft(20).body in bodies_of(store)
    store.shutdown()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_damage_with_valid_records_in_a_later_file(rig: StoreRig, clean: bool) -> None:
    """The rest of its own file is gone, the next files are whole."""
    offsets, _, _ = filled(rig, 40, clean)
    number = next(n for n, offset in enumerate(offsets) if offset >= FILE_SIZE)
    start = frame_of(rig, offsets[number - 1])
    path, position = rig.place(start)
    rig.edit(path, position, bytes(FILE_SIZE - position))
    before = without_lock(rig)
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert refused.value.path == f"{ROOT}/{path}"
    assert f"at offset {offsets[number]} in" in refused.value.found
    assert without_lock(rig) == before
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


def test_forced_from_the_first_record_of_a_file_on(rig: StoreRig) -> None:
    """Damage where the walk begins: the files before it keep the log (and the entries' indexes)
    going.
    """
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
        assert store.opened.entries is not None and store.opened.entries.end.index == len(left) - 1
    (offset,) = rig.put(store, 500)
    assert offset >= left[-1]
    rig.force = False
    store.shutdown()
    store = rig.open()
    assert len(bodies_of(store)) == len(left) + 1
    store.shutdown()


def test_damage_before_the_walk_is_met_by_who_reads_there(make_rig: MakeStoreRig) -> None:
    """A clean start looks at three files. Older damage is not touched; rebuilding the queues over
    it is refused with the place.
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


def test_dledger_indexes_that_jump(make_rig: MakeStoreRig) -> None:
    """Two whole entries that do not follow each other."""
    rig = make_rig(flag=True)
    offsets, _, _ = filled(rig, 8, clean=True)
    path, position = rig.place(offsets[4] - 48)
    rig.edit(path, position + 8, (17).to_bytes(8))
    before = rig.tree()
    with pytest.raises(StoreError, match=f"offset {offsets[4] - 48} "):
        rig.open()
    assert rig.tree() == before


def test_dledger_indexes_that_jump_between_files(make_rig: MakeStoreRig) -> None:
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
