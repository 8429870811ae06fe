"""Offsets of a broadcasting consumer: every client keeps its own, in a file as Java's.

``<directory>/<client id>/<group>/offsets.json``: ``{"offsetTable":{{queue}:offset,…}}``, with the
previous version in ``offsets.json.bak``. Written as a new file that replaces the old one, so a
crash leaves one of the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rmqpy.model.errors import ConfigFault, Refusal
from rmqpy.remoting.bodies import MessageQueue, ResetOffsetBody


class LocalOffsets:
    """The file of one group. Both methods touch the disk: call them in a thread."""

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        self.path = directory / client_id / group / "offsets.json"

    def load(self) -> dict[MessageQueue, int]:
        """Empty where there is no file. Raises ConfigFault when neither it nor the one before it
        can be read.
        """
        faults = []
        for path in (self.path, self._backup):
            try:
                return dict(ResetOffsetBody.decode(path.read_bytes()).offset_table)
            except FileNotFoundError:
                continue
            except (OSError, Refusal) as fault:
                faults.append(f"{path}: {fault}")
        if faults:
            raise ConfigFault(
                f"{'; '.join(faults)}: offsets cannot be read; restore the file, or remove it to"
                " start anew"
            )
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Durable when it returns. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".json.tmp")
        with fresh.open("wb") as file:
            file.write(ResetOffsetBody(offset_table=dict(offsets)).encode())
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def _backup(self) -> Path:
        return self.path.with_suffix(".json.bak")
