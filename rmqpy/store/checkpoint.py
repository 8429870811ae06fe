"""StoreCheckpoint: 4096 bytes with the times up to which log, queues and index are known to be on disk.

int64 at 0 physicMsgTimestamp, at 8 logicsMsgTimestamp, at 16 indexMsgTimestamp (ms, store times of messages); the
rest zero, or what a 5.x broker keeps there, which is left alone. Abnormal recovery starts at the last file whose first
message is not younger than :attr:`safe_timestamp_ms`.
"""

from __future__ import annotations

import struct

from rmqpy.model.errors import StoreFault
from rmqpy.store.files import FileLayer

CHECKPOINT_SIZE = 4096
SAFETY_MARGIN_MS = 3000
_TIMES = struct.Struct(">qqq")


class StoreCheckpoint:
    """Times in ms; 0 means never."""

    def __init__(self, files: FileLayer, path: str) -> None:
        self._file = files.open(path, size=None if files.exists(path) else CHECKPOINT_SIZE)
        if self._file.size != CHECKPOINT_SIZE:
            size = self._file.size
            self._file.close()
            raise StoreFault(
                path,
                f"{size} bytes",
                f"a checkpoint of {CHECKPOINT_SIZE} bytes",
                "delete it: the next start then recovers from the first commit log file",
            )
        self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms = _TIMES.unpack_from(
            self._file.view
        )

    @property
    def safe_timestamp_ms(self) -> int:
        """Everything stored before this is in the log and in the consume queues."""
        older: int = min(self.physic_timestamp_ms, self.logics_timestamp_ms)
        return max(0, older - SAFETY_MARGIN_MS)

    def write(self) -> None:
        """Bring the three times to the disk."""
        times = (self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms)
        self._file.write(0, _TIMES.pack(*times))
        self._file.sync()

    def close(self) -> None:
        self._file.close()
