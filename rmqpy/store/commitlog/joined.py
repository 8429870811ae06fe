"""JoinedCommitLog: one address space of the old classic log, below ``divided_offset``, and the
DLedger log, from that offset.

The two logs are independent of each other. The old log is sealed (its last file ends in a BLANK),
so no record straddles the divide; it is only read, and its oldest files expire first. All new
messages are written to the new log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.interface import AT_ONCE_HOURS, Appended, CommitLog, FlushTask, ScanRange
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.watermark import Watermark


class JoinedCommitLog:
    """The :class:`rmqpy.store.commitlog.interface.CommitLog` of a joined store."""

    def __init__(
        self, old: ClassicCommitLog, new: DLedgerCommitLog, divided_offset: PhysicalOffset
    ) -> None:
        assert old.max_offset == divided_offset == new.min_offset
        self.old = old
        self.new = new
        self.divided_offset = divided_offset

    def part(self, offset: PhysicalOffset) -> CommitLog:
        """Return the log that contains ``offset``. No other code compares offsets with the divided
        offset to find their log.
        """
        return self.old if offset < self.divided_offset else self.new

    @property
    def rows(self) -> Sequence[MappedFiles]:
        return (*self.old.rows, *self.new.rows)

    @property
    def min_offset(self) -> PhysicalOffset:
        return self.old.min_offset if self.old.segments else self.new.min_offset

    @property
    def max_offset(self) -> PhysicalOffset:
        return self.new.max_offset

    @property
    def confirm_offset(self) -> PhysicalOffset:
        return self.new.confirm_offset

    @property
    def flushed_offset(self) -> PhysicalOffset:
        return self.new.flushed_offset

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        return self.new.acknowledged(wait_store_ok)

    def append(self, records: Sequence[bytearray], store_timestamp_ms: int) -> Appended:
        return self.new.append(records, store_timestamp_ms)

    @property
    def has_staged(self) -> bool:
        return self.new.has_staged

    def commit(self) -> None:
        self.new.commit()

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        return self.part(offset).read(offset, size)

    def ranges(self, offset: PhysicalOffset) -> Iterator[ScanRange]:
        if offset < self.divided_offset:
            yield from self.old.ranges(offset)
            offset = self.divided_offset
        yield from self.new.ranges(offset)

    def recent(self, offset: PhysicalOffset) -> ScanRange | None:
        return self.new.recent(offset)

    def oldest_file(self, *, nothing_went: bool) -> tuple[MappedFile, int] | None:
        """Return the first file of the old log, or, once that is empty, of the new log. The last
        file of the old log is removed in a round of its own.
        """
        row = self.old.segments
        if not row:
            return self.new.oldest_file(nothing_went=nothing_went)
        if len(row) == 1 and self.new.entries.end.index < 0:
            return None  # The next start derives the divided offset from this file.
        more_hours = AT_ONCE_HOURS if self.new.entries.first_file_is_discardable else 0
        return (row.first, more_hours) if len(row) > 1 or nothing_went else None

    def release_oldest(self) -> MappedFile:
        return self.old.release_oldest() if self.old.segments else self.new.release_oldest()

    def flush_task(self) -> FlushTask | None:
        return self.new.flush_task()

    def flushed(self, offset: PhysicalOffset) -> None:
        self.new.flushed(offset)

    def close(self) -> None:
        self.old.close()
        self.new.close()
