"""Tests of the first start of a classic directory with enableDLegerCommitLog."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.store import (
    FILE_SIZE,
    CrashingFiles,
    KilledError,
    MemoryRig,
    StoreRig,
    bodies_of,
    load_folder,
    read_all,
)

from rmqpy.model.errors import StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.memory_files import MemoryFiles

ROOT = "/store"
DIVIDED = 262144
GOLDEN: dict[str, Any] = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
"""The file sizes of the golden stores."""
CLASSIC = ["A-classic-clean-v497", "A-classic-killed-v497"]


def folder(name: str, golden: Callable[[str], Path]) -> Path:
    return Path(golden(name)) / ("master" if name.startswith("B") else "store")


def loaded(
    name: str,
    golden: Callable[[str], Path],
    make_rig: type[MemoryRig],
    files: MemoryFiles | None = None,
    flag: bool = True,
) -> MemoryRig:
    """Load a golden store, by default with enableDLegerCommitLog."""
    files = MemoryFiles() if files is None else files
    load_folder(folder(name, golden), files, ROOT)
    return make_rig(files=files, changes=dict(GOLDEN), flag=flag)


@pytest.mark.parametrize("name", CLASSIC)
def test_every_message_is_readable_after_the_flip(
    name: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    small_ledger_index: None,
) -> None:
    root = os.fspath(golden_copy(name) / "store")
    rig = StoreRig(OsFileSystem(), root, changes=dict(GOLDEN), flag=True)
    store = rig.open()
    assert store.opened.divided_offset == DIVIDED
    assert store.log.max_offset == store.log.confirm_offset == DIVIDED
    for seen in manifest(name)["messages"]:
        page = store.reader.get_message(
            seen["topic"], seen["queueId"], seen["queueOffset"], 1, None
        )
        (view,) = page.messages
        assert int.from_bytes(view[28:36]) == seen["commitLogOffset"]
        found = store.reader.query_message(
            seen["topic"], seen["props"]["UNIQ_KEY"], 64, seen["storeTimestamp"] - 1000, 1 << 50
        )
        assert seen["commitLogOffset"] in [int.from_bytes(m[28:36]) for m in found.messages]
    (offset,) = rig.put(store, 1, topic=b"Normal", queue_id=0)
    assert offset == DIVIDED + 48
    queue = next(q for q in manifest(name)["queues"]["Normal"] if q["queueId"] == 0)
    record = store.reader.message_at(offset)
    assert record is not None and int.from_bytes(record[20:28]) == queue["max"]
    store.shutdown()
    reopened = rig.open()
    assert reopened.opened.divided_offset == DIVIDED
    assert reopened.reader.max_queue_offset("Normal", 0) == queue["max"] + 1
    assert reopened.reader.message_at(offset) is not None
    reopened.shutdown()


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_the_sealed_files_equal_those_of_java(
    node: str, golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    """Java upgraded store B to store C: its old commit log files equal ours byte for byte."""
    files = MemoryFiles()
    # n0 was the master, n1 the slave.
    source = Path(golden("B-master-slave-v497")) / ("master" if node == "n0" else "slave")
    load_folder(source, files, ROOT)
    rig = make_rig(files=files, changes=dict(GOLDEN), flag=True)
    store = rig.open()
    assert store.opened.divided_offset == DIVIDED
    store.shutdown()
    java = {
        path.name: path.read_bytes()
        for path in sorted((Path(golden("C-upgraded-v497")) / node / "commitlog").iterdir())
    }
    ours = {
        path.rpartition("/")[2]: data
        for path, data in rig.tree().items()
        if path.startswith("commitlog/")
    }
    assert len(java) == 4
    assert ours == java
    assert f"dledger-n0/data/{DIVIDED:020d}" in rig.tree()


def test_a_store_without_records_starts_a_ledger_at_0(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    rig.open().shutdown()
    rig.flag = True
    store = rig.open()
    assert store.opened.divided_offset is None
    assert rig.put(store, 1) == [48]
    store.shutdown()


def test_an_empty_log_file_is_no_log(make_rig: type[MemoryRig]) -> None:
    """The file was created ahead of the first message and never written."""
    rig = make_rig(flag=True)
    rig.files.put(f"{ROOT}/commitlog/{0:020d}", bytes(FILE_SIZE))
    store = rig.open()
    assert store.opened.divided_offset is None
    assert rig.put(store, 1) == [48]
    assert not any(path.startswith("commitlog/") for path in rig.tree())
    store.shutdown()
    rig.open().shutdown()


def test_a_file_created_ahead_does_not_move_the_divided_offset(
    make_rig: type[MemoryRig],
) -> None:
    """Hazard H6: an all-zero file follows a closed one."""
    rig = make_rig()
    store = rig.open()
    while store.log.max_offset < FILE_SIZE + 100:
        rig.put(store, 1)
    store.shutdown()
    rig.files.put(f"{ROOT}/commitlog/{2 * FILE_SIZE:020d}", bytes(FILE_SIZE))
    rig.flag = True
    store = rig.open()
    assert store.opened.divided_offset == 2 * FILE_SIZE
    store.shutdown()


def test_a_start_without_the_flag_is_refused_afterwards(
    golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    rig = loaded("A-classic-clean-v497", golden, make_rig)
    store = rig.open()
    rig.put(store, 1)
    store.shutdown()
    rig.flag = False
    before = rig.tree()
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert refused.value.path == f"{ROOT}/dledger-n0/data"
    assert "enableDLegerCommitLog=true" in refused.value.remedy
    assert rig.tree() == before
    rig.flag = True
    rig.open().shutdown()


def test_dledger_data_in_another_path_is_found(
    golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    rig = loaded("A-classic-clean-v497", golden, make_rig)
    rig.changes["store_path_dledger_commit_log"] = "/other/data"
    store = rig.open()
    assert f"/other/data/{DIVIDED:020d}" in rig.files.nodes
    store.shutdown()
    rig.flag = False
    with pytest.raises(StoreError, match="/other/data"):
        rig.open()


def test_an_old_log_that_does_not_reach_the_new_one_is_refused(
    golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    """Hazards H1 and H3: the old log is not the one that was sealed."""
    rig = loaded("A-classic-clean-v497", golden, make_rig)
    rig.open().shutdown()
    del rig.files.nodes[f"{ROOT}/commitlog/{196608:020d}"]
    before = rig.tree()
    with pytest.raises(StoreError) as refused:
        rig.open()
    assert "196608" in refused.value.found and "262144" in refused.value.found
    assert rig.tree() == before


def test_the_new_log_is_complete_without_the_old_one(
    golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    """Retention has removed the classic files."""
    rig = loaded("A-classic-clean-v497", golden, make_rig)
    store = rig.open()
    offsets = rig.put(store, 1, 2, 3)
    store.shutdown()
    for number in range(4):
        del rig.files.nodes[f"{ROOT}/commitlog/{number * 65536:020d}"]
    store = rig.open()
    assert store.opened.divided_offset is None
    assert store.log.min_offset == DIVIDED
    assert all(store.reader.message_at(offset) is not None for offset in offsets)
    queue_end = store.reader.max_queue_offset("Normal", 0)
    assert store.reader.min_queue_offset("Normal", 0) == queue_end > 0
    store.shutdown()


# ------------------------------------------------------------------------------- interrupted


def finish_flip(
    rig: MemoryRig,
) -> tuple[PhysicalOffset | None, dict[tuple[str, int], list[bytes]]]:
    """Open the store, which ends the flip, and return the divided offset and all records."""
    store = rig.open()
    found = store.opened.divided_offset, read_all(store)
    store.shutdown()
    assert store.health.failure is None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_flip_may_be_interrupted_at_every_operation(
    name: str, end: str, golden: Callable[[str], Path], make_rig: type[MemoryRig]
) -> None:
    """A kill or a power loss happens at each operation of the file layer in turn. The next start
    ends with the same divided offset and every message, and so does the one after it.
    """
    files = CrashingFiles()
    rig = loaded(name, golden, make_rig, files)
    start = files.operations
    expected = finish_flip(rig.after_end("kill"))
    assert expected[0] == DIVIDED
    assert sum(map(len, expected[1].values())) > 250
    interrupted = 0
    for number in range(1000):
        files = CrashingFiles()
        rig = loaded(name, golden, make_rig, files)
        files.dies_at = start + number
        try:
            rig.open().close_without_flush()
        except KilledError:
            interrupted += 1
        else:
            break
        after = rig.after_end(end)
        assert finish_flip(after) == expected, number
        assert finish_flip(after) == expected, number
    assert interrupted > 8


def test_a_flip_makes_messages_in_the_page_cache_durable(make_rig: type[MemoryRig]) -> None:
    """A killed classic broker has flushed nothing, and the power fails after the flip."""
    rig = make_rig()
    store = rig.open()
    for number in range(90):
        rig.put(store, number)
    bodies = bodies_of(store)
    killed = rig.files.kill()
    rig = rig.after(killed)
    rig.flag = True
    store = rig.open()
    divided = store.opened.divided_offset
    assert divided == 4 * FILE_SIZE
    after = rig.after_end("crash")
    store = after.open()
    assert store.opened.divided_offset == divided
    assert bodies_of(store) == bodies
    store.shutdown()


@pytest.mark.slow
def test_queues_that_lost_their_tails_before_and_during_the_flip_are_rebuilt(
    make_rig: type[MemoryRig],
) -> None:
    """The power fails in classic mode, and again in the flip before any dispatch. The checkpoint
    decides where dispatch starts, even if the last file is now a DLedger one and only one of the
    queues has lost its tail.
    """
    rig = make_rig()
    store = rig.open()
    for number in range(40):
        rig.put(store, number)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    rig.clock.advance(10_000)
    for number in range(40, 90):
        rig.put(store, number)
    bodies = bodies_of(store)
    rig.flush(store)
    (sync,) = [queue.take_sync() for name, queue in store.queues.items() if name[1] == 1]
    assert sync is not None
    sync.run()
    left = rig.files.crash()
    for number in range(200):
        files = CrashingFiles()
        for path, node in left.nodes.items():
            files.put(path, bytes(node.data))
        rig = make_rig(files=files, flag=True)
        files.dies_at = number
        try:
            rig.open().close_without_flush()
        except KilledError:
            store = rig.after_end("crash").open()
            assert bodies_of(store) == bodies, number
            store.shutdown()
        else:
            break
    assert 10 < number < 199
