"""What operations stand on: the file layer, where bytes of other replicas come from, and where the
journal and everything that can be put back is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from attrs import define, field

from rmqpy.model.config import StoreSettings
from rmqpy.model.errors import RmqError
from rmqpy.store.files import FileLayer

CHUNK = 4 << 20
"""Bytes that are read, compared or sent at a time."""

ABSENT = "absent"


class UpgradeRefused(RmqError):
    """A safety check said no: nothing was changed. Exit code 2."""


class RangeSource(Protocol):
    """Bytes of another replica."""

    def read(self, replica: str, path: str, start: int, end: int) -> bytes:
        """``[start, end)`` of a file of that replica; raises RmqError when it cannot be had."""


class NoSource:
    """Where a plan needs no other replica."""

    def read(self, replica: str, path: str, start: int, end: int) -> bytes:
        raise UpgradeRefused(
            f"bytes of {path} on {replica} are needed; give the directory or the address of that"
            " replica"
        )


Progress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all."""


def no_progress(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@define(slots=True, frozen=True)
class Ground:
    """``work`` is ``<storePathRootDir>/rmqpy/upgrade``."""

    files: FileLayer
    work: str
    settings: StoreSettings = field(factory=StoreSettings)
    source: RangeSource = field(factory=NoSource)
    progress: Progress = no_progress
    now_ms: Callable[[], int] = lambda: 0

    def undo_path(self, plan_id: str, number: int) -> str:
        return f"{self.work}/{plan_id}/undo/{number:06d}"


def range_digest(files: FileLayer, path: str, start: int = 0, end: int | None = None) -> str:
    """md5 of ``[start, end)`` as hex; ``absent`` when there is no such file or it is shorter."""
    if not files.exists(path) or files.is_dir(path):
        return ABSENT
    file = files.open_readonly(path)
    try:
        stop = file.size if end is None else end
        if stop > file.size:
            return ABSENT
        digest = hashlib.md5(usedforsecurity=False)
        view = file.view
        for place in range(start, stop, CHUNK):
            digest.update(view[place : min(place + CHUNK, stop)])
        return digest.hexdigest()
    finally:
        file.close()


def digest_of(data: bytes | bytearray | memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
