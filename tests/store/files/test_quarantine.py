"""The bound of the whole quarantine."""

from __future__ import annotations

import pytest
from attrs import evolve
from harness.store import MemoryRig

from rmqpy.store.files import quarantine
from rmqpy.store.files.quarantine import bound_quarantine
from rmqpy.testing.memory_files import MemoryFiles

FOLDER = "/store/rmqpy/quarantine"


@pytest.fixture(autouse=True)
def _bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "QUARANTINE_BYTES_MAX", 1000)


def put(files: MemoryFiles, name: str, size: int, mtime_ms: int) -> None:
    files.put(f"{FOLDER}/{name}", bytes(size))
    files.set_mtime_ms(f"{FOLDER}/{name}", mtime_ms)


def test_the_oldest_pieces_are_removed_and_named() -> None:
    files = MemoryFiles()
    put(files, "00000000000000000009.bin", 600, 4)
    put(files, "00000000000000000001.bin.1", 300, 3)
    put(files, "consumequeue-T-0/00000000000000000000", 200, 2)
    put(files, "00000000000000000007.bin", 100, 1)
    (note,) = bound_quarantine(files, FOLDER)
    assert note.startswith(f"{FOLDER}/consumequeue-T-0 (200 B) is not kept any longer")
    assert "limited to 1000 B" in note
    left = [
        "00000000000000000001.bin.1",
        "00000000000000000007.bin",
        "00000000000000000009.bin",
    ]
    assert files.list_dir(FOLDER) == left
    assert bound_quarantine(files, FOLDER) == []


def test_the_newest_piece_stays_whatever_its_size() -> None:
    files = MemoryFiles()
    put(files, "00000000000000000001.bin", 5000, 2)
    put(files, "00000000000000000002.bin", 10, 1)
    assert len(bound_quarantine(files, FOLDER)) == 1
    assert files.list_dir(FOLDER) == ["00000000000000000001.bin"]


def test_a_start_bounds_the_folder_unless_it_is_forced(make_rig: type[MemoryRig]) -> None:
    rig = make_rig()
    rig.write(1)
    put(rig.files, "00000000000000000001.bin", 5000, 1)
    put(rig.files, "00000000000000000002.bin", 5000, 2)
    evolve(rig, force=True).open().shutdown()
    assert len(rig.files.list_dir(FOLDER)) == 2
    store = rig.open()
    assert any("is not kept any longer" in note for note in store.opened.notes)
    store.shutdown()
    assert rig.files.list_dir(FOLDER) == ["00000000000000000002.bin"]
