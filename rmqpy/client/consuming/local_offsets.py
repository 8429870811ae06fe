"""Offsets of a broadcasting consumer: every client keeps its own, in a file as Java's.

``<directory>/<client id>/<group>/offsets.json``: ``{"offsetTable":{{queue}:offset,…}}``, replaced
as a whole, with the previous version in ``offsets.json.bak`` (:mod:`rmqpy.store.files.atomic`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rmqpy.remoting.bodies import MessageQueue, ResetOffsetBody
from rmqpy.store.files.atomic import read_with_backup, write_atomically
from rmqpy.store.files.disk import OsFileSystem


class LocalOffsets:
    """The file of one group. Both methods touch the disk: call them in a thread."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"
        self._files = OsFileSystem()

    def load(self) -> dict[MessageQueue, int]:
        """Empty where there is no file. Raises StoreError when neither it nor the one before it
        can be read.
        """
        saved = read_with_backup(self._files, str(self.path), ResetOffsetBody.decode)
        return {} if saved is None else dict(saved.offset_table)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Durable when it returns. Raises OSError."""
        body = ResetOffsetBody(offset_table=dict(offsets))
        write_atomically(self._files, str(self.path), body.encode())
