"""ClassicCommitLog: contiguous V1 records in mapped files, the log of master-slave brokers.

A record fits into a file only if 8 bytes remain free after it; otherwise the file ends in a BLANK
(int32 remaining length, int32 BLANK_MAGIC, the following bytes undefined) and the record starts the
next file. A batch moves to the next file as a whole.

Positions: ``max_offset`` includes staged records, the watermark ``written`` is the end of what
``commit`` has written to the file, and ``flushed`` the end of what is durable. Readers see
everything below ``written``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank, set_offsets
from rmqpy.codec.properties import write_property_crc
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.interface import Appended, FlushTask, ScanRange
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.staging import END, FILE_END, STAGED, Staging
from rmqpy.store.files.watermark import Watermark

PREPARE_BELOW_FRACTION = 4
"""The next file is created when less than the file size divided by this number is free."""


class ClassicCommitLog:
    """The classic :class:`rmqpy.store.commitlog.interface.CommitLog`.

    ``row`` contains the loaded and recovered files: the ``wrote_position`` of the last one is the
    end of the log. ``flushed_offset`` is the offset up to which the log is durable, if that is not
    its end.
    """

    def __init__(
        self, row: MappedFiles, *, sync_flush: bool = False, flushed_offset: int | None = None
    ) -> None:
        self._segments = row
        self._sync_flush = sync_flush
        self.staging = Staging(row.wrote_offset)
        self._prepared: MappedFile | None = None
        self.written = Watermark("written", self._end)
        durable = self._end if flushed_offset is None else flushed_offset
        self.flushed_mark = Watermark("flushed", durable)

    @property
    def _end(self) -> int:
        return self.staging.state[END]

    @property
    def min_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self._segments.min_offset)

    @property
    def max_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self._end)

    @property
    def confirm_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.written.value)

    @property
    def flushed_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.flushed_mark.value)

    @property
    def segments(self) -> MappedFiles:
        return self._segments

    @property
    def rows(self) -> Sequence[MappedFiles]:
        return (self._segments,)

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        if self._sync_flush and wait_store_ok:
            return (self.written, self.flushed_mark)
        return (self.written,)

    def append(self, records: Sequence[bytearray], store_timestamp_ms: int) -> Appended:
        total = sum(map(len, records))
        if total + BLANK_SIZE > self._segments.file_size:
            return Appended(
                PutMessageStatus.MESSAGE_ILLEGAL,
                remark=f"{total} bytes do not fit a commit log file of {self._segments.file_size}",
            )
        self.make_room(total)
        staging = self.staging
        offsets = []
        for record in records:
            offset = PhysicalOffset(staging.state[END])
            set_offsets(record, 0, None, offset, store_timestamp_ms)
            write_property_crc(record)
            offsets.append(offset)
            staging.put(record)
        return Appended(PutMessageStatus.PUT_OK, tuple(offsets), PhysicalOffset(staging.state[END]))

    def make_room(self, length: int) -> None:
        """Make room for ``length`` bytes after the end of the log, in its file and in staging."""
        staging = self.staging
        if staging.state[END] + length + BLANK_SIZE > staging.state[FILE_END]:
            self._enter_file(length)
        if not staging.has_room(length):
            self.commit()
            staging.grow(length)

    @property
    def has_staged(self) -> bool:
        return self.staging.state[STAGED] != 0

    def commit(self) -> None:
        staging = self.staging
        size, end = staging.state[STAGED], staging.state[END]
        if not size:
            return
        file = self._segments.find(end - size)
        assert file is not None
        position = end - size - file.first_offset
        file.file.write(position, staging.buffer[:size])
        file.wrote_position = position + size
        staging.written()
        self.written.advance(end)
        self._prepare_next()

    def begin_at(self, offset: PhysicalOffset) -> None:
        """Start an empty log at ``offset``, the start of a file (HA: a new slave receives the last
        file of its master first).
        """
        assert self._end == 0 and offset % self._segments.file_size == 0, (self._end, offset)
        while self._segments:
            self._segments.drop_last()
        self._prepared = None
        self._segments.create(offset)
        self._segments.sync_directories()
        self.staging.restart(offset)
        self.written.advance(offset)
        self.flushed_mark.advance(offset)

    def append_raw(self, data: bytes | memoryview) -> None:
        """Append bytes of a master's log as received (HA). They continue the log within one file,
        and may end inside a record, which a later call completes.
        """
        self.commit()
        if not self._segments or self._end == self._current.end_offset:
            self._advance_file()
        file = self._current
        position = self._end - file.first_offset
        assert position + len(data) <= file.size
        file.file.write(position, data)
        file.wrote_position = position + len(data)
        self.staging.restart(file.first_offset + file.wrote_position)
        self.written.advance(self._end)

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        if offset + size > self.written.value:
            return None
        file = self._segments.find(offset)
        if file is None:
            return None
        position = offset - file.first_offset
        return file.read(position, position + size) if position + size <= file.size else None

    def ranges(self, offset: PhysicalOffset) -> Iterator[ScanRange]:
        if not self._segments:
            return
        if offset < self._segments.min_offset:
            offset = self.min_offset
        while offset < self.written.value:
            file = self._segments.find(offset)
            assert file is not None
            end = min(file.end_offset, self.written.value)
            view = file.view[offset - file.first_offset : end - file.first_offset]
            yield ScanRange(offset, view, PhysicalOffset(file.end_offset), dledger=False)
            offset = PhysicalOffset(file.end_offset)

    def recent(self, offset: PhysicalOffset) -> ScanRange | None:
        view = self.staging.recent(offset)
        if view is None:
            return None
        file_end = PhysicalOffset(self.staging.state[FILE_END])
        return ScanRange(offset, view, file_end, dledger=False)

    def flush_task(self) -> FlushTask | None:
        start, end = self.flushed_mark.value, self.written.value
        if start >= end:
            return None
        parts = tuple(
            file for file in self._segments if file.end_offset > start and file.first_offset < end
        )
        return FlushTask(PhysicalOffset(end), parts)

    def flushed(self, offset: PhysicalOffset) -> None:
        self.flushed_mark.advance(offset)

    def seal(self) -> PhysicalOffset:
        """Close the last file with a BLANK up to its end (a record never touches the last 8 bytes).

        Idempotent: a BLANK that is there is not written again (as in Java), so that the time of the
        file still shows that nothing was stored since a plan sealed it. Return the offset after the
        file, which becomes ``divided_offset``.
        """
        assert self._segments and not self.staging.state[STAGED]
        file = self._segments.last
        start = file.wrote_position
        if start < file.size:
            blank = encode_blank(file.size - start)
            if bytes(file.read(start, start + len(blank))) != blank:
                file.file.write(start, blank)
            file.wrote_position = file.size
        file.sync()
        self.staging.restart(file.end_offset)
        self.written.advance(self._end)
        self.flushed_mark.advance(self._end)
        return PhysicalOffset(self._end)

    def oldest_file(self, *, nothing_went: bool) -> tuple[MappedFile, int] | None:
        """Return the first file, unless it is the current one or not yet durable."""
        row = self._segments
        if len(row) < 2 or row.first.end_offset > self.flushed_mark.value:
            return None
        return (row.first, 0) if row[1].first_offset < self.written.value else None

    def release_oldest(self) -> MappedFile:
        return self._segments.take_first()

    def drop_unused(self) -> None:
        """Remove the file that was created ahead and never written (clean stop)."""
        if self._prepared is not None and self._segments and self._segments.last is self._prepared:
            self._segments.drop_last()
            self._segments.sync_directories()
            self._prepared = None

    def close(self) -> None:
        self._segments.close()

    @property
    def _current(self) -> MappedFile:
        """The file that receives the next byte (the last one, unless that was only created
        ahead).
        """
        last = self._segments.last
        if last is self._prepared and self._end <= last.first_offset:
            return self._segments[-2]
        return last

    def _enter_file(self, length: int) -> None:
        """Make the file that receives the next ``length`` bytes the current one."""
        if not self._segments or self._end == self._current.end_offset:
            self._advance_file()
        rest = self._current.end_offset - self._end
        if length + BLANK_SIZE > rest:
            self._roll(rest)
        self.staging.state[FILE_END] = self._current.end_offset

    def _roll(self, rest: int) -> None:
        self.commit()
        full = self._current
        full.file.write(full.size - rest, encode_blank(rest))
        full.wrote_position = full.size
        self.staging.restart(full.end_offset)
        self.written.advance(self._end)
        self._advance_file()

    def _advance_file(self) -> None:
        """Continue with the file that starts at the end of the log; create it if necessary."""
        if self._prepared is not None and self._prepared.first_offset == self._end:
            self._prepared = None
        elif not self._segments or self._segments.last.first_offset != self._end:
            self._segments.create(self._end - self._end % self._segments.file_size)

    def _prepare_next(self) -> None:
        """Create the next file early, so that no request waits for it."""
        last = self._segments.last
        rest = last.size - last.wrote_position
        if self._prepared is None and rest < last.size // PREPARE_BELOW_FRACTION:
            # If this fails, the file is created when it is needed, and the error is raised there.
            with contextlib.suppress(OSError):
                self._prepared = self._segments.create(last.end_offset)
