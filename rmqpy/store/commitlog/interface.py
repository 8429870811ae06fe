"""The pluggable piece: one address space of physical offsets, whatever keeps the bytes.

States of a byte, from the writer's side: *staged* (in memory, has its offset) → *written* (pwrite
done) → *acknowledged* as the mode asks (flushed, replicated, committed by a quorum). Readers see up
to ``confirm_offset``.

Invariants: ``min_offset <= confirm_offset <= max_offset``; a record never straddles two files;
``append`` never blocks and never touches the disk but to make a new file; ``commit`` writes
everything staged with one ``write`` a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from attrs import define, field

from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.watermark import Watermark

AT_ONCE_HOURS = -(1 << 20)
"""More hours for a file that goes whatever its age."""


@define(slots=True, frozen=True)
class Appended:
    """Where records went: one physical offset a record, and the end of the log behind the last."""

    status: PutMessageStatus
    physical_offsets: tuple[PhysicalOffset, ...] = ()
    end: PhysicalOffset = PhysicalOffset(0)  # noqa: RUF009 (a NewType)
    remark: str = ""


@define(slots=True, frozen=True)
class ScanRange:
    """A contiguous readable piece of one file, for :func:`rmqpy.codec.backend.scan_records`.

    ``view`` starts at ``offset`` with a record, or with a DLedger entry when ``dledger``;
    ``file_end`` is where the next file starts.
    """

    offset: PhysicalOffset
    view: memoryview
    file_end: PhysicalOffset
    dledger: bool


class Syncable(Protocol):
    def sync(self) -> None: ...


@define(slots=True, frozen=True)
class FlushTask:
    """Make everything below ``offset`` durable. ``run`` blocks and touches no state of the log: it
    may run in a thread; afterwards, back in the loop, the log is told by :meth:`CommitLog.flushed`.
    """

    offset: PhysicalOffset
    parts: tuple[Syncable, ...] = field(factory=tuple)

    def run(self) -> None:
        for part in self.parts:
            part.sync()


class CommitLog(Protocol):
    @property
    def rows(self) -> Sequence[MappedFiles]:
        """The rows of files that it reads from, in the order of their offsets."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """First offset still kept."""

    @property
    def max_offset(self) -> PhysicalOffset:
        """Where the next record goes, staged ones counted."""

    @property
    def confirm_offset(self) -> PhysicalOffset:
        """End of what readers may see."""

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """The watermarks that a put must wait for; fewer when the sender said WAIT=false."""

    def append(self, records: Sequence[bytearray], store_timestamp_ms: int) -> Appended:
        """Stage encoded records, all or none, back to back in order.

        Writes PHYSICALOFFSET and STORETIMESTAMP into each; the queue offset is already there.
        Refused with a status (nothing staged) when the log cannot take them.
        """

    @property
    def has_staged(self) -> bool:
        """Whether :meth:`commit` has something to write or to report."""

    def commit(self) -> None:
        """Write what is staged; raises OSError after which nothing more may be acknowledged."""

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        """The bytes ``[offset, offset+size)``; None when any of them is not readable (gone, or not
        confirmed).
        """

    def ranges(self, offset: PhysicalOffset) -> Iterator[ScanRange]:
        """Readable pieces from ``offset`` (a record or entry start) to ``confirm_offset``, file by
        file.
        """

    def recent(self, offset: PhysicalOffset) -> ScanRange | None:
        """The same in one piece, without the file, if just these bytes were written last; valid
        until more is staged.
        """

    def oldest_file(self, *, nothing_went: bool) -> tuple[MappedFile, int] | None:
        """The file that may be removed next, and the hours that it is kept beyond fileReservedTime;
        None when none may. ``nothing_went``: none has gone in this round so far.
        """

    def release_oldest(self) -> MappedFile:
        """That file leaves the log; it stays on the disk, and open."""

    def flush_task(self) -> FlushTask | None:
        """The work that makes all written bytes durable; None when they are."""

    def flushed(self, offset: PhysicalOffset) -> None:
        """A flush task is done: advance the watermark."""

    @property
    def flushed_offset(self) -> PhysicalOffset:
        """Everything below is durable."""

    def close(self) -> None:
        """Release files; nothing is written or flushed here."""


def read_span(log: CommitLog, offset: int, size: int) -> bytes:
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
            raise KeyError(f"the log has not all of {offset}..{offset + piece}")
        pieces.append(bytes(view))
        offset += piece
    return b"".join(pieces)
