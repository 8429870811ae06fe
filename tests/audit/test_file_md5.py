"""MD5 sums of log files: those of ``md5sum``, without reading the hole of the last file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from harness.mapped_reads import watch_mapped_reads

from rmqpy.audit.facts.file_md5 import CHUNK, FilePart, file_md5s
from rmqpy.store.files.disk import OsFileSystem

DATA = bytes(range(1, 200))
SIZE = (2 << 20) + 77


def hex_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("valid", [None, 0, 150, len(DATA), SIZE // 2, SIZE + 1])
def test_the_sums_are_those_of_the_bytes(tmp_path: Path, valid: int | None) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(DATA)
    with path.open("r+b") as file:
        file.truncate(SIZE)
    whole = DATA + bytes(SIZE - len(DATA))
    sums = file_md5s(OsFileSystem(), FilePart(str(path), valid))
    assert (sums.md5, sums.valid_md5) == (hex_of(whole), hex_of(whole[:valid]))


def test_an_empty_file_has_sums(tmp_path: Path) -> None:
    (tmp_path / "abort").touch()
    sums = file_md5s(OsFileSystem(), FilePart(str(tmp_path / "abort")))
    assert sums.md5 == sums.valid_md5 == hex_of(b"")


def test_the_hole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0"
    with path.open("wb") as file:
        file.write(DATA)
        file.truncate(3 * CHUNK)
    ends = watch_mapped_reads(monkeypatch)
    sums = file_md5s(OsFileSystem(), FilePart(str(path), 2 * CHUNK))
    assert sums.md5 == hex_of(path.read_bytes())
    assert sums.valid_md5 == hex_of(path.read_bytes()[: 2 * CHUNK])
    assert ends and max(ends) <= CHUNK
