"""Tests of the mark of an old log: its end and its digests, which the members compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.audit import manifest_of
from harness.store import StoreRig

from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger import classic_prefix
from rmqpy.store.ledger.classic_prefix import (
    ClassicPrefix,
    ClassicPrefixMark,
    GrowingPrefix,
    forget_log_marks,
    open_old_log,
)
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.memory_files import MemoryFiles

FILE_SIZE = 65536
valid_end = classic_prefix._valid_end


def mark_of(files: MemoryFiles, root: str, divided: int = 262144) -> ClassicPrefixMark:
    return opened(files, root, divided).mark


def opened(files: MemoryFiles, root: str, divided: int = 262144) -> ClassicPrefix:
    segments = MappedFiles(files, (f"{root}/commitlog",), FILE_SIZE)
    segments.load("mappedFileSizeCommitLog")
    old_log = open_old_log(files, segments, divided, f"{root}/rmqpy")
    segments.close()
    return old_log


def loaded(folder: Path, root: str) -> MemoryFiles:
    """Load the commit log of a golden store."""
    files = MemoryFiles()
    for path in sorted((folder / "commitlog").iterdir()):
        files.put(f"{root}/commitlog/{path.name}", path.read_bytes())
    return files


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_members_with_the_same_divided_offset_and_fewer_messages_differ(
    node: str, golden: Callable[[str], Path]
) -> None:
    store = golden("X-gap_same_file-v497")
    whole = mark_of(loaded(store / "n0", "/s"), "/s")
    short = mark_of(loaded(store / node, "/s"), "/s")
    assert (whole.end, short.end) == (224528, 222613)
    assert whole.digest != short.digest


def test_members_of_a_correct_upgrade_have_equal_marks(golden: Callable[[str], Path]) -> None:
    store = golden("C-upgraded-v497")
    marks = {mark_of(loaded(store / node, "/s"), "/s") for node in ("n0", "n1", "n2")}
    assert len(marks) == 1


def test_the_mark_remains_after_the_files_have_expired(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    mark = mark_of(files, "/s")
    for path in [path for path in files.nodes if "/commitlog/" in path]:
        files.unlink(path)
        assert mark_of(files, "/s") == mark
    forget_log_marks(files, "/s/rmqpy")
    assert mark_of(files, "/s") == ClassicPrefixMark()


def test_a_changed_file_gets_a_new_mark(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    mark = mark_of(files, "/s")
    files.now_ms = 77
    file = files.open("/s/commitlog/00000000000000196608")
    file.write(100, b"\xff")
    changed = mark_of(files, "/s")
    assert changed.digest != mark.digest
    stored = files.nodes["/s/rmqpy/old_log.json"]
    stored.data[:] = b"{" * len(stored.data)
    assert mark_of(files, "/s") == changed


def read_all(old_log: ClassicPrefix) -> int:
    """Run all digest tasks and return their number."""
    count = 0
    while (task := old_log.next_digest_task()) is not None:
        old_log.take(task())
        count += 1
    return count


def test_older_files_are_read_later_and_their_digests_stored(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    assert old_log.mark.digest.count(",") == 1, "two files are read before the first vote"
    assert read_all(old_log) == 1
    whole = old_log.mark
    assert whole.digest.count(",") == 3
    reopened = opened(files, "/s")
    assert reopened.mark == whole and reopened.next_digest_task() is None, "the digests are stored"
    files.unlink("/s/commitlog/00000000000000000000")
    expired = opened(files, "/s")
    assert expired.mark == whole and expired.next_digest_task() is None
    files.unlink("/s/rmqpy/old_log.json")
    shorter = opened(files, "/s")
    assert read_all(shorter) == 1
    assert whole.digest.startswith(shorter.mark.digest)


def test_the_mark_is_stored_once_for_many_small_files(
    golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time syncs the disk twice, for which requests may wait."""
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    write, times = classic_prefix._write, 0

    def watched(*values: Any) -> None:
        nonlocal times
        times += 1
        write(*values)

    monkeypatch.setattr(classic_prefix, "_write", watched)
    read_all(old_log)
    assert times == 1 and opened(files, "/s").mark == old_log.mark
    files.unlink("/s/rmqpy/old_log.json")
    monkeypatch.setattr(classic_prefix, "READ_BYTES", 1)
    again = opened(files, "/s")
    assert read_all(again) == 2 and again.mark == old_log.mark, "large files are stored one by one"


def test_a_file_that_expires_before_it_is_read_ends_the_mark(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    old_log.take(None)
    assert old_log.next_digest_task() is None and old_log.mark.digest.count(",") == 1


def test_a_later_file_that_has_expired_is_noticed_by_the_next_task(
    golden: Callable[[str], Path],
) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    files.unlink("/s/commitlog/00000000000000000000")
    task = old_log.next_digest_task()
    assert task is not None
    old_log.take(task())
    assert old_log.mark.digest.count(",") == 2
    again = old_log.next_digest_task()
    assert again is not None
    with pytest.raises(FileNotFoundError):
        again()
    assert opened(files, "/s").mark == old_log.mark


@pytest.mark.slow
def test_the_mark_has_the_digests_of_a_manifest(golden: Callable[[str], Path]) -> None:
    store = golden("C-upgraded-v497") / "n0"
    old_log = opened(loaded(store, "/s"), "/s")
    read_all(old_log)
    log = manifest_of(store).log("classic")
    assert log is not None and log.files[-1].end == old_log.mark.end
    blocks = [file.blocks.digest for file in reversed(log.files)]
    assert ",".join(blocks) == old_log.mark.digest


def growing_prefix(rig: StoreRig, store: MessageStore) -> GrowingPrefix:
    log = store.opened.classic
    assert log is not None
    return GrowingPrefix(rig.files, "/s/rmqpy", log)


def large_files() -> StoreRig:
    """Return a store whose files have four blocks."""
    return StoreRig(MemoryFiles(), "/s", changes={"mapped_file_size_commit_log": 4 * FILE_SIZE})


def test_bytes_that_are_not_in_the_file_yet_are_not_read_ahead() -> None:
    rig = large_files()
    store = rig.open()
    prefix = growing_prefix(rig, store)
    store.appender.put([rig.draft(1, body=b"b" * FILE_SIZE)])
    prefix.read_ahead(1 << 30)
    store.appender.commit()
    store.dispatch()
    assert prefix.mark() == growing_prefix(rig, store).mark()
    store.shutdown()


def test_a_file_that_was_read_ahead_is_not_searched_for_its_end_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log continues in another file meanwhile: only what was written since is scanned."""
    rig = large_files()
    store = rig.open()
    prefix = growing_prefix(rig, store)
    rig.put(store, *range(5), body=b"b" * 30_000)
    prefix.read_ahead(1 << 30)
    read = store.log.max_offset
    rig.put(store, *range(5), body=b"b" * 30_000)
    assert store.log.max_offset > 4 * FILE_SIZE
    searched: list[int] = []

    def search(view: memoryview, first_offset: int, offset: int) -> int:
        searched.append(offset)
        return valid_end(view, first_offset, offset)

    monkeypatch.setattr(classic_prefix, "_valid_end", search)
    mark = prefix.mark()
    assert searched == [read]
    assert mark == prefix.mark() and searched[1] > read
    assert mark == growing_prefix(rig, store).mark()
    assert prefix.unread_bytes == 0
    store.shutdown()


def test_a_full_file_is_searched_for_its_end_by_the_thread() -> None:
    rig = large_files()
    store = rig.open()
    rig.put(store, *range(10), body=b"b" * 30_000)
    prefix = growing_prefix(rig, store)
    assert prefix.unread_bytes == 4 * FILE_SIZE
    prefix.read_ahead(FILE_SIZE)
    assert 0 < prefix.unread_bytes < 4 * FILE_SIZE
    prefix.read_ahead(1 << 30)
    assert prefix.unread_bytes == 0
    store.shutdown()


def test_the_mark_of_a_sealed_log_is_stored_by_a_task() -> None:
    """Requests wait for the exchange of the log, and not for this file."""
    rig = large_files()
    store = rig.open()
    rig.put(store, *range(5), body=b"b" * 30_000)
    prefix = growing_prefix(rig, store)
    mark = prefix.mark()
    old_log = prefix.sealed(4 * FILE_SIZE)
    assert old_log.mark == mark and not rig.files.exists("/s/rmqpy/old_log.json")
    assert read_all(old_log) == 1
    segments = MappedFiles(rig.files, ("/s/commitlog",), 4 * FILE_SIZE)
    segments.load("mappedFileSizeCommitLog")
    assert open_old_log(rig.files, segments, 4 * FILE_SIZE, "/s/rmqpy").times == old_log.times
    segments.close()
    store.shutdown()
