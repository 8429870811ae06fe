"""What a disk that can lose its power calls durable (tests/harness/power_cut.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from harness.power_cut import PowerCut

from rmqpy.testing.store_reader import read_store


def test_a_synced_file_is_durable_with_its_name(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store = next(golden("A-classic-clean-v497").rglob("commitlog")).parent
    disk = PowerCut(Path(), tmp_path / "store", tmp_path / "shadow")
    folder = disk.root / "commitlog"
    shutil.copytree(store / "commitlog", folder)
    disk.shadow.mkdir()
    for file in folder.iterdir():
        shutil.copyfile(file, disk.shadow / str(file.stat().st_ino))

    assert disk.durable_messages() == []  # A power loss takes the files.

    names = "\n".join(file.name for file in folder.iterdir())
    (disk.shadow / f"d{folder.stat().st_ino}").write_text(names)
    assert disk.durable_messages() == read_store(store).messages != []
