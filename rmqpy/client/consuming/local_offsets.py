"""The offsets of a broadcasting consumer, which each client keeps in a file of its own, as in Java
(LocalFileOffsetStore).

The file is ``<directory>/<client id>/<group>/offsets.json``:
``{"offsetTable":{{queue}:offset,…}}``. It is replaced as a whole, with the previous version in
``offsets.json.bak`` (:mod:`rmqpy.store.files.atomic`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rmqpy.remoting.bodies import MessageQueue, ResetOffsetBody
from rmqpy.store.files.atomic import DAMAGED_SUFFIX, read_with_backup, write_atomically
from rmqpy.store.files.disk import OsFileSystem


class LocalOffsets:
    """The file of one group. Both methods block on the disk: call them in a thread."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"
        self._files = OsFileSystem()

    def load(self) -> dict[MessageQueue, int]:
        """Return the saved offsets, or an empty table if there is no file.

        Raises StoreError if neither the file nor its backup can be read.
        """
        path = str(self.path)
        kept = path + DAMAGED_SUFFIX
        saved = read_with_backup(self._files, path, ResetOffsetBody.decode, kept=kept)
        return {} if saved is None else dict(saved.offset_table)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write the offsets durably. Raises OSError."""
        body = ResetOffsetBody(offset_table=dict(offsets))
        write_atomically(self._files, str(self.path), body.encode())
