"""Merge the partial results of ranges, in the order of the log, into the result of a sequential
audit.

Chain proof: a range counts only if it starts where the previous one ended; otherwise it is audited
again from there (``rerun``). By induction the result is that of an audit from the first file on,
for any split and any content of message bodies.

The end of a file's content is judged once it is known what follows:

=============================  ==========================  ==================================
the frames of a file end at    a later file has frames     no later file has frames
=============================  ==========================  ==================================
its filler                     sound                       sound: the next frame opens a file
zeros                          FILLER_MISSING              the end of the log
bytes that are not a frame     damage to the file's end    TAIL_PARTIAL or TAIL_JUNK
such bytes, or zeros, after a  damage                      TAIL_PARTIAL: the log ends before
frame whose content is wrong                               that frame
=============================  ==========================  ==================================
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, field

from rmqpy.audit.scan.blocks import Blocks
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.ranges import Ending, RangeResult, WorkRange
from rmqpy.codec.hashes import java_text
from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.tally.kernel import QueueTally, Tally, TallyPlan, add_sums
from rmqpy.model.values import define

__all__ = ["FileDigests", "LogMerge", "LogResult", "Rerun"]

Rerun = Callable[[WorkRange, int], RangeResult]
"""A function that audits a range again, starting at the given offset."""
Sink = Callable[[list[Finding]], None]

_MASK64 = (1 << 64) - 1


@define(slots=True, kw_only=True)
class FileDigests:
    """One file of a log: the end of its content, and digests of the content."""

    file: str
    first_offset: int
    file_size: int
    end: int
    ending: Ending = Ending.CONTINUES
    blocks: Blocks = field(factory=Blocks.none)

    @property
    def end_offset(self) -> int:
        """The offset after the file's last byte."""
        return self.first_offset + self.file_size

    @property
    def is_sealed(self) -> bool:
        return self.ending is Ending.FILLER

    @property
    def valid_bytes(self) -> int:
        """The number of meaningful bytes at the start of the file, including the 8 of a filler."""
        valid = self.end - self.first_offset + (BLANK_SIZE if self.is_sealed else 0)
        return min(valid, self.file_size)


@define(slots=True, kw_only=True)
class LogResult:
    """The result of a whole log; ``end`` is the offset after its last frame.

    ``queues`` and ``stretches`` include those of the log before this one.
    """

    log: str
    tally: Tally
    queues: dict[tuple[bytes, int], QueueTally]
    stretches: list[tuple[int, int]]
    files: list[FileDigests]

    @property
    def _last(self) -> FileDigests | None:
        """The file with the last frame."""
        with_content = [file for file in self.files if file.end > file.first_offset]
        return with_content[-1] if with_content else None

    @property
    def end(self) -> int:
        last = self._last
        return last.end if last else 0

    @property
    def ending(self) -> Ending:
        last = self._last
        return last.ending if last else Ending.ZEROS


class LogMerge:
    """Merges the ranges of one log, added in order.

    Findings go to ``sink`` as soon as they are certain, in the order of offsets.
    """

    def __init__(self, log: str, rerun: Rerun, sink: Sink, before: LogResult | None = None) -> None:
        """Start with an empty result, or with that of the log ``before``, whose queues continue in
        this log.
        """
        self._rerun = rerun
        self._sink = sink
        self._result = LogResult(
            log=log,
            tally=Tally(TallyPlan(dledger=False)),
            queues=_copies(before.queues) if before else {},
            stretches=list(before.stretches) if before else [],
            files=[],
        )
        self.proven: Callable[[RangeResult], None] = lambda _result: None
        """Receives every range before it becomes part of the result."""
        self._waiting: list[RangeResult] = []
        """The last range with frames and those after it, which are judged by what follows."""

    def take(self, result: RangeResult) -> None:
        """Add the next range in order."""
        work = result.work
        files = self._result.files
        if work.is_first:
            self._gap_before(work)
            files.append(
                FileDigests(
                    file=work.file,
                    first_offset=work.first_offset,
                    file_size=work.file_size,
                    end=work.first_offset,
                )
            )
        file = files[-1]
        if file.ending is not Ending.CONTINUES or file.end >= work.stop:
            return
        if result.begin != file.end:
            result = self._rerun(work, file.end)
        file.end, file.ending = result.end, result.ending
        if result.tally.records:
            self._settle_waiting()
        self._waiting.append(result)

    def finish(self) -> LogResult:
        """Return the result; called after the last range."""
        self._judge_tail()
        for result in self._waiting:
            self._merge(result)
        return self._result

    def _gap_before(self, work: WorkRange) -> None:
        """Record a missing file, so that its missing messages are not further findings."""
        if self._result.files and self._result.files[-1].end_offset < work.first_offset:
            gap = self._result.files[-1].end_offset, work.first_offset
            self._result.stretches.append(gap)

    def _settle_waiting(self) -> None:
        """Judge the waiting ranges as the middle of the log: a later range has frames."""
        waiting, self._waiting = self._waiting, []
        for result in waiting:
            self._merge(result)
            work = result.work
            file_end = work.first_offset + work.file_size
            if result.ending is Ending.LOST and result.lost is not None:
                self._result.stretches.append((result.end, file_end))
                self._sink([result.lost])
            elif result.ending is Ending.ZEROS:
                self._result.stretches.append((result.end, file_end))
                self._sink([_at_end(FindingCode.FILLER_MISSING, result, file_end - result.end)])
            elif result.ending is Ending.CONTINUES and work.is_last and result.end < file_end:
                self._sink([_at_end(FindingCode.FILLER_MISSING, result, file_end - result.end)])

    def _judge_tail(self) -> None:
        if not self._waiting:
            return
        first, *rest = self._waiting
        ended = next((r for r in self._waiting if r.ending is not Ending.CONTINUES), first)
        found: list[Finding] = []
        if ended.ending in (Ending.ZEROS, Ending.LOST) and first.last_doubtful:
            shortened = self._without_last(first)
            length = max(ended.end + ended.lost_bytes, first.end) - shortened.end
            found.append(_at_end(FindingCode.TAIL_PARTIAL, shortened, length))
            self._waiting = [shortened, *rest]
        elif ended.ending is Ending.LOST:
            code = FindingCode.TAIL_PARTIAL if ended.lost_a_frame else FindingCode.TAIL_JUNK
            found.append(_at_end(code, ended, ended.lost_bytes))
        found += self._files_ahead(first, ended)
        self._sink(found)

    def _without_last(self, result: RangeResult) -> RangeResult:
        """Return the result of the range without its last frame."""
        limit = result.tally.last_frame
        shortened = self._rerun(evolve(result.work, limit=limit), result.begin)
        shortened.ending = Ending.LOST
        for file in self._result.files:
            if file.first_offset == result.work.first_offset:
                file.end, file.ending = shortened.end, Ending.LOST
        return shortened

    def _files_ahead(self, first: RangeResult, ended: RangeResult) -> list[Finding]:
        """Return findings for the files after the one in which the log ends."""
        found = []
        for result in self._waiting:
            work = result.work
            if not work.is_first or work.first_offset <= first.work.first_offset:
                continue
            if result.ending is Ending.LOST and result is not ended:
                code = FindingCode.TAIL_PARTIAL if result.lost_a_frame else FindingCode.TAIL_JUNK
                found.append(_at_end(code, result, result.lost_bytes))
            elif result.ending is Ending.ZEROS:
                sealed = ended.ending is Ending.FILLER
                code = FindingCode.FILE_AHEAD_SEALED if sealed else FindingCode.FILE_AHEAD
                found.append(_at_end(code, result, work.file_size))
        return found

    def _merge(self, result: RangeResult) -> None:
        self.proven(result)
        into, tally = self._result.tally, result.tally
        findings = list(result.findings)
        # Lost bytes before the range's first frame also explain a step at that frame.
        self._result.stretches += result.stretches
        if tally.records:
            findings += self._joints(result)
            _add_tally(into, tally)
        for queue in tally.queues:
            findings += self._add_queue(queue, result)
        for file in self._result.files:
            if file.first_offset == result.work.first_offset:
                file.blocks += result.blocks
        self._sink(sorted(findings))

    def _joints(self, result: RangeResult) -> list[Finding]:
        """Compare index and term of the first entry with those of the last one before it."""
        before, tally = self._result.tally, result.tally
        if not tally.plan.dledger or before.last_frame < 0:
            return []
        steps = (
            (FindingCode.ENTRY_INDEX, "index", tally.first_index, before.last_index + 1),
            (FindingCode.ENTRY_TERM, "term", tally.first_term, before.last_term),
        )
        wrong = (tally.first_index != steps[0][3], tally.first_term < before.last_term)
        if self._is_lost(before.last_frame, tally.first_frame):
            wrong = (False, wrong[1])
        return [
            Finding(
                code=code,
                file=result.work.file,
                offset=tally.first_frame,
                length=result.lengths[tally.first_frame],
                field=name,
                found=str(found),
                expected=str(expected),
            )
            for (code, name, found, expected), is_wrong in zip(steps, wrong, strict=True)
            if is_wrong
        ]

    def _add_queue(self, queue: QueueTally, result: RangeResult) -> list[Finding]:
        key = queue.topic, queue.queue_id
        before = self._result.queues.get(key)
        if before is None:
            self._result.queues[key] = queue
            return []
        found = []
        expected = before.next_queue_offset
        if queue.count and expected >= 0 and queue.first_queue_offset != expected:
            ahead = queue.first_queue_offset > expected
            if not (ahead and self._is_lost(before.last_frame, queue.first_frame)):
                found.append(
                    Finding(
                        code=FindingCode.QUEUE_STEP,
                        file=result.work.file,
                        offset=queue.first_frame,
                        length=result.lengths[queue.first_frame],
                        topic=java_text(queue.topic),
                        queue_id=queue.queue_id,
                        queue_offset=queue.first_queue_offset,
                        field="QUEUEOFFSET",
                        found=str(queue.first_queue_offset),
                        expected=str(expected),
                    )
                )
        _add_queue(before, queue)
        return found

    def _is_lost(self, previous: int, frame: int) -> bool:
        """Return whether lost bytes are between two frames."""
        return any(previous < begin < frame for begin, _ in self._result.stretches)


def _at_end(code: FindingCode, result: RangeResult, length: int) -> Finding:
    return Finding(code=code, file=result.work.file, offset=result.end, length=length)


def _add_tally(into: Tally, tally: Tally) -> None:
    for name in _SUMS:
        setattr(into, name, getattr(into, name) + getattr(tally, name))
    for name in ("key_sum", "entry_sum", "term_sum", "pooled_sum"):
        setattr(into, name, getattr(into, name) & _MASK64)
    for name in ("largest_record", "longest_properties", "max_store_ms"):
        setattr(into, name, max(getattr(into, name), getattr(tally, name)))
    if into.min_store_ms < 0 or tally.min_store_ms < into.min_store_ms:
        into.min_store_ms = tally.min_store_ms
    if into.first_frame < 0:
        into.first_frame = tally.first_frame
        into.first_index, into.first_term = tally.first_index, tally.first_term
    into.last_frame = tally.last_frame
    into.last_index, into.last_term = tally.last_index, tally.last_term


_SUMS = (
    "records",
    "frame_bytes",
    "body_bytes",
    "version_2",
    "right_entry_units",
    "key_count",
    "key_sum",
    "entry_sum",
    "term_sum",
    "pooled_count",
    "pooled_without",
    "pooled_sum",
)


def _copies(queues: dict[tuple[bytes, int], QueueTally]) -> dict[tuple[bytes, int], QueueTally]:
    return {
        key: evolve(queue, buckets={number: list(sums) for number, sums in queue.buckets.items()})
        for key, queue in queues.items()
    }


def _add_queue(into: QueueTally, queue: QueueTally) -> None:
    if queue.count:
        if not into.count:
            into.first_queue_offset, into.first_frame = queue.first_queue_offset, queue.first_frame
        into.last_queue_offset, into.last_frame = queue.last_queue_offset, queue.last_frame
        into.next_queue_offset = queue.next_queue_offset
    into.count += queue.count
    into.unqueued += queue.unqueued
    into.right_units += queue.right_units
    into.unit_count += queue.unit_count
    into.unit_sum = (into.unit_sum + queue.unit_sum) & _MASK64
    into.tags_sum = (into.tags_sum + queue.tags_sum) & _MASK64
    for bucket, sums in queue.buckets.items():
        add_sums(into.buckets.setdefault(bucket, [0, 0, 0, 0]), sums)
