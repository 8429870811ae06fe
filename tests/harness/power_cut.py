"""What a power loss leaves of the files of a real process, which ran with shadow_io.c preloaded.

The process is killed, and each page of 4 KiB that was written after the last sync of its file is
then kept or lost at random. Of the names that a folder gained since its last sync, a random number
is kept, in the order of creation: a journal keeps that order. Sizes belong to the names.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from attrs import define

PAGE_BYTES = 4096
SOURCE = Path(__file__).parents[1] / "crash" / "shadow_io.c"


def build_preloaded(source: Path, folder: Path) -> Path:
    """Build a library to preload, or skip the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"a C compiler is needed to build {source.name}")
    library = folder / f"{source.stem}.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@define
class PowerCut:
    """A disk that can lose its power: the files below ``root``."""

    library: Path
    root: Path
    shadow: Path

    def environment(self) -> dict[str, str]:
        """Return the variables that the process must run with."""
        self.shadow.mkdir(exist_ok=True)
        return {
            "LD_PRELOAD": str(self.library),
            "SHADOW_ROOT": str(self.root),
            "SHADOW": str(self.shadow),
        }

    def cut(self, rng: random.Random) -> int:
        """Leave the files as after a power loss. Return the number of lost pages."""
        lost = 0
        for folder, _, names in os.walk(self.root):
            for name in self._lost_names(Path(folder), names, rng):
                (Path(folder) / name).unlink()
                names.remove(name)
            for name in names:
                lost += self._cut_file(Path(folder) / name, rng)
        self._keep_all()
        return lost

    def _keep_all(self) -> None:
        """Make everything that is left durable."""
        shutil.rmtree(self.shadow)
        self.shadow.mkdir()
        for folder, folders, names in os.walk(self.root):
            kept = self.shadow / f"d{Path(folder).stat().st_ino}"
            kept.write_text("\n".join([*folders, *names]))
            for name in names:
                path = Path(folder) / name
                shutil.copyfile(path, self.shadow / str(path.stat().st_ino))

    def _lost_names(self, folder: Path, names: list[str], rng: random.Random) -> list[str]:
        kept = self.shadow / f"d{folder.stat().st_ino}"
        durable = set(kept.read_text().split("\n")) if kept.exists() else set()
        gained = sorted(set(names) - durable, key=lambda name: (folder / name).stat().st_ino)
        return gained[rng.randint(0, len(gained)) :]

    def _cut_file(self, path: Path, rng: random.Random) -> int:
        copy = self.shadow / str(path.stat().st_ino)
        lost = 0
        with (
            path.open("r+b") as file,
            (copy if copy.exists() else Path(os.devnull)).open("rb") as old,
        ):
            for start in _data_pages(file.fileno()):
                file.seek(start)
                page = file.read(PAGE_BYTES)
                old.seek(start)
                durable = old.read(len(page)).ljust(len(page), b"\0")
                if page != durable and rng.random() < 0.5:
                    file.seek(start)
                    file.write(durable)
                    lost += 1
        return lost


def _data_pages(fd: int) -> list[int]:
    """Return the positions of the pages of a file that are not holes."""
    pages: list[int] = []
    end, size = 0, os.fstat(fd).st_size
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            break  # only a hole follows
        end = os.lseek(fd, start, os.SEEK_HOLE)
        pages += range(start - start % PAGE_BYTES, end, PAGE_BYTES)
    return pages
