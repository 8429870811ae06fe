"""Compare two classic logs: find whether one is a prefix of the other, or where they diverge.

Whole blocks are compared by the digests of the manifests. Bytes are read only for the block in
which one log ends, or which differs. Bytes after the last record, and after the eight bytes of a
BLANK, do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from attrs import define

from rmqpy.audit.replicas.compare import first_block, first_different_byte
from rmqpy.audit.replicas.manifest import LogDigest, LogFileDigest
from rmqpy.audit.replicas.verdict import Word
from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import decode_message
from rmqpy.codec.scan import StopReason
from rmqpy.upgrade.checks.replica import Replica

LISTED_MAX = 200
"""The maximum number of messages listed for each side of a divergence; all are counted."""


class Relation(Enum):
    EQUAL = "equal"
    SHORTER = "shorter"
    """The first is a prefix of the second."""
    LONGER = "longer"
    DIVERGED = "diverged"

    @property
    def word(self) -> Word:
        """The word that reports use: one log of the two may be contained in the other."""
        words = {Relation.EQUAL: Word.EQUAL, Relation.DIVERGED: Word.DIFFERENT}
        return words.get(self, Word.CONTAINED)


@define(slots=True, frozen=True)
class LogComparison:
    """The result for two logs.

    Both have the same records up to ``common_end``. ``difference`` is the first differing byte of a
    divergence, else -1. ``lacks_front`` means that the first log begins after the second.
    """

    relation: Relation
    common_end: int
    difference: int = -1
    lacks_front: bool = False


def classic_log(replica: Replica) -> LogDigest:
    return replica.survey().manifest.log("classic") or LogDigest(kind="classic")


def compare_logs(first: Replica, second: Replica) -> LogComparison:
    """Compare the classic log of the first replica with that of the second."""
    one, two = classic_log(first), classic_log(second)
    if not one.files or not two.files:
        if not one.files and not two.files:
            return LogComparison(Relation.EQUAL, 0)
        relation = Relation.SHORTER if not one.files else Relation.LONGER
        return LogComparison(relation, min(one.end, two.end), lacks_front=bool(two.files))
    begin = max(one.begin, two.begin)
    common_end = following = begin
    theirs = {file.first_offset: file for file in two.files}
    for file in one.files:
        if file.first_offset < begin:
            continue
        other = theirs.get(file.first_offset)
        if other is None or file.first_offset != following:  # One of the logs lacks a file.
            break
        following = file.end_offset
        equal_to, difference = _compare_file(first, file, second, other)
        common_end = equal_to
        if difference >= 0:
            return LogComparison(Relation.DIVERGED, common_end, difference, one.begin > two.begin)
        if file.end != other.end:
            break
    relation = _relation(one, two, common_end)
    difference = common_end if relation is Relation.DIVERGED else -1
    return LogComparison(relation, common_end, difference, one.begin > two.begin)


@define(slots=True, frozen=True, kw_only=True)
class MessageLine:
    """One message of one side, listed for the operator's choice."""

    offset: int
    topic: str
    queue_id: int
    queue_offset: int
    stored_ms: int
    keys: str
    unique_key: str
    body_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "__weakref__"}

    def __str__(self) -> str:
        return (
            f"offset {self.offset}: {self.topic} queue {self.queue_id} offset {self.queue_offset},"
            f" stored {self.stored_ms}, id {self.unique_key or '-'}, keys {self.keys or '-'},"
            f" {self.body_bytes} bytes"
        )


def messages_after(replica: Replica, offset: int) -> Iterator[MessageLine]:
    """Yield the messages whose last byte is after ``offset``, in order."""
    for file in classic_log(replica).files:
        if file.end <= offset:
            continue
        start = _frame_before(file, offset)
        step = _CHUNK
        while start < file.end:
            stop = min(file.end, start + step)
            data = replica.read(file.path, start - file.first_offset, stop - file.first_offset)
            scan = scan_records(memoryview(data), start, dledger=False, check_crc=False)
            for record, size in zip(scan.offset, scan.size, strict=True):
                if record + size > offset:
                    yield _line(data, record - start, record)
            if not len(scan) and stop == file.end:
                break
            step = _CHUNK if len(scan) else 2 * step
            start = scan.end


_CHUNK = 4 << 20


def _line(data: bytes, position: int, offset: int) -> MessageLine:
    message = decode_message(data, position)
    return MessageLine(
        offset=offset,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        stored_ms=message.store_timestamp_ms,
        keys=message.properties.get("KEYS", ""),
        unique_key=message.properties.get("UNIQ_KEY", ""),
        body_bytes=len(message.body),
    )


def _compare_file(
    first: Replica, one: LogFileDigest, second: Replica, two: LogFileDigest
) -> tuple[int, int]:
    """Return (offset up to which both are equal, offset of the first difference or -1)."""
    block = first_block(one, two)
    if block is not None:
        begin, end, _ = block
        start, stop = begin - one.first_offset, end - one.first_offset
        difference = first_different_byte(
            first.read(one.path, start, stop), second.read(two.path, start, stop)
        )
        if difference >= 0:
            offset = begin + difference
            return _record_start(first, one, offset), offset
    return min(one.end, two.end), -1


def _record_start(replica: Replica, file: LogFileDigest, offset: int) -> int:
    """Return the start of the record that contains ``offset``; both logs are equal before it."""
    start = _frame_before(file, offset)
    while True:
        stop = min(file.end, max(offset, start) + _CHUNK)
        data = replica.read(file.path, start - file.first_offset, stop - file.first_offset)
        scan = scan_records(memoryview(data), start, dledger=False, check_crc=False)
        for record, size in zip(scan.offset, scan.size, strict=True):
            if record + size > offset:
                return record
        if scan.stop is not StopReason.LIMIT:
            return scan.end
        start = scan.end


def _relation(one: LogDigest, two: LogDigest, common_end: int) -> Relation:
    more_one, more_two = one.end > common_end, two.end > common_end
    if more_one and more_two:
        return Relation.DIVERGED
    if more_one:
        return Relation.LONGER
    return Relation.SHORTER if more_two else Relation.EQUAL


def _frame_before(file: LogFileDigest, offset: int) -> int:
    """Return the last offset that is known to be that of a frame, and is not after ``offset``; or
    the start of the file.
    """
    if file.first_offset >= offset:
        return file.first_offset
    starts = (group.offset for group in file.blocks.groups)
    return max((each for each in starts if each <= offset), default=file.first_offset)
