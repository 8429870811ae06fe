"""The bytes of a store behind another host's ``rmqpy upgrade serve``, for audits on this host."""

from __future__ import annotations

import json
from collections.abc import Iterator

from attrs import define

from rmqpy.audit.remote.byte_ranges import ListedFile
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.upgrade.checks.replica import RemoteReplica

__all__ = ["ServedStore"]


@define(slots=True, frozen=True)
class ServedStore:
    """A served store (implements :class:`rmqpy.audit.remote.byte_ranges.ByteRanges`).

    The store of a running broker is refused: its files change while they are read.
    """

    replica: RemoteReplica

    @property
    def root(self) -> str:
        return self.replica.address.rstrip("/")

    def listed(self) -> Iterator[ListedFile]:
        yield from self._listed("")

    def current(self, path: str) -> ListedFile | None:
        return next(self._listed(path), None)

    def read(self, path: str, start: int, end: int) -> bytes:
        return self.replica.read(path, start, end)

    def _listed(self, path: str) -> Iterator[ListedFile]:
        """Yield all files, or the one that ``path`` names."""
        raw = self.replica.raw("files", {"path": path})
        try:
            answer = json.loads(raw)
            if answer["running"]:
                raise StoreError(
                    self.root,
                    "a broker that runs on it",
                    "a stopped one",
                    "stop it, audit a backup, or run the audit on that host",
                )
            for name, is_folder, size, mtime_ms, version in answer["files"]:
                yield ListedFile(
                    path=str(name),
                    is_folder=bool(is_folder),
                    size=int(size),
                    mtime_ms=int(mtime_ms),
                    version=str(version),
                )
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RmqError(
                f"{self.root}: found something else as the files, expected an answer of rmqpy"
                " upgrade serve; check the address, and use the same rmqpy on both hosts"
            ) from None
