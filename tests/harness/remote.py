"""A store elsewhere for tests: a folder of this machine behind the interface of byte ranges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from attrs import define, field

from rmqpy.audit.remote.byte_ranges import ListedFile


@define(slots=True)
class FolderRanges:
    """The files below ``folder`` (implements ByteRanges).

    Of a file in ``cut``, answers have that many bytes at most. ``reads`` has (path, start, end) of
    every read.
    """

    folder: Path
    root: str = "test://place/store"
    cut: dict[str, int] = field(factory=dict)
    reads: list[tuple[str, int, int]] = field(factory=list)

    def listed(self) -> Iterator[ListedFile]:
        for base, folders, names in os.walk(self.folder):
            here = Path(base).relative_to(self.folder)
            for name in folders:
                yield ListedFile(path=str(here / name), is_folder=True)
            for name in names:
                yield self._about(str(here / name))

    def _about(self, path: str) -> ListedFile:
        status = (self.folder / path).stat()
        return ListedFile(
            path=path,
            size=status.st_size,
            mtime_ms=status.st_mtime_ns // 1_000_000,
            version=str(status.st_mtime_ns),
        )

    def current(self, path: str) -> ListedFile | None:
        return self._about(path) if (self.folder / path).exists() else None

    def read(self, path: str, start: int, end: int) -> bytes:
        self.reads.append((path, start, end))
        with (self.folder / path).open("rb") as file:
            file.seek(start)
            return file.read(end - start)[: self.cut.get(path)]
