"""A snapshot has the content of its source, and is independent of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.rehearsal import snapshot as module
from rmqpy.rehearsal.machine import measure
from rmqpy.rehearsal.snapshot import copied_bytes, snapshot

FILES = {
    "commitlog/00000000000000000000": b"a" * 5000,
    "commitlog/00000000000000005000": b"b" * 5000,
    "consumequeue/T/0/00000000000000000000": b"c" * 100,
    "config/topics.json": b"{}",
    "abort": b"",
    "lock": b"",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(1, 2_000_000_000))
    return tmp_path / "store"


def files_of(folder: Path) -> Iterator[tuple[str, bytes, int]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes(), path.stat().st_mtime_ns


@pytest.mark.parametrize("clones", [True, False])
def test_a_snapshot_is_equal_and_what_a_broker_writes_in_it_is_not_in_the_source(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clones: bool
) -> None:
    if not clones:
        monkeypatch.setattr(module, "clone", lambda _source, _target: False)
    copy = tmp_path / "copy"
    snapshot(store, copy)
    expected = [each for each in files_of(store) if each[0] not in ("abort", "lock")]
    assert list(files_of(copy)) == expected
    last = copy / "commitlog/00000000000000005000"
    with last.open("r+b") as file:
        file.write(b"new")
    (copy / "consumequeue/T/0/00000000000000000000").write_bytes(b"new")
    (copy / "commitlog/00000000000000000000").unlink()
    assert {name: content for name, content, _ in files_of(store)} == FILES


def test_only_the_closed_files_of_the_log_are_not_copied(store: Path) -> None:
    whole = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
    closed = (store / "commitlog/00000000000000000000").stat().st_blocks * 512
    assert copied_bytes(store) == whole - closed


def test_a_measurement_leaves_nothing_behind(store: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    machine = measure(store / "commitlog", tmp_path)
    assert machine.read_mib_s > 0 and machine.fsync_p99_ms > 0
    assert sorted(tmp_path.rglob("*")) == before
