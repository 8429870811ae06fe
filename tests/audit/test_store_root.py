"""No command that reads accepts a directory that is not a store."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.scan.store_root import check_store_root, is_store_root
from rmqpy.cli import main
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import journal_path

COMMANDS = [
    ["store", "inspect", "DIR"],
    ["store", "fsck", "DIR"],
    ["store", "fsck", "DIR", "--quarantine"],
    ["store", "dump", "DIR"],
    ["upgrade", "check", "DIR"],
    ["upgrade", "check", "STORE", "DIR"],
    ["upgrade", "manifest", "DIR"],
    ["upgrade", "plan", "STORE", "DIR"],
    ["upgrade", "verify", "STORE", "DIR"],
    ["upgrade", "status", "DIR"],
    ["upgrade", "serve", "DIR"],
    ["pipeline", "audit", "DIR"],
    ["pipeline", "compare", "STORE", "DIR"],
    ["pipeline", "certify", "STORE", "DIR"],
    ["pipeline", "plan", "STORE", "DIR"],
    ["pipeline", "rebuild", "DIR"],
]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a directory that has nothing to do with a store."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jpg").write_bytes(b"\xff\xd8")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_that_reads_refuses_other_directories(
    command: list[str],
    photos: Path,
    store_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = str(store_of("A-classic-clean-v497"))
    words = [{"DIR": str(photos), "STORE": store}.get(word, word) for word in command]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert f"{photos}: found a directory with other content (0.jpg, 1.jpg, 2.jpg, ...)" in err
    assert "expected the storePathRootDir of a broker" in err
    assert len(list(photos.iterdir())) == 5


def test_an_export_refuses_other_directories(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    assert main(["pipeline", "export", str(photos), "--to", str(photos.parent / "out")]) == 1
    assert "other content" in capsys.readouterr().err


def refused(path: Path) -> str:
    """Return why a path is not a store."""
    with pytest.raises(StoreError) as error:
        check_store_root(OsFileSystem(), str(path))
    return str(error.value)


def test_a_refusal_says_what_the_directory_is(
    tmp_path: Path, copy_of: Callable[[str], Path]
) -> None:
    store = copy_of("C-upgraded-v497/n0")
    assert "found no directory, expected" in refused(tmp_path / "none")
    assert "found a file" in refused(store / "checkpoint")
    assert refused(store.parent).endswith(f"give one of them, as {store}")
    for part in ("commitlog", "consumequeue", "config", "dledger-n0", "dledger-n0/data"):
        text = refused(store / part)
        assert f"found a part of the store {store}, expected" in text
        assert text.endswith(f"give {store}")
    (tmp_path / "mount").mkdir()
    assert "an empty directory" in refused(tmp_path / "mount")
    assert "mount its file system" in refused(tmp_path / "mount")
    (tmp_path / "mount/rmqpy/upgrade/stage").mkdir(parents=True)
    assert "an empty directory" in refused(tmp_path / "mount"), "prepare has written to it"
    alone = tmp_path / "alone"
    shutil.copytree(store / "commitlog", alone)
    assert "a folder of log or queue files" in refused(alone)
    shutil.rmtree(store / "commitlog")
    shutil.rmtree(store / "dledger-n0")
    assert "a store without its log" in refused(store)


def test_what_may_not_be_read_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(tmp_path))

    monkeypatch.setattr("rmqpy.store.files.disk.os.listdir", forbidden)
    assert main(["upgrade", "check", os.fspath(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert f"{tmp_path}: found a file or directory that this user may not access" in err


def test_a_store_without_messages_is_a_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert is_store_root(OsFileSystem(), str(tmp_path))


def test_a_member_to_be_filled_is_empty_or_half_filled(tmp_path: Path) -> None:
    def check() -> None:
        check_store_root(OsFileSystem(), str(tmp_path), may_be_empty=True)

    check()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "rmqpy").mkdir()
    check()
    (tmp_path / "config").mkdir()
    with pytest.raises(StoreError, match="or an empty directory"):
        check()
    journal = Path(journal_path(str(tmp_path)))
    journal.parent.mkdir()
    journal.write_text("{}")
    check()


def test_replicas_are_not_all_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(tmp_path / name) for name in ("n0", "n1")]
    for name in names:
        Path(name).mkdir()
    assert main(["upgrade", "check", *names]) == 1
    assert "an empty directory" in capsys.readouterr().err


def test_a_broker_without_a_log_yet_is_a_member_to_be_filled(tmp_path: Path) -> None:
    """With its settings; without them, the log may be in another place."""
    files, root = OsFileSystem(), str(tmp_path / "slave")
    for name in ("config/topics.json", "rmqpy/format", "lock", "checkpoint"):
        path = tmp_path / "slave" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    settings = StoreSettings(store_path_root_dir=root, store_path_commit_log=f"{root}/commitlog")
    check_store_root(files, root, settings, may_be_empty=True)
    with pytest.raises(StoreError, match=r"has no log yet.*start the broker"):
        check_store_root(files, root, settings)
    with pytest.raises(StoreError, match="a store without its log"):
        check_store_root(files, root, may_be_empty=True)
    shutil.rmtree(tmp_path / "slave" / "config")
    (tmp_path / "slave" / "abort").touch()
    check_store_root(files, root, settings, may_be_empty=True)
    (tmp_path / "slave" / "consumequeue" / "Orders" / "0").mkdir(parents=True)
    with pytest.raises(StoreError, match="a store without its log"):
        check_store_root(files, root, settings, may_be_empty=True)
