"""Directories that are not what they must be: a StoreError with path, found, expected and remedy,
and not a byte changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.store import FILE_SIZE, MakeStoreRig, StoreRig, bodies_of

from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem

ROOT = "/store"


@pytest.fixture(params=["classic", "dledger"])
def rig(request: pytest.FixtureRequest, make_rig: MakeStoreRig) -> StoreRig:
    """A store with several files of each kind, cleanly stopped."""
    made = make_rig(flag=request.param == "dledger")
    store = made.open()
    for number in range(90):
        made.put(store, number)
    store.shutdown()
    return made


def refused(rig: StoreRig) -> StoreError:
    before = rig.tree()
    with pytest.raises(StoreError) as raised:
        rig.open()
    fault = raised.value
    assert rig.tree() == before
    assert fault.path and fault.found and fault.expected and fault.remedy
    text = str(fault)
    assert all(part in text for part in (fault.path, fault.found, fault.expected, fault.remedy))
    # It is unlocked again: once the cause is gone the store opens.
    return fault


def log_folder(rig: StoreRig) -> str:
    return f"{ROOT}/dledger-n0/data" if rig.flag else f"{ROOT}/commitlog"


@pytest.mark.parametrize(
    ("path", "size_key"),
    [
        ("{log}/{name0}", "mappedFileSizeCommitLog"),
    ],
)
@pytest.mark.parametrize("change", [-1, 1, 4096])
def test_a_file_of_another_size(rig: StoreRig, path: str, size_key: str, change: int) -> None:
    log = log_folder(rig).removeprefix(ROOT + "/")
    place = f"{ROOT}/" + path.format(log=log, name0=f"{0:020d}")
    size = len(rig.files.nodes[place].data)
    rig.files.put(
        place,
        bytes(rig.files.nodes[place].data) + bytes(change)
        if change > 0
        else bytes(rig.files.nodes[place].data)[:change],
    )
    fault = refused(rig)
    assert fault.path == place
    assert str(size + change) in fault.found
    assert str(size) in fault.expected and size_key in fault.expected


def test_the_setting_is_not_the_one_of_the_files(rig: StoreRig) -> None:
    rig.changes["mapped_file_size_commit_log"] = 8192
    fault = refused(rig)
    assert "mappedFileSizeCommitLog=4096" in fault.remedy
    del rig.changes["mapped_file_size_commit_log"]
    rig.open().shutdown()


def test_an_index_file_of_another_size(rig: StoreRig) -> None:
    rig.changes["max_index_num"] = 21
    fault = refused(rig)
    assert "maxIndexNum=21" in fault.expected and "/index/" in fault.path


@pytest.mark.parametrize(
    "name",
    ["lost+found/x", "notes.txt", "0000000000000000000a", "1234", "00000000000000000000.bak"],
)
def test_foreign_entries_among_log_files(rig: StoreRig, name: str) -> None:
    rig.files.put(f"{log_folder(rig)}/{name}", b"something")
    fault = refused(rig)
    assert fault.path == f"{log_folder(rig)}/{name.partition('/')[0]}"


def test_a_directory_named_like_a_file(rig: StoreRig) -> None:
    rig.files.make_dirs(f"{log_folder(rig)}/{1 << 40:020d}")
    assert refused(rig).found == "a directory"


@pytest.mark.parametrize(
    "name",
    ["consumequeue/file", "consumequeue/Topic/readme", "consumequeue/Topic/x/y", "index/abc"],
)
def test_foreign_entries_among_derived_files(rig: StoreRig, name: str) -> None:
    rig.files.put(f"{ROOT}/{name}", b"something")
    assert name.startswith(refused(rig).path.removeprefix(ROOT + "/"))


def test_foreign_entries_in_a_queue(rig: StoreRig) -> None:
    rig.files.put(f"{ROOT}/consumequeue/Topic/0/abc", bytes(400))
    assert refused(rig).path == f"{ROOT}/consumequeue/Topic/0/abc"


def test_a_missing_file_in_the_middle(rig: StoreRig) -> None:
    missing = f"{log_folder(rig)}/{FILE_SIZE:020d}"
    node = rig.files.nodes.pop(missing)
    fault = refused(rig)
    assert f"{FILE_SIZE:020d}" in fault.expected
    rig.files.nodes[missing] = node
    rig.open().shutdown()


def test_a_file_at_an_odd_place(rig: StoreRig) -> None:
    """Renamed: its name is no multiple of the size."""
    folder = log_folder(rig)
    for path in [path for path in rig.files.nodes if path.startswith(folder + "/")]:
        node = rig.files.nodes.pop(path)
        rig.files.nodes[f"{folder}/{int(path[-20:]) + 7:020d}"] = node
    assert "multiple" in refused(rig).expected


def test_the_directory_is_in_use(rig: StoreRig) -> None:
    store = rig.open()
    with pytest.raises(StoreError) as raised:
        rig.open()
    assert raised.value.path == f"{ROOT}/lock"
    store.shutdown()
    rig.open().shutdown()


def test_the_directory_is_in_use_on_the_disk(make_rig: MakeStoreRig, tmp_path: Path) -> None:
    """By another layer of this process too: POSIX locks alone would not see that."""
    rig = make_rig(OsFileSystem(), os.fspath(tmp_path))
    store = rig.open()
    with pytest.raises(StoreError, match="lock"):
        rig.open()
    store.shutdown()
    store = rig.open()
    store.shutdown()


def test_a_newer_format_of_our_own_files(rig: StoreRig) -> None:
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
def test_a_checkpoint_that_cannot_be_one_does_not_count(rig: StoreRig, junk: bytes) -> None:
    store = rig.open()
    rig.put(store, 0, 1, 2)
    before = bodies_of(store)
    rig = rig.after(rig.files.kill())
    rig.files.put(f"{ROOT}/checkpoint", junk)
    store = rig.open()
    assert any("checkpoint" in note for note in store.opened.notes)
    assert bodies_of(store) == before
    store.shutdown()


@pytest.mark.parametrize("name", ["checkpoint", "currterm"])
def test_dledger_texts_that_cannot_be_read(make_rig: MakeStoreRig, name: str) -> None:
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


def test_a_creation_that_was_interrupted(rig: StoreRig) -> None:
    """The last file of a row has length 0: its name was made, its size not yet."""
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


def test_a_queue_offset_out_of_all_bounds(make_rig: MakeStoreRig) -> None:
    """The body CRC does not cover QUEUEOFFSET: no terabytes of filler for a damaged one."""
    rig = make_rig()
    store = rig.open()
    offsets = rig.put(store, 0, 2, 4)
    store.close_without_flush()
    rig.edit(
        *(lambda path, position: (path, position + 20))(*rig.place(offsets[2])),
        (1 << 40).to_bytes(8),
    )
    with pytest.raises(StoreError, match=f"queue offset {1 << 40}"):
        rig.open()


def test_a_topic_that_leads_out_of_the_store(make_rig: MakeStoreRig) -> None:
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
