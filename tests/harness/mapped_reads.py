"""The ranges of mapped files that a test reads."""

from __future__ import annotations

import pytest

from rmqpy.store.files.disk import DiskFile


class _Watched:
    """A mapping whose slices are recorded."""

    def __init__(self, view: memoryview, ends: list[int]) -> None:
        self._view = view
        self._ends = ends

    def __getitem__(self, part: slice) -> memoryview:
        read = self._view[part]
        self._ends.append(part.start + len(read))
        return read


def watch_mapped_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the end of each range that is read of a mapped file."""
    ends: list[int] = []
    mapped = DiskFile._mapping

    def mapping(file: DiskFile, writable: bool) -> _Watched:
        return _Watched(mapped(file, writable=writable), ends)

    monkeypatch.setattr(DiskFile, "_mapping", mapping)
    monkeypatch.setattr(DiskFile, "release", lambda *_: None)
    return ends
