"""StoreCheckpoint: 4096 bytes with the times up to which log, queues and index are known to be on
disk.

int64 at 0 physicMsgTimestamp, at 8 logicsMsgTimestamp, at 16 indexMsgTimestamp (ms, store times of
messages); the rest zero, or what a 5.x broker keeps there, which is left alone. Abnormal recovery
starts at the last file whose first message is not younger than :attr:`safe_timestamp_ms`.
"""

from __future__ import annotations

import struct

from rmqpy.model.errors import StoreFault
from rmqpy.store.files import FileLayer

CHECKPOINT_SIZE = 4096
SAFETY_MARGIN_MS = 3000
_TIMES = struct.Struct(">qqq")

Times = tuple[int, int, int]
"""physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp."""


class StoreCheckpoint:
    """Times in ms; 0 means never. The file is made when it is first written."""

    def __init__(self, files: FileLayer, path: str) -> None:
        self._files = files
        self._path = path
        self.physic_timestamp_ms = self.logics_timestamp_ms = self.index_timestamp_ms = 0
        raw = files.read_bytes(path) if files.exists(path) else b""
        if not raw:
            return
        if len(raw) != CHECKPOINT_SIZE:
            raise StoreFault(
                path,
                f"{len(raw)} bytes",
                f"a checkpoint of {CHECKPOINT_SIZE} bytes",
                "delete it: the next start then recovers from the first commit log file",
            )
        self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms = (
            _TIMES.unpack_from(raw)
        )

    @property
    def safe_timestamp_ms(self) -> int:
        """Everything stored before this is in the log and in the consume queues."""
        older = min(self.physic_timestamp_ms, self.logics_timestamp_ms)
        return max(0, older - SAFETY_MARGIN_MS)

    @property
    def times(self) -> Times:
        return self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms

    def write(self, times: Times) -> None:
        """Bring the three times to the disk. Blocks; may run in a worker thread."""
        file = self._files.open(self._path, size=CHECKPOINT_SIZE)
        try:
            file.write(0, _TIMES.pack(*times))
            file.sync()
        finally:
            file.close()
        self._files.sync_dir(self._path.rpartition("/")[0])
