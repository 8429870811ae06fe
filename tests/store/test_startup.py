"""Tests of starts on invalid directories: they raise a StoreError with path, found, expected and
remedy, and change no byte.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.store import FILE_SIZE, MemoryRig, StoreRig, bodies_of

from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem

ROOT = "/store"


@pytest.fixture(params=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: type[MemoryRig]) -> MemoryRig:
    """Return a cleanly stopped store with several files of each kind."""
    rig = make_rig(flag=request.param == "dledger")
    rig.write(*range(90))
    return rig


def refused(rig: MemoryRig) -> StoreError:
    """Open a store and return the error; the directory must be unchanged and unlocked."""
    before = rig.tree()
    with pytest.raises(StoreError) as raised:
        rig.open()
    fault = raised.value
    assert rig.tree() == before
    assert fault.path and fault.found and fault.expected and fault.remedy
    text = str(fault)
    assert all(part in text for part in (fault.path, fault.found, fault.expected, fault.remedy))
    return fault


def log_folder(rig: MemoryRig) -> str:
    return f"{ROOT}/dledger-n0/data" if rig.flag else f"{ROOT}/commitlog"


@pytest.mark.parametrize("change", [-1, 1, 4096])
def test_a_log_file_of_another_size_is_refused(rig: MemoryRig, change: int) -> None:
    path = f"{log_folder(rig)}/{0:020d}"
    data = rig.files.read_bytes(path)
    rig.files.put(path, data + bytes(change) if change > 0 else data[:change])
    fault = refused(rig)
    assert fault.path == path
    assert str(len(data) + change) in fault.found
    assert str(len(data)) in fault.expected and "mappedFileSizeCommitLog" in fault.expected


def test_a_file_size_setting_that_differs_from_the_files_is_refused(rig: MemoryRig) -> None:
    rig.changes["mapped_file_size_commit_log"] = 8192
    fault = refused(rig)
    assert "mappedFileSizeCommitLog=4096" in fault.remedy
    del rig.changes["mapped_file_size_commit_log"]
    rig.open().shutdown()


def test_an_index_file_of_another_size_is_refused(rig: MemoryRig) -> None:
    rig.changes["max_index_num"] = 21
    fault = refused(rig)
    assert "maxIndexNum=21" in fault.expected and "/index/" in fault.path


@pytest.mark.parametrize(
    "name",
    ["lost+found/x", "notes.txt", "0000000000000000000a", "1234", "00000000000000000000.bak"],
)
def test_foreign_entries_among_log_files_are_refused(rig: MemoryRig, name: str) -> None:
    rig.files.put(f"{log_folder(rig)}/{name}", b"something")
    fault = refused(rig)
    assert fault.path == f"{log_folder(rig)}/{name.partition('/')[0]}"


def test_a_directory_named_like_a_log_file_is_refused(rig: MemoryRig) -> None:
    rig.files.make_dirs(f"{log_folder(rig)}/{1 << 40:020d}")
    assert refused(rig).found == "a directory"


@pytest.mark.parametrize(
    "name",
    ["consumequeue/file", "consumequeue/Topic/readme", "consumequeue/Topic/x/y", "index/abc"],
)
def test_foreign_entries_among_derived_files_are_refused(rig: MemoryRig, name: str) -> None:
    rig.files.put(f"{ROOT}/{name}", b"something")
    assert name.startswith(refused(rig).path.removeprefix(ROOT + "/"))


def test_foreign_entries_in_a_queue_are_refused(rig: MemoryRig) -> None:
    rig.files.put(f"{ROOT}/consumequeue/Topic/0/abc", bytes(400))
    assert refused(rig).path == f"{ROOT}/consumequeue/Topic/0/abc"


def test_a_missing_file_in_the_middle_is_refused(rig: MemoryRig) -> None:
    missing = f"{log_folder(rig)}/{FILE_SIZE:020d}"
    node = rig.files.nodes.pop(missing)
    fault = refused(rig)
    assert f"{FILE_SIZE:020d}" in fault.expected
    rig.files.nodes[missing] = node
    rig.open().shutdown()


def test_a_file_name_that_is_no_multiple_of_the_size_is_refused(rig: MemoryRig) -> None:
    folder = log_folder(rig)
    for path in [path for path in rig.files.nodes if path.startswith(folder + "/")]:
        node = rig.files.nodes.pop(path)
        rig.files.nodes[f"{folder}/{int(path[-20:]) + 7:020d}"] = node
    assert "multiple" in refused(rig).expected


def test_a_directory_in_use_is_refused(rig: MemoryRig) -> None:
    store = rig.open()
    with pytest.raises(StoreError) as raised:
        rig.open()
    assert raised.value.path == f"{ROOT}/lock"
    store.shutdown()
    rig.open().shutdown()


def test_a_directory_in_use_on_the_disk_is_refused(tmp_path: Path) -> None:
    """The user is another file layer of this process, which POSIX locks alone do not exclude."""
    rig = StoreRig(OsFileSystem(), os.fspath(tmp_path))
    store = rig.open()
    with pytest.raises(StoreError, match="lock"):
        rig.open()
    store.shutdown()
    store = rig.open()
    store.shutdown()


def test_a_newer_format_of_our_own_files_is_refused(rig: MemoryRig) -> None:
    rig.files.put(f"{ROOT}/rmqpy/format", b"2\n")
    fault = refused(rig)
    assert fault.path == f"{ROOT}/rmqpy/format" and "'2'" in fault.found
    rig.files.put(f"{ROOT}/rmqpy/format", "²".encode())
    refused(rig)
    rig.files.put(f"{ROOT}/rmqpy/format", b"1\n")
    rig.open().shutdown()


@pytest.mark.parametrize(
    "junk",
    [bytes(100), b"\xff" * 4096, b"\x7f" * 4096],
    ids=["short", "below zero", "in the future"],
)
def test_an_invalid_checkpoint_is_ignored(rig: MemoryRig, junk: bytes) -> None:
    store = rig.open()
    rig.put(store, 0, 1, 2)
    before = bodies_of(store)
    rig = rig.after_end("kill")
    rig.files.put(f"{ROOT}/checkpoint", junk)
    store = rig.open()
    assert any("checkpoint" in note for note in store.opened.notes)
    assert bodies_of(store) == before
    store.shutdown()


@pytest.mark.parametrize("name", ["checkpoint", "currterm"])
def test_unreadable_dledger_texts_are_refused_or_read_from_the_backup(
    make_rig: type[MemoryRig], name: str
) -> None:
    rig = make_rig(flag=True)
    store = rig.open()
    rig.put(store, 1)
    store.shutdown()
    path = f"{ROOT}/dledger-n0/{name}"
    good = rig.tree()[f"dledger-n0/{name}"]
    rig.files.put(path, b"garbage")
    rig.files.put(path + ".bak", b"more garbage")
    with pytest.raises(StoreError, match=name):
        rig.open()
    rig.files.put(path, b"committedIndex=x\ncurrTerm=y\n")
    with pytest.raises(StoreError, match=name):
        rig.open()
    rig.files.put(path, b"")
    rig.files.put(path + ".bak", good)
    rig.open().shutdown()


def test_an_interrupted_creation_of_a_file_is_ignored(rig: MemoryRig) -> None:
    """The last file of its folder has length 0: it was created but not sized."""
    end = max(int(path[-20:]) for path in rig.files.nodes if path.startswith(log_folder(rig)))
    rig.files.put(f"{log_folder(rig)}/{end + FILE_SIZE:020d}", b"")
    rig.files.put(f"{ROOT}/consumequeue/Topic/0/{1200:020d}", b"")
    rig.files.put(f"{ROOT}/index/99991231235959999", b"")
    store = rig.open()
    bodies = bodies_of(store)
    assert len(bodies) == 90
    for number in range(100, 150):
        rig.put(store, number)
    assert len(bodies_of(store)) == 140
    store.shutdown()
    assert len(bodies_of(rig.open())) == 140


def test_an_impossible_queue_offset_is_refused(make_rig: type[MemoryRig]) -> None:
    """The body CRC does not cover QUEUEOFFSET, which must not create terabytes of filler."""
    rig = make_rig()
    store = rig.open()
    offsets = rig.put(store, 0, 2, 4)
    store.close_without_flush()
    path, position = rig.place(offsets[2])
    rig.edit(path, position + 20, (1 << 40).to_bytes(8))
    with pytest.raises(StoreError, match=f"queue offset {1 << 40}"):
        rig.open()


def test_a_topic_that_leads_out_of_the_store_is_refused(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    store = rig.open()
    offsets = rig.put(store, 0, 2)
    store.close_without_flush()
    path, position = rig.place(offsets[1])
    record = rig.tree()[path][position:]
    place = position + record.index(b"Topic")
    rig.edit(path, place, b"../oo")
    with pytest.raises(StoreError, match="damaged"):
        rig.open()
    assert not any(folder.endswith("/oo") for folder in rig.files.folders)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["bit", "zeros"])
def test_damage_to_the_last_durable_records_is_not_a_torn_tail(
    make_rig: type[MemoryRig], clean: bool, damage: str
) -> None:
    """Cut off in silence, their queue offsets would be assigned a second time."""
    rig = make_rig()
    store = rig.open()
    for number in range(10):
        rig.put(store, number)
    rig.flush(store)
    store.flush_tracker.flush_queues()
    end = store.log.max_offset
    start = end - 128 if damage == "bit" else end - 384
    if clean:
        store.shutdown()
    else:
        rig = make_rig(files=rig.files.kill())
    path = f"{ROOT}/commitlog/{0:020d}"
    data = bytearray(rig.files.read_bytes(path))
    if damage == "bit":
        data[end - 60] ^= 1
    else:
        data[start:end] = bytes(end - start)
    rig.files.put(path, bytes(data))
    with pytest.raises(StoreError, match="which were on disk") as found:
        rig.open()
    assert "--force-truncate" in str(found.value)
    rig.force = True
    store = rig.open()
    assert store.log.max_offset < end
    store.shutdown()
    rig.force = False
    rig.open().shutdown()
