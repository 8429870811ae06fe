"""Tests of a classic log after a power loss: what was flushed is not cut off, and anything after it
that is incomplete is, whatever follows.
"""

from __future__ import annotations

from struct import pack, unpack_from

import pytest
from harness.store import CrashingFiles, KilledError, MemoryRig, bodies_of

from rmqpy.model.errors import StoreError
from rmqpy.store.files import log_recovery

ROOT = "/store"
FLUSHED, UNFLUSHED = 6, 6


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    return make_rig()


def stopped(rig: MemoryRig, *, with_point: bool, flushed: int = FLUSHED) -> list[int]:
    """Put messages, of which the first ``flushed`` are flushed, and lose the power; return their
    offsets.
    """
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(flushed)]
    if flushed:
        rig.flush(store)
    if with_point:
        store.flush_tracker.flush_queues()
    offsets += [rig.put(store, number)[0] for number in range(flushed, flushed + UNFLUSHED)]
    store.close_without_flush()
    rig.files.power_failures += 1
    return offsets


def as_java_leaves_it(rig: MemoryRig) -> None:
    """Remove the files that a Java broker does not have, and change the first time of the
    checkpoint, as its flush does.
    """
    for path in [path for path in rig.files.nodes if path.startswith(f"{ROOT}/rmqpy/")]:
        rig.files.unlink(path)
    (flushed_ms,) = unpack_from(">q", rig.tree()["checkpoint"])
    rig.edit("checkpoint", 0, pack(">q", flushed_ms + 1))


def zero(rig: MemoryRig, offset: int, count: int = 60) -> None:
    path, position = rig.place(offset)
    rig.edit(path, position, bytes(count))


@pytest.mark.parametrize("writer", ["rmqpy", "java"])
def test_a_hole_after_the_last_flush_ends_the_log(rig: MemoryRig, writer: str) -> None:
    """Whole records follow the hole. The start cuts there, keeps the bytes, says so once, and so
    the next start finds an intact log.
    """
    offsets = stopped(rig, with_point=True)
    if writer == "java":
        as_java_leaves_it(rig)
    zero(rig, offsets[8])
    store = rig.open()
    assert store.log.max_offset == offsets[8]
    assert bodies_of(store) == {rig.draft(number).body for number in range(8)}
    (note,) = [note for note in store.opened.notes if "quarantine" in note]
    assert f"ends at offset {offsets[8]}" in note and "power" in note
    (kept,) = [data for path, data in rig.tree().items() if "/quarantine/" in path]
    assert rig.draft(11).body in kept
    rig.put(store, 20)
    store.close_without_flush()
    store = rig.open()
    assert store.opened.notes == []
    assert rig.draft(20).body in bodies_of(store)
    store.shutdown()


@pytest.mark.parametrize("writer", ["rmqpy", "java"])
@pytest.mark.parametrize("with_point", [True, False], ids=["point", "no point"])
def test_a_hole_before_the_last_flush_stops_the_start(
    rig: MemoryRig, with_point: bool, writer: str
) -> None:
    """The time of the last flush is in the checkpoint even if no recovery point followed it."""
    offsets = stopped(rig, with_point=with_point)
    if writer == "java":
        as_java_leaves_it(rig)
    zero(rig, offsets[3])
    before = rig.tree()
    with pytest.raises(StoreError, match=f"damaged record at offset {offsets[3]}"):
        rig.open()
    assert rig.tree() == before


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000], ids=["back", "forth"])
@pytest.mark.parametrize("is_flushed", [True, False], ids=["before", "after"])
def test_the_offset_of_the_last_flush_decides_if_clocks_jump(
    rig: MemoryRig, jump_ms: int, is_flushed: bool
) -> None:
    """The store times of what was flushed are later, or earlier, than those of all that follows."""
    store = rig.open()
    rig.clock.jump_wall_clock(max(0, -jump_ms))
    offsets = [rig.put(store, number)[0] for number in range(FLUSHED)]
    rig.flush(store)
    rig.clock.jump_wall_clock(jump_ms)
    offsets += [rig.put(store, number)[0] for number in range(FLUSHED, FLUSHED + UNFLUSHED)]
    store.close_without_flush()
    rig.files.power_failures += 1
    hole = offsets[3 if is_flushed else 8]
    zero(rig, hole)
    if is_flushed:
        with pytest.raises(StoreError, match=f"damaged record at offset {hole}"):
            rig.open()
    else:
        store = rig.open()
        assert store.log.max_offset == hole
        store.shutdown()


@pytest.mark.parametrize("age_ms", [10_000, 100_000])
def test_a_log_without_checkpoint_and_point_is_young_or_has_lost_them(
    rig: MemoryRig, age_ms: int
) -> None:
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(3)]
    rig.clock.advance(age_ms)
    offsets += [rig.put(store, number)[0] for number in range(3, 6)]
    store.close_without_flush()
    zero(rig, offsets[2])
    if age_ms > 60_000:
        with pytest.raises(StoreError, match=f"damaged record at offset {offsets[2]}"):
            rig.open()
    else:
        store = rig.open()
        assert store.log.max_offset == offsets[2]
        store.shutdown()


@pytest.mark.parametrize("flushed", [True, False])
def test_missing_sectors_of_properties_end_the_log_after_the_last_flush(
    rig: MemoryRig, flushed: bool
) -> None:
    """No CRC covers them, and the next record is whole. Before the last flush nothing is missing
    after a power loss, so zeros are what the producer sent.
    """
    store = rig.open()
    rig.put(store, 0)
    (offset,) = rig.put(store, 1, properties=b"KEYS\x01key1\x02A\x01" + b"x" * 1200 + b"\x02")
    rig.put(store, 2)
    if flushed:
        rig.flush(store)
        store.flush_tracker.flush_queues()
    store.close_without_flush()
    path, position = rig.place(offset)
    start = -(-(position + 200) // 512) * 512
    rig.edit(path, start, bytes(512))
    store = rig.open()
    assert len(bodies_of(store)) == (3 if flushed else 1)
    store.shutdown()


def test_the_quarantine_keeps_a_bounded_part(
    rig: MemoryRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_recovery, "KEPT_BYTES_MAX", 1000)
    offsets = stopped(rig, with_point=True, flushed=0)
    store = rig.open()
    for number in range(20, 100):
        rig.put(store, number)
    store.close_without_flush()
    zero(rig, offsets[2])
    store = rig.open()
    assert store.log.max_offset == offsets[2]
    kept = [data for path, data in rig.tree().items() if "/quarantine/" in path]
    assert sum(map(len, kept)) == 1000
    assert len([path for path in rig.tree() if path.startswith("commitlog/")]) == 1
    store.shutdown()


def test_a_forced_start_may_be_killed_at_every_operation(make_rig: type[MemoryRig]) -> None:
    """After the cut, the next start needs no force: the old recovery point is already gone."""
    for number in range(200):
        files = CrashingFiles()
        rig = make_rig(files=files)
        store = rig.open()
        offsets = [rig.put(store, each)[0] for each in range(8)]
        store.shutdown()
        zero(rig, offsets[7])
        with pytest.raises(StoreError, match="which were on disk"):
            rig.open()
        rig.force = True
        files.operations, files.dies_at = 0, number
        try:
            rig.open().close_without_flush()
        except KilledError:
            pass
        else:
            assert number > 5
            return
        rig = rig.after_end("kill")
        path, position = rig.place(offsets[7])
        is_cut = not any(rig.tree()[path][position:])
        rig.force = False
        if not is_cut and "rmqpy/recovery-point" in rig.tree():
            with pytest.raises(StoreError):
                rig.open()
            continue
        rig.open().shutdown()
    pytest.fail("the start never ends")
