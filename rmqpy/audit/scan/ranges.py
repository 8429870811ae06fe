"""The unit of work: the audit of one range of one log file, with a partial result.

A range owns the frames that start in it. It goes from one block boundary (64 KiB) of its file to
another, or to the end of the file. The audit searches for the first frame of the range
(:mod:`rmqpy.codec.search`), or receives its position. Merging proves the guesses: each range must
start where the previous one ended (:mod:`rmqpy.audit.scan.range_merge`), so the result is that of a
sequential audit.

Results are values that can be sent between processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import Enum

from attrs import evolve, field

from rmqpy.audit.scan.blocks import Blocks, FrameGroup
from rmqpy.audit.scan.damage import FileView, diagnose, next_frame, was_a_frame
from rmqpy.audit.scan.directory import LogFile, LogSegments
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.log_bytes import LogBytes
from rmqpy.codec import layout
from rmqpy.codec.backend import crc32
from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import StopReason
from rmqpy.codec.search import find_frames
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import (
    BLOCK_DIGEST_BYTES,
    BLOCK_SHIFT,
    BLOCK_SIZE,
    Event,
    EventKind,
    QueueTally,
    Tally,
    TallyPlan,
)
from rmqpy.model.values import define
from rmqpy.store.files.framing import Framing

__all__ = ["Ending", "RangeResult", "WorkRange", "audit_range", "split_log"]

RANGE_BYTES = 64 << 20
"""The default size of a range; a multiple of the block size."""


class Ending(Enum):
    """The reason why no further frame follows in a range."""

    CONTINUES = "goes on"
    """The next range, or the next file, continues."""
    FILLER = "filler"
    """The file is closed."""
    ZEROS = "zeros"
    """The rest of the file was never written."""
    LOST = "lost"
    """The bytes up to the end of the file are not frames."""
    LIMIT = "limit"
    """The rest must not be read."""


@define(slots=True, frozen=True, kw_only=True)
class WorkRange:
    """One range of a log file. Offsets are physical; nothing at or after ``limit`` is read."""

    log: str
    framing: Framing
    path: str
    file: str
    """``path`` relative to the root."""
    first_offset: int
    file_size: int
    start: int
    stop: int
    limit: int | None = None

    @property
    def is_first(self) -> bool:
        return self.start == self.first_offset

    @property
    def is_last(self) -> bool:
        return self.stop == self.first_offset + self.file_size


@define(slots=True, kw_only=True)
class RangeResult:
    """The result of the audit of one range.

    ``begin`` is the offset of the first frame, or -1 if the range has none; ``end`` is where the
    next frame must start, or where the file's content ends. ``stretches`` has (begin, end) of bytes
    that are not frames although frames follow them. ``last_doubtful`` means that the lengths of the
    last frame are consistent, but its content is not.
    """

    work: WorkRange
    begin: int
    end: int
    ending: Ending
    tally: Tally
    findings: list[Finding] = field(factory=list)
    stretches: list[tuple[int, int]] = field(factory=list)
    doubtful: set[int] = field(factory=set)
    blocks: Blocks = field(factory=Blocks.none)
    """Digests of the 64 KiB blocks from ``work.start`` on, the last one up to ``end``."""
    lost: Finding | None = None
    """With Ending.LOST: the finding, unless it turns out to be an interrupted write."""
    lost_bytes: int = 0
    """With Ending.LOST: the number of bytes up to the last one that is not zero."""
    lost_a_frame: bool = False
    """With Ending.LOST: True if the bytes were once a frame."""
    lengths: dict[int, int] = field(factory=dict)
    """The lengths, by offset, of the frames that must follow those of previous ranges: the first
    frame of the range, and the first of each queue.
    """

    @property
    def last_doubtful(self) -> bool:
        return self.tally.last_frame in self.doubtful


def split_log(
    log: LogSegments, root: str, range_bytes: int = RANGE_BYTES, limit: int | None = None
) -> Iterator[WorkRange]:
    """Yield the ranges of a log in order, without files of a wrong length.

    ``root`` is the store's root, which reports remove from paths. A ``range_bytes`` below the block
    size is for audits without digests.
    """
    step = range_bytes & -BLOCK_SIZE or range_bytes
    for file in log.files:
        if file.size != log.file_size or (limit is not None and file.first_offset >= limit):
            continue
        for start in range(file.first_offset, file.end_offset, step):
            yield _work(log, file, root, start, step, limit)


def _work(
    log: LogSegments, file: LogFile, root: str, start: int, step: int, limit: int | None
) -> WorkRange:
    return WorkRange(
        log=log.name,
        framing=log.framing,
        path=file.path,
        file=file.path.removeprefix(f"{root}/"),
        first_offset=file.first_offset,
        file_size=file.size,
        start=start,
        stop=min(start + step, file.end_offset),
        limit=limit,
    )


def audit_range(
    data: LogBytes, work: WorkRange, plan: TallyPlan, begin: int | None = None
) -> RangeResult:
    """Audit the frames of ``work`` in its file, whose bytes are ``data``.

    ``begin`` is the offset of the first frame, if it is known. The bytes may end soon after the
    range; what follows is taken where the frames end, or damage is met.
    """
    if work.limit is not None:
        data = data.head(work.limit - work.first_offset)
    try:
        return _RangeWalk(data, work, plan).run(begin)
    except _CutOffError:
        assert data.rest is not None, "only a walk over a part is cut off"
        return _RangeWalk(data.rest(), work, plan).run(begin)


class _CutOffError(Exception):
    """The walk has met something else than a frame, and has only a part of the file."""


_FieldValues = tuple[str, str, str]
"""(field, found, expected)."""
NO_VALUES: _FieldValues = ("", "", "")


class _RangeWalk:
    def __init__(self, data: LogBytes, work: WorkRange, plan: TallyPlan) -> None:
        self.data = data
        self.view = data.view
        self.work = work
        self.base = work.first_offset
        dledger = work.framing is Framing.DLEDGER
        self.file = FileView(data, self.base, work.file_size, dledger)
        self.tally = Tally(evolve(plan, dledger=dledger, file_size=work.file_size))
        self.findings: list[Finding] = []
        self.stretches: list[tuple[int, int]] = []
        self.doubtful: set[int] = set()
        self.lost: Finding | None = None
        self.lost_bytes = 0
        self.lost_a_frame = False

    @property
    def _is_limited(self) -> bool:
        """True if the file continues after the part that may be read."""
        return self.data.rest is None and len(self.view) < self.work.file_size

    def run(self, begin: int | None) -> RangeResult:
        work, stop = self.work, self.work.stop - self.base
        position = self._first(begin)
        found = position
        ending = Ending.CONTINUES
        if position is None:
            position = stop
        else:
            position, ending = self._walk(position, stop)
        self._take_events()
        # A range in which no frame begins counts as it is walked again (LogMerge.take): from the
        # end of the frame before it. Its own blocks may be a gigabyte of a hole.
        digests = self.tally.plan.blocks and found is not None
        # Results are sent between processes, so they must not refer to mapped memory.
        self.tally.plan = TallyPlan(dledger=self.file.dledger)
        self.tally.unit_rows.clear()
        return RangeResult(
            work=work,
            begin=-1 if found is None else self.base + found,
            end=self.base + position,
            ending=ending,
            tally=self.tally,
            findings=self.findings,
            stretches=self.stretches,
            doubtful=self.doubtful,
            blocks=self._blocks(position, ending) if digests else Blocks.none(),
            lost=self.lost,
            lost_bytes=self.lost_bytes,
            lost_a_frame=self.lost_a_frame,
            lengths=self._first_lengths(),
        )

    def _first_lengths(self) -> dict[int, int]:
        frames = {queue.first_frame for queue in self.tally.queues} | {self.tally.first_frame}
        return {at: self._frame_length(at - self.base) for at in frames if at >= 0}

    def _first(self, begin: int | None) -> int | None:
        if begin is not None:
            return begin - self.base
        start = self.work.start - self.base
        if self.work.is_first:
            return start
        stop = min(self.work.stop - self.base, self.data.data_end)
        frames = find_frames(self.view, self.base, start, stop, dledger=self.file.dledger)
        return next(frames, None)

    def _walk(self, position: int, stop: int) -> tuple[int, Ending]:
        while True:
            position, reason = tally_frames(self.view, self.base, position, stop, self.tally)
            if reason is StopReason.LIMIT:
                self._take_events()
                continue
            if reason is StopReason.END:
                return position, self._at_stop(position)
            if self.data.rest is not None:
                raise _CutOffError
            self._take_events()
            after = self._pass_damage(position, reason)
            if isinstance(after, Ending):
                return position, after
            position = after
            if position >= stop:
                return position, Ending.CONTINUES

    def _at_stop(self, position: int) -> Ending:
        """Return the ending at the stop of the range, or at the end of the readable bytes."""
        return Ending.LIMIT if self._is_limited and position >= len(self.view) else Ending.CONTINUES

    def _pass_damage(self, position: int, reason: StopReason) -> int | Ending:
        """Return the position at which to continue after ``position``, or why the range ends."""
        if reason is StopReason.BLANK and self.file.is_closed_at(position):
            self._check_filler(position)
            return Ending.FILLER
        if reason is StopReason.ZERO and self.data.content_end(position) == position:
            return Ending.LIMIT if self._is_limited else Ending.ZEROS
        after = next_frame(self.file, position)
        if reason is StopReason.BLANK:
            return self._wrong_filler(position, after)
        if after is None:
            return Ending.LIMIT if self._is_limited else self._lose(position, reason)
        found = diagnose(self.file, position, reason, after - position)
        self._find(
            found.code, position, after - position, (found.field, found.found, found.expected)
        )
        self.stretches.append((self.base + position, self.base + after))
        return after

    def _lose(self, position: int, reason: StopReason) -> Ending:
        remaining = self.work.file_size - position
        found = diagnose(self.file, position, reason, 0)
        self.lost = Finding(
            code=found.code,
            file=self.work.file,
            offset=self.base + position,
            length=remaining,
            field=found.field,
            found=found.found,
            expected=found.expected,
        )
        self.lost_bytes = self.data.content_end(position) - position
        self.lost_a_frame = was_a_frame(self.file, position)
        return Ending.LOST

    def _check_filler(self, position: int) -> None:
        if self.file.dledger:
            end = self.data.content_end(position + layout.ENTRY_FILLER_SIZE)
            if end > position + layout.ENTRY_FILLER_SIZE:
                length = end - position - layout.ENTRY_FILLER_SIZE
                self._find(FindingCode.FILLER_NOT_ZERO, position, length)

    def _wrong_filler(self, position: int, after: int | None) -> int | Ending:
        remaining = self.work.file_size - position
        size = self.file.int_at(position + (4 if self.file.dledger else 0))
        length = remaining if after is None else after - position
        self._find(FindingCode.FILLER_SIZE, position, length, ("size", str(size), str(remaining)))
        if after is None:
            return Ending.FILLER
        self.stretches.append((self.base + position, self.base + after))
        return after

    def _find(
        self, code: FindingCode, position: int, length: int, values: _FieldValues = NO_VALUES
    ) -> None:
        field_name, found, expected = values
        self.findings.append(
            Finding(
                code=code,
                file=self.work.file,
                offset=self.base + position,
                length=length,
                field=field_name,
                found=found,
                expected=expected,
            )
        )

    def _take_events(self) -> None:
        events, self.tally.events[:] = self.tally.events[:], []
        for event in events:
            finding = self._finding_of(event)
            if finding is not None:
                self.findings.append(finding)

    def _finding_of(self, event: Event) -> Finding | None:
        kind, frame, number, found, expected, previous = event
        steps = kind in (EventKind.QUEUE_STEP, EventKind.ENTRY_INDEX)
        if steps and found > expected and self._lost(previous, frame):
            return None
        code, field_name = EVENT_CODES[EventKind(kind)]
        if kind in DOUBTS:
            self.doubtful.add(frame)
        topic, queue_id, queue_offset = "", -1, -1
        if number >= 0:
            queue: QueueTally = self.tally.queues[number]
            topic, queue_id = java_text(queue.topic), queue.queue_id
            record = frame - self.base + self.file.record_shift
            queue_offset = self.file.long_at(record + layout.QUEUE_OFFSET_POSITION)
        values = ("", "") if kind in WITHOUT_NUMBERS else (str(found), str(expected))
        if kind in (EventKind.UNIT, EventKind.ENTRY_UNIT) and found == -1:
            values = ("nothing", values[1])
        if kind == EventKind.UNIT:
            code = FindingCode.UNIT_MISSING if found == -1 else FindingCode.UNIT_WRONG
            if found == expected:
                values = ("another size or tags code", "those of the message")
        return Finding(
            code=code,
            file=self.work.file,
            offset=frame,
            length=self._frame_length(frame - self.base),
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            field=field_name,
            found=values[0],
            expected=values[1],
        )

    def _frame_length(self, position: int) -> int:
        return self.file.int_at(position + (4 if self.file.dledger else 0))

    def _lost(self, previous: int, frame: int) -> bool:
        """Return whether lost bytes between two frames explain missing messages."""
        return any(previous < begin < frame for begin, _ in self.stretches)

    def _blocks(self, position: int, ending: Ending) -> Blocks:
        start = self.work.start - self.base
        stop = self.work.stop - self.base
        if ending is not Ending.CONTINUES:
            stop = min(position, stop)
        digests = (
            hashlib.blake2b(
                self.view[at : min(at + BLOCK_SIZE, stop)], digest_size=BLOCK_DIGEST_BYTES
            ).digest()
            for at in range(start, stop, BLOCK_SIZE)
        )
        return Blocks.of(digests, self._groups(position))

    def _groups(self, position: int) -> list[FrameGroup]:
        blocks = self.tally.blocks
        firsts = [blocks[number] for number in sorted(blocks)]
        ends = [first for first, _ in firsts[1:]] + [position] * bool(firsts)
        return [
            FrameGroup(self.base + first, count, crc32(self.view[first:end]))
            for (first, count), end in zip(firsts, ends, strict=False)
        ]


assert RANGE_BYTES % (1 << BLOCK_SHIFT) == 0

DOUBTS = frozenset(
    (EventKind.BODY_CRC, EventKind.PROPERTIES, EventKind.TOPIC, EventKind.CHECKSUM, EventKind.PLACE)
)
"""The faults of a last record whose write was interrupted."""

WITHOUT_NUMBERS = frozenset(
    (EventKind.PROPERTIES, EventKind.TOPIC, EventKind.CHECKSUM, EventKind.ENTRY_RESERVED)
)

EVENT_CODES: dict[EventKind, tuple[FindingCode, str]] = {
    EventKind.BODY_CRC: (FindingCode.RECORD_BODY_CRC, "BODYCRC"),
    EventKind.PLACE: (FindingCode.RECORD_PLACE, "PHYSICALOFFSET"),
    EventKind.PROPERTIES: (FindingCode.RECORD_PROPERTIES, "PROPERTIES"),
    EventKind.TOPIC: (FindingCode.RECORD_TOPIC, "TOPIC"),
    EventKind.CHECKSUM: (FindingCode.RECORD_CHECKSUM, "__CRC32#"),
    EventKind.QUEUE_STEP: (FindingCode.QUEUE_STEP, "QUEUEOFFSET"),
    EventKind.UNIT: (FindingCode.UNIT_WRONG, "offset"),
    EventKind.ENTRY_PLACE: (FindingCode.ENTRY_PLACE, "pos"),
    EventKind.ENTRY_INDEX: (FindingCode.ENTRY_INDEX, "index"),
    EventKind.ENTRY_TERM: (FindingCode.ENTRY_TERM, "term"),
    EventKind.ENTRY_RESERVED: (FindingCode.ENTRY_RESERVED, "channel, chainCrc, bodyCrc"),
    EventKind.ENTRY_UNIT: (FindingCode.ENTRY_UNIT, "pos"),
}
