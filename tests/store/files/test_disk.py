"""Tests of the file layers: the contract of both, and the special abilities of each."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.files import mapping
from rmqpy.store.files.atomic import read_with_backup, write_atomically
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.testing.memory_files import MemoryFiles


def test_a_file_that_disappears_while_a_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_text("x")
    gone = tmp_path / "topics.json.tmp"
    gone.write_text("x")
    listed = os.scandir

    class Listing(list[os.DirEntry[str]]):
        def __enter__(self) -> list[os.DirEntry[str]]:
            gone.unlink()
            return self

        def __exit__(self, *_: object) -> None: ...

    def renamed_meanwhile(path: str) -> Listing:
        with listed(path) as entries:
            return Listing(entries)

    monkeypatch.setattr(os, "scandir", renamed_meanwhile)
    files = OsFileSystem()
    assert [each.name for each in files.list_entries(str(tmp_path))] == ["there"]
    monkeypatch.setattr(os, "scandir", listed)
    gone.symlink_to(tmp_path / "not-mounted")
    with pytest.raises(FileNotFoundError, match=gone.name):
        files.list_entries(str(tmp_path))


def test_a_file_is_written_and_read(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    path = f"{root}/a/b/file"
    with pytest.raises(FileNotFoundError):
        files.open(path)
    file = files.open(path, size=10_000)
    assert (file.path, file.size, bytes(file.view)) == (path, 10_000, bytes(10_000))
    file.write(9_990, b"0123456789")
    assert bytes(file.view[9_990:]) == b"0123456789"
    file.writable[0:3] = b"abc"
    file.write(3, b"def")
    assert bytes(file.view[:7]) == bytes(file.writable[:7]) == b"abcdef\0"
    with pytest.raises(AssertionError):
        file.write(9_991, b"0123456789")
    with pytest.raises(TypeError):
        file.view[0] = 1
    file.sync()
    reopened = files.open(path)
    reopened.write(0, b"X")
    assert file.view[0] == ord("X")
    readonly = files.open_readonly(path)
    assert bytes(readonly.view[:3]) == b"Xbc"
    with pytest.raises(AssertionError):
        readonly.writable  # noqa: B018 (the property raises)
    for opened in (file, reopened, readonly):
        opened.close()
        opened.close()
    file.sync()
    assert files.size_of(path) == 10_000
    assert files.read_bytes(path)[:3] == files.read_head(path, 3) == b"Xbc"
    with pytest.raises(FileNotFoundError):
        files.read_head(f"{root}/a/b/none", 3)


def test_released_bytes_are_still_there(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    file = files.open(f"{root}/file", size=100_000)
    file.write(0, bytes(range(200)) * 500)
    content = bytes(file.view)
    for begin, end in ((0, 100_000), (5_000, 50_000), (1, 2), (7, 7), (99_000, 1 << 40)):
        file.release(begin, end)
        assert bytes(file.view) == content
    file.writable[10] = 255
    file.release(0, 100_000)
    assert file.view[10] == 255
    file.close()
    file.release(0, 100_000)


def test_what_is_released_ends_with_the_file() -> None:
    view = memoryview(bytes(3 * mmap.PAGESIZE + 100))
    assert mapping.whole_pages(view, 1, 1 << 40) == (mmap.PAGESIZE, 3 * mmap.PAGESIZE)
    assert mapping.whole_pages(view, 0, 2 * mmap.PAGESIZE - 1) == (0, mmap.PAGESIZE)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")
@pytest.mark.parametrize("module", ["core", "python"])
def test_released_pages_take_no_memory(tmp_path: Path, module: str) -> None:
    path, size = tmp_path / "file", 1 << 20
    path.write_bytes(b"x" * size)
    chosen = mapping.map_file if module == "core" else mapping._map_in_python
    release = mapping.release_pages if module == "core" else mapping._release_in_python
    with path.open("rb") as file:
        view = chosen(file.fileno(), size, writable=False, random=False)

    def resident() -> int:
        smaps = Path("/proc/self/smaps").read_text()
        found = re.search(rf"{path}\n(?:.*\n)*?Rss:\s+(\d+) kB", smaps)
        assert found is not None
        return int(found[1]) << 10

    assert bytes(view) == b"x" * size and resident() == size
    release(view, 1, size // 2)
    assert resident() <= size // 2 + mmap.PAGESIZE
    release(view, 0, size)
    assert resident() == 0
    assert bytes(view) == b"x" * size


def test_folders_are_listed_and_changed(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    assert files.list_dir(f"{root}/none") == []
    files.open(f"{root}/x/2", size=1).close()
    files.open(f"{root}/x/1", size=1).close()
    files.make_dirs(f"{root}/x/y/z")
    assert files.list_dir(f"{root}/x") == ["1", "2", "y"]
    entries = files.list_entries(f"{root}/x")
    assert [(each.name, each.is_dir) for each in entries] == [
        ("1", False),
        ("2", False),
        ("y", True),
    ]
    assert entries[0][2:] == (1, files.mtime_ms(f"{root}/x/1"))
    assert files.list_entries(f"{root}/none") == []
    assert files.is_dir(f"{root}/x/y") and not files.is_dir(f"{root}/x/1")
    assert files.exists(f"{root}/x/1") and not files.exists(f"{root}/x/3")
    files.sync_dir(f"{root}/x")
    files.rename(f"{root}/x/1", f"{root}/x/3")
    files.unlink(f"{root}/x/2")
    files.unlink(f"{root}/x/2")
    assert files.list_dir(f"{root}/x") == ["3", "y"]
    files.remove_tree(f"{root}/x")
    files.remove_tree(f"{root}/x")
    assert files.list_dir(root) == []
    total, free = files.disk_usage(f"{root}/not/yet/there")
    assert 0 <= free <= total


def test_the_content_of_a_file_is_replaced(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    path = f"{root}/config/x.json"
    files.replace_bytes(path, b"one")
    files.replace_bytes(path, b"three")
    assert files.read_bytes(path) == b"three"
    assert files.list_dir(f"{root}/config") == ["x.json"]
    assert files.mtime_ms(path) >= 0


@pytest.mark.parametrize("at_once", [1, 7, None])
def test_a_file_is_replaced_by_many_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int | None
) -> None:
    """More than one system call accepts, also if each call writes only some bytes."""
    writev = os.writev

    def some(fd: int, parts: Sequence[memoryview]) -> int:
        return writev(fd, [b"".join(parts)[:at_once]])

    if at_once is not None:
        monkeypatch.setattr(os, "writev", some)
    parts = [b"%d," % number * (number % 3) for number in range(3_000)]
    path = str(tmp_path / "x")
    OsFileSystem().replace_bytes(path, *parts)
    assert OsFileSystem().read_bytes(path) == b"".join(parts)
    OsFileSystem().replace_bytes(path)
    assert OsFileSystem().read_bytes(path) == b""


@pytest.mark.parametrize("parts", [(b"ab", b"c", b""), (b"a", b"bcd"), (b"ab",), (b"abcd",), ()])
def test_only_other_content_becomes_the_backup(
    any_files: tuple[FileSystem, str], parts: tuple[bytes, ...]
) -> None:
    files, root = any_files
    write_atomically(files, f"{root}/x", b"abc")
    write_atomically(files, f"{root}/x", *parts)
    assert files.read_bytes(f"{root}/x") == b"".join(parts)
    assert files.exists(f"{root}/x.bak") == (b"".join(parts) != b"abc")


def test_a_file_in_the_working_folder_needs_no_folder_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with rmqpy broker -c broker.conf, whose file the broker changes."""
    monkeypatch.chdir(tmp_path)
    for content in (b"old", b"new"):
        write_atomically(OsFileSystem(), "broker.conf", content)
    assert (tmp_path / "broker.conf").read_bytes() == b"new"
    assert (tmp_path / "broker.conf.bak").read_bytes() == b"old"


def test_an_unreadable_file_is_read_from_its_backup(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    path = f"{root}/x"
    assert read_with_backup(files, path, int) is None
    for text in (b"1", b"2", b"2"):
        write_atomically(files, path, text)
    assert (files.read_bytes(path), files.read_bytes(path + ".bak")) == (b"2", b"1")
    assert read_with_backup(files, path, int) == 2
    files.replace_bytes(path, b"two")
    assert read_with_backup(files, path, int) == 1
    files.replace_bytes(path, b"")
    assert read_with_backup(files, path, int) == 1
    write_atomically(files, path, b"3")
    assert files.read_bytes(path + ".bak") == b"1", "an empty file is no backup"
    files.replace_bytes(path, b"three")
    files.replace_bytes(path + ".bak", b"one")
    with pytest.raises(StoreError, match="three"):
        read_with_backup(files, path, int)


def test_a_lock_excludes_another_broker(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    lock = files.lock(f"{root}/lock")
    with pytest.raises(StoreError, match="another broker"):
        files.lock(f"{root}/lock")
    lock.release()
    lock.release()
    files.lock(f"{root}/lock").release()


def test_the_lock_is_that_of_java(tmp_path: Path) -> None:
    """It is a POSIX lock of byte 0, which another process can detect."""
    path = os.fspath(tmp_path / "lock")
    lock = OsFileSystem().lock(path)
    probe = (
        "import fcntl,sys\n"
        f"file = open({path!r}, 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "except OSError: sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 3
    lock.release()
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
    assert Path(path).read_bytes() == b"lock"


def test_files_are_sparse(tmp_path: Path) -> None:
    file = OsFileSystem().open(os.fspath(tmp_path / "f"), size=1 << 30)
    file.write(1 << 29, b"x")
    assert (tmp_path / "f").stat().st_blocks * 512 < 1 << 20
    file.close()


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    """A reply may still be sent when the file is closed."""
    file = OsFileSystem().open(os.fspath(tmp_path / "f"), size=4096)
    file.write(0, b"abc")
    view = file.view[:3]
    file.close()
    assert bytes(view) == b"abc"


# ------------------------------------------------------------------------------- in memory


def test_a_power_loss_leaves_only_what_is_durable() -> None:
    files = MemoryFiles()
    file = files.open("/a/file", size=10)
    file.write(0, b"one")
    assert files.crash().nodes == {}
    assert bytes(files.kill().nodes["/a/file"].data) == b"one".ljust(10, b"\0")
    file.sync()
    assert files.crash().nodes == {}, "its name is not durable"
    files.sync_dir("/a")
    file.write(0, b"two")
    assert bytes(files.crash().nodes["/a/file"].data) == b"one".ljust(10, b"\0")
    assert bytes(files.kill().crash().nodes["/a/file"].data)[:3] == b"one"
    files.unlink("/a/file")
    assert "/a/file" not in files.kill().nodes
    assert "/a/file" in files.crash().nodes, "its removal is not durable"
    files.sync_dir("/a")
    assert files.crash().nodes == {}


def test_planted_faults_make_operations_fail() -> None:
    files = MemoryFiles()
    file = files.open("/a/file", size=10)
    files.fail_write("/a/")
    with pytest.raises(OSError, match="planted"):
        file.write(0, b"x")
    with pytest.raises(OSError, match="planted"):
        files.open("/a/other", size=1)
    files.open("/b/other", size=1)
    files.fail_sync("file")
    with pytest.raises(OSError, match="planted"):
        file.sync()
    files.heal()
    file.write(0, b"x")
    file.sync()


# ------------------------------------------------------------------------------- mapped files


def test_mapped_files_grow_and_shrink_at_their_end(any_files: tuple[FileSystem, str]) -> None:
    files, root = any_files
    segments = MappedFiles(files, (f"{root}/log",), 100)
    segments.load("size")
    assert (len(segments), segments.min_offset, segments.wrote_offset, segments.find(0)) == (
        0,
        0,
        0,
        None,
    )
    for first in (300, 400, 500):
        segments.create(first)
    found = [segments.find(offset) for offset in (299, 300, 599, 600)]
    assert [file and file.first_offset for file in found] == [None, 300, 500, None]
    segments.last.wrote_position = 10
    assert (segments.min_offset, segments.wrote_offset) == (300, 510)
    with pytest.raises(AssertionError):
        segments.create(700)
    segments.cut(450)
    assert (len(segments), segments.wrote_offset) == (2, 400), "a cut never raises the end"
    segments.cut(400)
    assert len(segments) == 1
    segments.cut(300)
    assert (len(segments), segments.wrote_offset) == (1, 300), "the first file stays"
    segments.close()
    segments = MappedFiles(files, (f"{root}/log",), 100)
    segments.load("size")
    assert (len(segments), segments.min_offset, segments.wrote_offset) == (1, 300, 400)


def test_mapped_files_may_span_directories(any_files: tuple[FileSystem, str]) -> None:
    """File number k is created in directory k mod n, and found in any of them."""
    files, root = any_files
    folders = (f"{root}/1", f"{root}/0")
    segments = MappedFiles(files, folders, 100)
    for first in range(0, 500, 100):
        segments.create(first)
    assert files.list_dir(f"{root}/0") == [f"{first:020d}" for first in (0, 200, 400)]
    segments.close()
    reopened = MappedFiles(files, folders, 100)
    reopened.load("size")
    assert [file.first_offset for file in reopened] == [0, 100, 200, 300, 400]
