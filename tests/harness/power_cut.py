"""What a power loss leaves of the files of a real process, which ran with shadow_io.c preloaded.

The process is killed, and each page of 4 KiB that was written after the last sync of its file is
then kept or lost at random. Of the names that a folder gained since its last sync, a random number
is kept, in the order of creation: a journal keeps that order. Sizes belong to the names.

Java syncs neither folders nor tables. For a Java broker, all names and everything below ``config``
are kept, so that the cut shows what becomes of its logs, queues, and index.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attrs import define

from harness.kill_load import Place, read_acknowledged
from rmqpy.testing.store_reader import FoundMessage, read_store

PAGE_BYTES = 4096
BOOT_NOTE = "rmqpy/boot"
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}
"""Small enough that files roll within a round, and that a copy at each sync is cheap."""


@define
class PowerCut:
    """A disk that can lose its power: the files below ``root``."""

    library: Path
    root: Path
    shadow: Path
    syncs_names_and_tables: bool = True

    @classmethod
    def of(cls, target: str, library: Path, folder: Path) -> PowerCut:
        """Return the disk of a broker that is "rmqpy" or "java" and has its store in ``folder``."""
        folder.mkdir(exist_ok=True)
        return cls(library, folder / "store", folder / "shadow", target == "rmqpy")

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
        for folder, folders, names in os.walk(self.root):
            if self.syncs_names_and_tables:
                for name in self._lost_names(Path(folder), names, rng):
                    (Path(folder) / name).unlink()
                    names.remove(name)
            else:
                folders[:] = [name for name in folders if name != "config"]
            for name in names:
                lost += self._cut_file(Path(folder) / name, rng)
        # A machine that has lost its power has another boot id at its next start.
        (self.root / BOOT_NOTE).unlink(missing_ok=True)
        self._keep_all()
        return lost

    def sync_count(self) -> int:
        """Return the number of syncs of a log since the last power cut."""
        syncs = self.shadow / "syncs"
        lines = syncs.read_text().splitlines() if syncs.exists() else []
        return sum("/commitlog/" in line or "/data/" in line for line in lines)

    def durable_messages(self) -> list[FoundMessage]:
        """Return the messages of the log that a power loss now cannot take, in log order."""
        found = Path(tempfile.mkdtemp(prefix="found", dir=self.shadow))
        for folder in (self.root / "commitlog", *self.root.glob("dledger-*/data")):
            copies = found / folder.relative_to(self.root)
            copies.mkdir(parents=True)
            for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                if self.syncs_names_and_tables and path.name not in self._durable_names(folder):
                    break  # Its content may be synced, but a power loss takes the file.
                try:
                    os.link(self.shadow / str(path.stat().st_ino), copies / path.name)
                except FileNotFoundError:
                    break  # Not synced yet, or removed by the running process just now.
        return read_store(found).messages

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
        # Files of logs are created in the order of their names.
        gained = sorted(set(names) - self._durable_names(folder))
        return gained[rng.randint(0, len(gained)) :]

    def _durable_names(self, folder: Path) -> set[str]:
        kept = self.shadow / f"d{folder.stat().st_ino}"
        return set(kept.read_text().split("\n")) if kept.exists() else set()

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


@define
class FlushedAndMore:
    """True once messages of ``file`` are durable, and ``more`` were acknowledged after that."""

    disks: Sequence[PowerCut]
    durable: Callable[[], Mapping[Place, str]]
    file: Path
    more: int
    _goal: int | None = None
    _syncs: int = -1

    def __call__(self, acknowledged: int) -> bool:
        syncs = sum(disk.sync_count() for disk in self.disks)
        if self._goal is None and acknowledged and syncs != self._syncs:
            self._syncs = syncs
            if self.durable().items() & read_acknowledged(self.file).items():
                self._goal = acknowledged + self.more
        return self._goal is not None and acknowledged >= self._goal


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
