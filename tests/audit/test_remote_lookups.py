"""A lookup in a store elsewhere reads kilobytes, and finds what the same lookup finds here."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.pipeline import flip_bit
from harness.remote import FolderRanges
from harness.store import StoreRig

from rmqpy.audit.checks.message_lookup import MessageLookup
from rmqpy.audit.checks.messages import MessageSelection, each_message
from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.remote import files as remote_files
from rmqpy.audit.remote.files import RemoteFileSystem
from rmqpy.audit.scan.directory import read_directory
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]

JAVA_SIZES = {
    "mapped_file_size_commit_log": 1 << 30,
    "mapped_file_size_consume_queue": 6_000_000,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
}
COUNT = 3000
BODY = b"0123456789abcdef" * 64
CLASSIC = "A-classic-clean-v497"
LOG = "commitlog/00000000000000000000"


@pytest.fixture(scope="module", params=[False, True], ids=["classic", "dledger"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 3 MB of messages, in files of the sizes that Java has by default."""
    root = tmp_path_factory.mktemp("store")
    rig = StoreRig(OsFileSystem(), str(root), flag=request.param, changes=dict(JAVA_SIZES))
    opened = rig.open()
    for first in range(0, COUNT, 100):
        rig.put(opened, *range(first, first + 100), body=BODY)
    opened.shutdown()
    return root


def lookup(files: FileSystem, root: str) -> MessageLookup:
    return MessageLookup(files, read_directory(files, root))


def find_offset(found: MessageLookup) -> list[int]:
    return found.in_queue("Topic", 1, 1000, 1003)


def find_key(found: MessageLookup) -> list[int]:
    return found.with_key("Topic", "key1717")


def find_unique_key(found: MessageLookup) -> list[int]:
    return found.with_key("Topic", f"U{2718:08X}")


def find_nothing(found: MessageLookup) -> list[int]:
    return found.with_key("Topic", "no such key")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("find", "count"), [(find_offset, 3), (find_key, 1), (find_unique_key, 1), (find_nothing, 0)]
)
def test_a_lookup_reads_kilobytes(
    find: Callable[[MessageLookup], list[int]], count: int, store: Path
) -> None:
    expected = find(lookup(OsFileSystem(), str(store)))
    assert len(expected) == count
    source = FolderRanges(store)
    files = RemoteFileSystem(source)
    assert find(lookup(files, source.root)) == expected
    assert files.fetched_bytes == sum(end - start for _, start, end in source.reads)
    assert 0 < files.fetched_bytes < 512 << 10


@pytest.mark.slow
def test_a_message_reads_its_own_block(store: Path) -> None:
    (offset,) = find_key(lookup(OsFileSystem(), str(store)))
    source = FolderRanges(store)
    files = RemoteFileSystem(source)
    message = LogReader(files, read_directory(files, source.root), scattered=True).message(offset)
    assert message is not None and message.body == BODY
    assert files.fetched_bytes <= 2 * remote_files.SLICE_BLOCK_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("next_file", [False, True], ids=["last file", "next file is allocated"])
def test_without_an_index_the_written_part_of_the_log_is_read(
    next_file: bool, store: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("index"), copy_function=os.link)
    data = next(path for path in (copy / "dledger-n0/data", copy / "commitlog") if path.is_dir())
    if next_file:
        with (data / f"{1 << 30:020d}").open("wb") as file:
            file.truncate(1 << 30)
    expected = find_key(lookup(OsFileSystem(), str(store)))
    source = FolderRanges(copy)
    files = RemoteFileSystem(source)
    assert find_key(lookup(files, source.root)) == expected
    assert find_key(lookup(OsFileSystem(), str(copy))) == expected
    assert len(BODY) * COUNT < files.fetched_bytes < 16 << 20
    assert len(source.reads) < 50


@pytest.mark.slow
@pytest.mark.parametrize("node", [CLASSIC, "C-upgraded-v497/n0", "D-dledger-v497/n0"])
@pytest.mark.parametrize("damage", [None, 300, 9000])
def test_lookups_find_what_they_find_here(node: str, damage: int | None, copy_of: StoreOf) -> None:
    store = copy_of(node)
    shutil.rmtree(store / "index")
    if damage is not None:
        logs = [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]
        flip_bit(min(logs, key=lambda path: path.name), damage)
    here = lookup(OsFileSystem(), str(store))
    source = FolderRanges(store)
    there = lookup(RemoteFileSystem(source), source.root)
    walk = each_message(here.files, here.directory, MessageSelection())
    every = [each.message for each in walk if "KEYS" in each.message.properties]
    assert len(every) > 10
    for message in every[:: len(every) // 10]:
        key = message.properties["KEYS"].split(" ")[0]
        expected = here.with_key(message.topic, key)
        assert message.physical_offset in expected
        assert there.with_key(message.topic, key) == expected


# ------------------------------------------------------------------ slices


@pytest.mark.parametrize("block", [1, 7, 4096, 1 << 20])
def test_slices_are_those_of_the_file(
    block: int, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "SLICE_BLOCK_BYTES", block)
    monkeypatch.setattr(remote_files, "SLICES_BYTES", 64 * block)
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 20_000)
    store = store_of(CLASSIC)
    source = FolderRanges(store)
    files = RemoteFileSystem(source)
    content = (store / LOG).read_bytes()
    slices = files.open_slices(f"{source.root}/{LOG}")
    assert len(slices) == len(content)
    rng = random.Random(7)
    for _ in range(300):
        start = rng.randrange(len(content))
        end = start + rng.choice((0, 1, 8, 20, 500, 5000, 30_000, -5))
        assert bytes(slices[start:end]) == content[start:end]
        assert len(files._blocks) <= 64
    assert bytes(slices[len(content) - 3 :]) == content[-3:]
    assert bytes(slices[:]) == content
    with pytest.raises(FileNotFoundError):
        files.open_slices(f"{source.root}/commitlog/none")


def test_slices_that_follow_each_other_are_fetched_in_growing_pieces(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(8 << 20)
    (tmp_path / "file").write_bytes(content)
    source = FolderRanges(tmp_path)
    slices = RemoteFileSystem(source).open_slices(f"{source.root}/file")
    for start in range(0, len(content), 1000):
        assert slices[start : start + 1000] == content[start : start + 1000]
    assert len(source.reads) < 15
    assert max(end - start for _, start, end in source.reads) == remote_files.BLOCK_BYTES
    assert sum(end - start for _, start, end in source.reads) == len(content)


def test_slices_of_two_versions_are_not_mixed(copy_of: StoreOf) -> None:
    store = copy_of(CLASSIC)
    source = FolderRanges(store)
    slices = RemoteFileSystem(source).open_slices(f"{source.root}/{LOG}")
    assert slices[:8] == (store / LOG).read_bytes()[:8]
    os.utime(store / LOG)
    with pytest.raises(StoreError, match="changed while it was read"):
        slices[len(slices) - 8 :]


def test_a_slice_that_was_cut_off_is_refused(store_of: StoreOf) -> None:
    source = FolderRanges(store_of(CLASSIC), cut={LOG: 100})
    slices = RemoteFileSystem(source).open_slices(f"{source.root}/{LOG}")
    with pytest.raises(StoreError, match=f"{LOG}: found 100 bytes from 0 on, expected"):
        slices[:8]
