"""A store elsewhere is audited as if it were here, each byte is fetched once, and nothing of it is
called sound that was not read.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import flip_bit
from harness.remote import FolderRanges

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.remote import files as remote_files
from rmqpy.audit.remote.files import RemoteFileSystem
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.store_root import check_store_root
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]
STORE = "A-classic-clean-v497"
LOG = "commitlog/00000000000000000000"
NODES_5X = [
    *("E-timers-v533", "F-pop-v533", "H-queues-v533", "I-controller-v533", "J-tiered-v533"),
]
"""Without RocksDB, whose library reads folders of this machine only."""


def report(files: FileSystem, root: str) -> str:
    """Return what an audit says about a store, without its root."""
    found: list[Finding] = []
    audit = audit_store(files, AuditOptions(root=root, pooled=True, sink=found.extend))
    tree = {
        "findings": [each.as_json() for each in found],
        "counts": {code.name: count for code, count in audit.counts.items()},
        "records": audit.records,
        "keys": [audit.keys, audit.keys_found],
        "facts": audit.facts.as_json(),
        "ends": [file.end for log in audit.logs for file in log.files],
    }
    return json.dumps(tree, indent=1).replace(root, "ROOT")


def check_same(store: Path) -> RemoteFileSystem:
    files = RemoteFileSystem(FolderRanges(store))
    check_store_root(files, files.source.root)
    assert report(files, files.source.root) == report(OsFileSystem(), str(store))
    files.check_unchanged()
    return files


@pytest.mark.slow
def test_every_golden_store_has_the_report_that_it_has_here(
    golden_node: str, store_of: StoreOf
) -> None:
    check_same(store_of(golden_node))


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES_5X)
def test_data_of_5x_has_the_report_that_it_has_here(name: str, store_of: StoreOf) -> None:
    check_same(store_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("place", [4, 200, 5000, 60_000, 900_000])
@pytest.mark.parametrize("node", [STORE, "C-upgraded-v497/n0"])
def test_damage_has_the_report_that_it_has_here(node: str, place: int, copy_of: StoreOf) -> None:
    store = copy_of(node)
    for log in ("commitlog", "dledger-n0/data"):
        for file in sorted((store / log).glob("*"))[-1:]:
            flip_bit(file, place % file.stat().st_size)
    check_same(store)


def test_lost_folders_and_files_have_the_report_that_they_have_here(copy_of: StoreOf) -> None:
    store = copy_of(STORE)
    queue = min((store / "consumequeue").rglob("00000000000000000000"))
    queue.unlink()
    (store / "config" / "topics.json").write_bytes(b"{")
    (store / "commitlog" / "stray").write_bytes(b"")
    check_same(store)


def test_names_sizes_and_bytes_are_those_of_the_place(store_of: StoreOf) -> None:
    store, here = store_of(STORE), OsFileSystem()
    files = RemoteFileSystem(FolderRanges(store))
    root = files.source.root
    for base, _, names in os.walk(store):
        path = base.replace(str(store), root, 1)
        listed = [(each.name, each.is_dir) for each in here.list_entries(base)]
        assert [(each.name, each.is_dir) for each in files.list_entries(path)] == listed
        assert files.list_dir(path) == here.list_dir(base)
        assert files.is_dir(path) and files.exists(path)
        for name in names:
            local, remote = f"{base}/{name}", f"{path}/{name}"
            assert files.exists(remote) and not files.is_dir(remote)
            assert files.size_of(remote) == here.size_of(local)
            assert files.mtime_ms(remote) == here.mtime_ms(local)
            opened = files.open_readonly(remote)
            opened.use_in_place()
            content = here.read_bytes(local)
            assert bytes(opened.view) == content == files.read_bytes(remote)
            assert not any(content[opened.data_end(0) :])
            assert opened.read(0, min(40, len(content))) == content[:40]
            opened.close()
    for gone in (f"{root}/none", "test://place", "/"):
        assert not files.exists(gone) and not files.list_entries(gone)
        with pytest.raises(FileNotFoundError):
            files.open_readonly(gone)


def test_every_byte_is_fetched_once(store_of: StoreOf) -> None:
    store = store_of(STORE)
    files = check_same(store)
    assert isinstance(files.source, FolderRanges)
    total = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    # Small files are read again where their content is needed again.
    assert files.fetched_bytes <= total + 100_000
    big = [read for read in files.source.reads if read[2] - read[1] > 65_536]
    assert len(big) == len(set(big))


def test_copies_that_are_given_up_are_fetched_again(store_of: StoreOf) -> None:
    store = store_of(STORE)
    descriptors = len(os.listdir("/dev/fd"))
    files = RemoteFileSystem(FolderRanges(store), copies_bytes=0)
    assert report(files, files.source.root) == report(OsFileSystem(), str(store))
    assert len(os.listdir("/dev/fd")) <= descriptors + 2
    del files
    gc.collect()
    assert len(os.listdir("/dev/fd")) == descriptors


def test_a_worker_reads_the_files_as_the_driver_has_listed_them(copy_of: StoreOf) -> None:
    store = copy_of(STORE)
    files = RemoteFileSystem(FolderRanges(store))
    (store / "commitlog" / "new").write_bytes(b"")
    worker = pickle.loads(pickle.dumps(files))
    path = f"{files.source.root}/{LOG}"
    assert bytes(worker.open_readonly(path).view) == (store / LOG).read_bytes()
    assert not worker.exists(f"{files.source.root}/commitlog/new")


def test_a_file_that_changed_meanwhile_is_named(copy_of: StoreOf) -> None:
    store = copy_of(STORE)
    files = RemoteFileSystem(FolderRanges(store))
    files.check_unchanged()
    os.utime(store / LOG)
    with pytest.raises(StoreError, match=f"{LOG}: found a file that changed while it was read"):
        files.check_unchanged()
    (store / "commitlog" / "new").write_bytes(b"")
    with pytest.raises(StoreError, match="like 1 others, changed"):
        files.check_unchanged()
    check_same(store)  # a reader who lists the files now


def test_blocks_of_two_versions_are_not_mixed(
    copy_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 4096)
    store = copy_of(STORE)
    files = RemoteFileSystem(FolderRanges(store))
    os.utime(store / LOG)
    with pytest.raises(StoreError, match="changed while it was read"):
        files.open_readonly(f"{files.source.root}/{LOG}")


def test_an_answer_that_was_cut_off_is_refused(store_of: StoreOf) -> None:
    source = FolderRanges(store_of(STORE), cut={LOG: 100})
    files = RemoteFileSystem(source)
    with pytest.raises(StoreError, match=f"{LOG}: found 100 bytes from 0 on, expected"):
        audit_store(files, AuditOptions(root=source.root))


def test_a_full_disk_of_this_machine_is_named(
    store_of: StoreOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = FolderRanges(store_of(STORE))
    files = RemoteFileSystem(source)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors = len(os.listdir("/dev/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=f"{tmp_path}: found no space for a copy"):
            files.open_readonly(f"{source.root}/{LOG}")
    assert len(os.listdir("/dev/fd")) == descriptors
    assert not [*tmp_path.iterdir()]
    assert files.open_readonly(f"{source.root}/{LOG}").size


def test_a_place_without_files_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="test://place/store: found nothing of this name"):
        RemoteFileSystem(FolderRanges(tmp_path))


def test_a_place_with_other_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_bytes(b"\xff\xd8")
    files = RemoteFileSystem(FolderRanges(tmp_path))
    with pytest.raises(StoreError, match="found a directory with other content"):
        check_store_root(files, files.source.root)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("open", ()),
        ("replace_bytes", (b"",)),
        ("set_mtime_ms", (0,)),
        ("make_dirs", ()),
        ("rename", ("other",)),
        ("unlink", ()),
        ("remove_tree", ()),
        ("sync_dir", ()),
        ("lock", ()),
        ("device_of", ()),
        ("disk_usage", ()),
        ("free_inodes", ()),
    ],
)
def test_nothing_can_be_changed(method: str, more: tuple[Any, ...], store_of: StoreOf) -> None:
    files = RemoteFileSystem(FolderRanges(store_of(STORE)))
    with pytest.raises(OSError) as caught:
        getattr(files, method)(f"{files.source.root}/{LOG}", *more)
    assert caught.value.errno == errno.EROFS
