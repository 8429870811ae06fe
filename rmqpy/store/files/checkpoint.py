"""StoreCheckpoint: a file of 4096 bytes with the times up to which log, queues and index are known
to be on disk.

int64 at 0 physicMsgTimestamp, at 8 logicsMsgTimestamp, at 16 indexMsgTimestamp (ms, store times of
messages); the rest is zero, or what a 5.x broker stores there, which is left unchanged. Abnormal
recovery starts at the last file whose first message is not younger than :attr:`safe_timestamp_ms`.

Times are not sufficient: after the clock was set back, younger messages have older times. So
``rmqpy/dispatched``, a file of rmqpy, contains the range of the log that the consume queues on disk
are known to cover: two offsets, the start of the log at that time and the end of the dispatch. A
log that starts before that range was reset after that time.

The first time is also written after each flush of the log, without a sync, as Java's mapping of the
file has it: after a kill the file is as new as the last flush, after a power loss it may be older.
With it, in the same sector, goes the offset up to which the log was flushed: clocks jump, offsets
do not. It is followed by the first time as it is written next, and as it was before. Java keeps
these 24 bytes; when it changes the first time to another one, the offset does not count.

An invalid checkpoint (another length, times below 0 or in the future) is ignored: recovery then
takes longer to reach the same result.
"""

from __future__ import annotations

import contextlib
import struct

from rmqpy.codec.layout import CHECKPOINT_SIZE
from rmqpy.model.files import FileSystem, StoreFile

SAFETY_MARGIN_MS = 3000
FUTURE_MAX_MS = 24 * 3600 * 1000
"""The limit by which clocks may have been set back since a time was written."""
_TIMES = struct.Struct(">qqq")
_TIME = struct.Struct(">q")
_SECTOR_BYTES = 512
_FLUSHED = struct.Struct(">qqq")
_FLUSHED_AT = _SECTOR_BYTES - _FLUSHED.size

Times = tuple[int, int, int]
"""physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp."""


class StoreCheckpoint:
    """The checkpoint of one store. Times are in ms; 0 means never. The file is created when it is
    first written. ``note`` is the reason why a checkpoint was ignored.
    """

    def __init__(self, files: FileSystem, path: str, now_ms: int, own_path: str) -> None:
        self._files = files
        self._path = path
        self._own_path = own_path
        self._dispatched = _range_in(files, own_path)
        """The range found at the start, which is used only then."""
        self.physic_timestamp_ms = self.logics_timestamp_ms = self.index_timestamp_ms = 0
        self.flushed_offset: int | None = None
        """The offset up to which the log was flushed before the start; None if it is unknown."""
        self.note: str | None = None
        self._file: StoreFile | None = None
        self._written_ms = 0
        """The first time in the file."""
        self._notes = False
        """True once :meth:`note_flushed` writes the first time."""
        raw = files.read_bytes(path) if files.exists(path) else b""
        if not raw:
            return
        if len(raw) != CHECKPOINT_SIZE:
            self.note = f"ignoring {path}: it has {len(raw)} bytes, not {CHECKPOINT_SIZE}"
            return
        times = _TIMES.unpack_from(raw)
        if min(times) < 0 or max(times) > now_ms + FUTURE_MAX_MS:
            self.note = f"ignoring {path}: it contains impossible times, {times}"
            return
        self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms = times
        self._written_ms = times[0]
        offset, *written_ms = _FLUSHED.unpack_from(raw, _FLUSHED_AT)
        if offset > 0 and times[0] in written_ms:
            self.flushed_offset = offset

    @property
    def safe_timestamp_ms(self) -> int:
        """The time before which everything stored is in the log and in the consume queues."""
        older = min(self.physic_timestamp_ms, self.logics_timestamp_ms)
        return max(0, older - SAFETY_MARGIN_MS)

    @property
    def times(self) -> Times:
        """The three times of the file."""
        return self.physic_timestamp_ms, self.logics_timestamp_ms, self.index_timestamp_ms

    def dispatched_offset(self, log_min_offset: int) -> int | None:
        """Return the offset up to which the consume queues on disk cover a log that starts at
        ``log_min_offset``; None in a directory that only a Java broker has written.
        """
        if self._dispatched is None:
            return None
        low, offset = self._dispatched
        return offset if low <= log_min_offset else 0

    def lower(self, offset: int) -> None:
        """Lower the range to the end of the log that was found: messages that were dispatched after
        it are lost, and other messages will take their place. Or lower it to the offset from which
        the log is dispatched again. Blocks; raises OSError.
        """
        if self._dispatched is not None and self._dispatched[1] > offset:
            self._dispatched = self._dispatched[0], offset
            self._write_dispatched(*self._dispatched)

    def write(self, times: Times, log_min_offset: int, dispatched_offset: int) -> None:
        """Make the times and the range durable. Blocks; may run in a worker thread, also during
        :meth:`note_flushed`, which then writes the first time.
        """
        file = self._files.open(self._path, size=CHECKPOINT_SIZE)
        try:
            start = _TIME.size if self._notes else 0
            file.write(start, _TIMES.pack(*times)[start:])
            file.sync()
        finally:
            file.close()
        self._files.sync_dir(self._path.rpartition("/")[0])
        self._write_dispatched(log_min_offset, dispatched_offset)

    def note_flushed(self, physic_timestamp_ms: int, offset: int) -> None:
        """Write the time and the offset up to which the log has just been flushed, without a sync.
        One call at a time, which may run in a worker thread. After an error the file is merely
        older.
        """
        self._notes = True
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = self._files.open(self._path, size=CHECKPOINT_SIZE)
            note = _FLUSHED.pack(offset, physic_timestamp_ms, self._written_ms)
            self._file.write(_FLUSHED_AT, note)
            self._file.write(0, _TIME.pack(physic_timestamp_ms))
            self._written_ms = physic_timestamp_ms

    def close(self) -> None:
        """Release the file that :meth:`note_flushed` keeps open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_dispatched(self, low: int, offset: int) -> None:
        self._files.replace_bytes(self._own_path, f"{low} {offset}\n".encode())


def _range_in(files: FileSystem, path: str) -> tuple[int, int] | None:
    """Return the two numbers in the file, None if it does not exist (only rmqpy writes it), or
    (0, 0) if it does not contain them.
    """
    if not files.exists(path):
        return None
    words = files.read_bytes(path).decode("ascii", "replace").split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return 0, 0
    return int(words[0]), int(words[1])
