"""The facts of one log of a store directory: its begin and end, first and last record, and tail.

Reading them is cheap: only the first frame and the files from the last one with content on are
read, and bodies are checked only at the ends of these files. Findings there have one of
``TAIL_CODES``; the full audit finds damage elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import evolve

from rmqpy.audit.facts.facts import LogFacts, RecordFacts, TailKind
from rmqpy.audit.scan.directory import LogSegments, StoreDirectory
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.log_bytes import LogBytes, map_log
from rmqpy.audit.scan.range_merge import LogMerge, LogResult
from rmqpy.audit.scan.ranges import Ending, RangeResult, WorkRange, audit_range, split_log
from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.codec.tally.kernel import BLOCK_SIZE, TallyPlan
from rmqpy.model.files import FileSystem
from rmqpy.store.files.framing import Framing

__all__ = ["TAIL_CODES", "read_log_facts", "record_at"]

TAIL_CODES = frozenset(
    (
        FindingCode.TAIL_PARTIAL,
        FindingCode.TAIL_JUNK,
        FindingCode.FILE_AHEAD,
        FindingCode.FILE_AHEAD_SEALED,
    )
)

TAIL_BYTES: Final = 16 << 20
"""The number of bytes at the end of a file's content in which bodies are checked."""


def read_log_facts(
    files: FileSystem,
    directory: StoreDirectory,
    log: LogSegments,
    confirmed: int | None,
    walked: LogResult | None = None,
) -> tuple[LogFacts, list[Finding]]:
    """Return the facts of a log and the findings after its last record.

    The log of a running broker is read up to ``confirmed``. ``log`` must have files. ``walked`` is
    the result of a walk over all of them, if it found nothing wrong.
    """
    relative = directory.relative
    found: list[Finding] = []
    tail_reader = _TailReader(files, directory.root, found)
    if walked is not None and walked.tally.records:
        end, last, ending = tail_reader.end_of(log, walked)
    else:
        end, last, ending = tail_reader.read(log, confirmed)
    view = map_log(files, log.files[0].path, scattered=True).view
    tail, tail_bytes = _tail_kind(ending, found)
    ahead = (FindingCode.FILE_AHEAD, FindingCode.FILE_AHEAD_SEALED)
    facts = LogFacts(
        name=log.name,
        folder=relative(log.files[0].path.rpartition("/")[0]),
        file_size=log.file_size,
        file_count=len(log.files),
        begin=log.first_offset,
        end=end,
        next_offset=_next_offset(log, end, ending),
        wrong_sizes=tuple(relative(f.path) for f in log.files if f.size != log.file_size),
        gaps=tuple(log.gaps()),
        strays=tuple(relative(path) for path in log.strays),
        empty_files=tuple(relative(file.path) for file in log.empty),
        first=record_at(view, log.first_offset, log.first_offset, log.framing),
        last=last,
        tail=tail,
        tail_bytes=tail_bytes,
        files_ahead=sum(finding.code in ahead for finding in found),
    )
    return facts, found


class _TailReader:
    """Reads the end of a log; findings after the last record are added to ``found``."""

    def __init__(self, files: FileSystem, root: str, found: list[Finding]) -> None:
        self._files = files
        self._root = root
        self._found = found
        self._open: dict[str, LogBytes] = {}

    def read(
        self, log: LogSegments, confirmed: int | None
    ) -> tuple[int, RecordFacts | None, Ending]:
        """Return (end, last record, why the log ends), from the last file with content on."""
        ranges = list(split_log(log, self._root, max(log.file_size, 1), confirmed))
        number = len(ranges) - 1
        while number > 0 and not self._data(ranges[number]).content_end():
            number -= 1
        while number >= 0:
            result = self._audited(ranges[number:])
            if result.tally.records or number == 0:
                break
            number -= 1
        if number < 0:
            return log.first_offset, None, Ending.ZEROS
        if not result.tally.records:
            return log.first_offset, None, result.ending
        return self.end_of(log, result)

    def end_of(self, log: LogSegments, result: LogResult) -> tuple[int, RecordFacts | None, Ending]:
        """Return what :meth:`read` does, from a walk that has seen the last record."""
        frame = result.tally.last_frame
        file = log.file_at(frame)
        assert file is not None
        data = self._open.get(file.path) or map_log(self._files, file.path, scattered=True)
        last = record_at(data.view, file.first_offset, frame, log.framing)
        return result.end, last, result.ending

    def _data(self, work: WorkRange) -> LogBytes:
        data = self._open.get(work.path)
        if data is None:
            data = self._open[work.path] = map_log(self._files, work.path).to_content_end()
        return data if work.limit is None else data.head(work.limit - work.first_offset)

    def _audited(self, ranges: list[WorkRange]) -> LogResult:
        """Return the merged result of these files.

        Only the last record matters: if it is in a part whose bodies were checked, the bodies of
        the other parts need no check.
        """
        parts = [part for work in ranges for part in self._parts(work)]
        result = self._merged(parts)
        thorough = [part for part, is_end in parts if is_end]
        last = result.tally.last_frame
        if last < 0 or any(part.start <= last < part.stop for part in thorough):
            return result
        return self._merged([(work, True) for work in ranges])

    def _parts(self, work: WorkRange) -> Iterator[tuple[WorkRange, bool]]:
        """Yield (part of a file, whether the part is the end of the content)."""
        end = self._data(work).content_end()
        start = work.first_offset + (max(end - TAIL_BYTES, 0) & -BLOCK_SIZE)
        if start > work.start:
            yield evolve(work, stop=start), False
        yield evolve(work, start=start), True

    def _merged(self, parts: list[tuple[WorkRange, bool]]) -> LogResult:
        self._found.clear()

        def tally_plan(is_end: bool) -> TallyPlan:
            return TallyPlan(dledger=False, digests=False, check_crc=is_end, pooled=True)

        def rerun(work: WorkRange, begin: int) -> RangeResult:
            return audit_range(self._data(work), work, tally_plan(True), begin)

        def keep_tail(findings: list[Finding]) -> None:
            self._found.extend(finding for finding in findings if finding.code in TAIL_CODES)

        merge = LogMerge(parts[0][0].log, rerun, keep_tail)
        for work, is_end in parts:
            merge.take(audit_range(self._data(work), work, tally_plan(is_end)))
        return merge.finish()


def _next_offset(log: LogSegments, end: int, ending: Ending) -> int:
    if ending is not Ending.FILLER:
        return end
    file = log.file_at(end)
    return file.end_offset if file else end


def _tail_kind(ending: Ending, found: list[Finding]) -> tuple[TailKind, int]:
    for finding in found:
        if finding.code is FindingCode.TAIL_PARTIAL:
            return TailKind.PARTIAL, finding.length
        if finding.code is FindingCode.TAIL_JUNK:
            return TailKind.JUNK, finding.length
    if ending is Ending.FILLER:
        return TailKind.BLANK, 0
    return (TailKind.CLEAN if ending is Ending.ZEROS else TailKind.NONE), 0


def record_at(
    view: memoryview, base_offset: int, frame_offset: int, framing: Framing
) -> RecordFacts | None:
    """Return the record of the frame at ``frame_offset``, or None if there is none."""
    position = frame_offset - base_offset
    index = term = -1
    if framing is Framing.DLEDGER:
        index = int.from_bytes(view[position + 8 : position + 16], signed=True)
        term = int.from_bytes(view[position + 16 : position + 24], signed=True)
        position += layout.ENTRY_HEADER_SIZE
    try:
        message = decode_message(view, position)
    except InvalidRecordError:
        return None
    return RecordFacts(
        offset=base_offset + position,
        frame_offset=frame_offset,
        size=message.size,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        store_timestamp_ms=message.store_timestamp_ms,
        version=message.version,
        index=index,
        term=term,
    )
