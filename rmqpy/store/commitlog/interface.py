"""CommitLog: one address space of physical offsets, whatever stores the bytes.

The states of a byte for the writer: *staged* (in memory, with its offset) → *written* (pwrite
done) → *acknowledged* as the mode requires (flushed, replicated, committed by a quorum). Readers
see the log up to ``confirm_offset``.

Invariants: ``min_offset <= confirm_offset <= max_offset``; a record never straddles two files;
``append`` never blocks, and touches the disk only to create a new file; ``commit`` writes
everything staged with one ``write`` per file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from attrs import field

from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.values import define
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.watermark import Watermark

AT_ONCE_HOURS = -(1 << 20)
"""The additional hours of a file that is removed whatever its age."""


@define(slots=True, frozen=True)
class Appended:
    """The result of an append: one physical offset per record, and the end of the log after the
    last one.
    """

    status: PutMessageStatus
    physical_offsets: tuple[PhysicalOffset, ...] = ()
    end: PhysicalOffset = PhysicalOffset(0)
    remark: str = ""


@define(slots=True, frozen=True)
class ScanRange:
    """A contiguous readable range of one file, for :func:`rmqpy.codec.backend.scan_records`.

    ``view`` starts at ``offset`` with a record, or with a DLedger entry when ``dledger``;
    ``file_end`` is where the next file starts.
    """

    offset: PhysicalOffset
    view: memoryview
    file_end: PhysicalOffset
    dledger: bool


class Syncable(Protocol):
    """A file that can be made durable."""

    def sync(self) -> None: ...


@define(slots=True, frozen=True)
class FlushTask:
    """A task that makes everything below ``offset`` durable. ``run`` blocks and touches no state of
    the log: it may run in a thread. Afterwards, back in the loop, the caller reports it with
    :meth:`CommitLog.flushed`.
    """

    offset: PhysicalOffset
    parts: tuple[Syncable, ...] = field(factory=tuple)

    def run(self) -> None:
        for part in self.parts:
            part.sync()


class CommitLog(Protocol):
    """A log of messages, addressed by physical offset."""

    @property
    def rows(self) -> Sequence[MappedFiles]:
        """The file sequences that the log is stored in, in the order of their offsets."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """The first offset that is still stored."""

    @property
    def max_offset(self) -> PhysicalOffset:
        """The offset of the next record, after the staged ones."""

    @property
    def confirm_offset(self) -> PhysicalOffset:
        """The offset up to which readers may read."""

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """Return the watermarks that a put must wait for; fewer if the sender set WAIT=false."""

    def append(self, records: Sequence[bytearray], store_timestamp_ms: int) -> Appended:
        """Stage encoded records, all or none, contiguously and in order.

        PHYSICALOFFSET and STORETIMESTAMP are written into each; the queue offset is already set.
        If the log cannot accept them, the result has another status and nothing is staged.
        """

    @property
    def has_staged(self) -> bool:
        """True if :meth:`commit` has something to write or to report."""

    def commit(self) -> None:
        """Write the staged bytes. After an OSError nothing more may be acknowledged."""

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        """Return the bytes ``[offset, offset+size)``; None if any of them is not readable (removed,
        or not confirmed).
        """

    def ranges(self, offset: PhysicalOffset) -> Iterator[ScanRange]:
        """Yield the readable ranges from ``offset`` (the start of a record or entry) to
        ``confirm_offset``, file by file.
        """

    def recent(self, offset: PhysicalOffset) -> ScanRange | None:
        """Return the range from ``offset`` to ``confirm_offset`` from memory, if exactly these
        bytes were written last; otherwise None. It is valid until more is staged.
        """

    def oldest_file(self, *, nothing_went: bool) -> tuple[MappedFile, int] | None:
        """Return the file that may be removed next, and the hours that it is kept beyond
        fileReservedTime; None if none may be removed. ``nothing_went`` means that this round has
        removed no file yet.
        """

    def release_oldest(self) -> MappedFile:
        """Remove that file from the log and return it; it remains open, and on the disk."""

    def flush_task(self) -> FlushTask | None:
        """Return a task that makes all written bytes durable, or None if they are durable."""

    def flushed(self, offset: PhysicalOffset) -> None:
        """Advance the watermark after a flush task was run without an error."""

    @property
    def flushed_offset(self) -> PhysicalOffset:
        """The offset below which everything is durable."""

    def close(self) -> None:
        """Release files; nothing is written or flushed here."""


class ReadableLog(Protocol):
    """The part of a log that :func:`read_span` uses, as in :class:`CommitLog`."""

    @property
    def rows(self) -> Sequence[MappedFiles]: ...

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None: ...


def read_span(log: ReadableLog, offset: int, size: int) -> bytes:
    """Return the bytes ``[offset, offset+size)`` of the log as stored, across files. Raises
    KeyError if any of them is not readable.
    """
    pieces = []
    end = offset + size
    file_size = log.rows[0].file_size
    while offset < end:
        piece = min(end - offset, file_size - offset % file_size)
        view = log.read(PhysicalOffset(offset), piece)
        if view is None:
            raise KeyError(f"the log does not contain all of {offset}..{offset + piece}")
        pieces.append(bytes(view))
        offset += piece
    return b"".join(pieces)
