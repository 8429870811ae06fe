"""Check the consume queues against the log, for errors that the audit of the log cannot find.

The audit of the log has checked the unit of every message. If a queue has as many units as messages
with a correct unit, no unit is left over and the queue is correct. Otherwise every unit is checked:
it must lead to the message of this queue with this queue offset. Units that lead into lost bytes or
missing files are not findings: they show what was lost there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import define

from rmqpy.audit.checks.pooled_check import LOOK_AHEAD_BYTES
from rmqpy.audit.facts.log_reader import LogReader, Slot
from rmqpy.audit.facts.unread_damage import batch_units
from rmqpy.audit.scan.directory import QueueFolder, StoreDirectory
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.audit.scan.queue_units import QueueUnits, each_unit, read_ends, unit_at
from rmqpy.codec import layout
from rmqpy.codec.hashes import java_text
from rmqpy.codec.tally.kernel import QueueTally, UnitRow
from rmqpy.model.errors import StoreError
from rmqpy.model.text import count_text
from rmqpy.store.unread.rocksdb_reader import can_read_rocksdb, read_rocks_units

__all__ = ["MULTI_DISPATCH_PREFIX", "QueueCheck"]

MULTI_DISPATCH_PREFIX = "%LMQ%"
"""The prefix of queues with units of messages of other topics."""


@define(slots=True)
class QueueCheck:
    """Checks the consume queues of a store.

    ``reported`` has the slots for which the audit of the log reported a finding; ``stretches`` has
    the ranges of lost bytes; ``log`` is (begin, end) of the address space; ``limit`` is the
    confirmed end of a running broker.
    """

    directory: StoreDirectory
    units: QueueUnits
    reader: LogReader
    queues: dict[tuple[bytes, int], QueueTally]
    reported: set[Slot]
    stretches: list[tuple[int, int]]
    log: tuple[int, int]
    limit: int | None = None

    def run(self) -> Iterator[list[Finding]]:
        """Yield the findings of each queue."""
        for queue in self.directory.queues:
            key = queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id
            yield list(self._queue(queue, self.queues.get(key)))
        yield list(self._without_files())

    def _without_files(self) -> Iterable[Finding]:
        in_rocksdb = self._rocksdb_counts()
        for key, tally in sorted(self.queues.items()):
            units = self.units(*key)
            topic = java_text(key[0])
            if topic in self.directory.batch_topics:
                yield from self._batch_queue(topic, key[1], tally)
            elif in_rocksdb is not None and units is None and tally.next_queue_offset >= 0:
                file = self.directory.relative(self.directory.rocksdb_queues[0])
                yield from _fewer(file, topic, key[1], in_rocksdb[topic, key[1]], tally)
            if units is not None or not tally.count or not self.directory.needs_queue_files(topic):
                continue
            if tally.next_queue_offset < 0:
                continue  # Inner batches have queues of another kind.
            yield Finding(
                code=FindingCode.UNIT_MISSING,
                file=f"consumequeue/{topic}/{key[1]}",
                offset=tally.first_frame,
                topic=topic,
                queue_id=key[1],
                queue_offset=tally.first_queue_offset,
                found="no file for the queue",
                expected=f"units of {count_text(tally.count, 'message')}",
            )

    def _batch_queue(self, topic: str, queue_id: int, tally: QueueTally) -> Iterator[Finding]:
        """Check that a queue of a batch topic has as many units as the log has records for it."""
        path = f"batchconsumequeue/{topic}/{queue_id}"
        units = batch_units(self.reader.files, f"{self.directory.root}/{path}")
        count = sum(offset >= self.log[0] for offset, *_ in units)
        if self.limit is None:
            yield from _fewer(path, topic, queue_id, count, tally)

    def _rocksdb_counts(self) -> Counter[tuple[str, int]] | None:
        """Return how many units of each queue in RocksDB lead into the log; None if they are not
        read. One that cannot be read is a finding of the facts.
        """
        folders = self.directory.rocksdb_queues
        if not folders or self.limit is not None or not can_read_rocksdb():
            return None
        try:
            return Counter(
                (unit.topic, unit.queue_id)
                for folder in folders
                for unit in read_rocks_units(folder)
                if unit.physical_offset >= self.log[0]
            )
        except StoreError:
            return None

    def _queue(self, queue: QueueFolder, tally: QueueTally | None) -> Iterator[Finding]:
        units = self.units(queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id)
        if units is None:
            return
        ends = read_ends(queue, units, self.log[0], self.limit)
        right = tally.right_units if tally else 0
        if ends.count == right and not self._may_continue(units, ends.max_offset):
            return
        ends = read_ends(queue, units, self.log[0], self.limit, thorough=True)
        for queue_offset, unit in each_unit(units, ends.min_offset, ends.max_offset):
            offset, size, _ = unit
            slot = queue.topic, queue.queue_id, queue_offset
            if size == 0 and offset == 0 and self._is_inside(tally, queue_offset):
                continue
            if slot in self.reported or self._is_lost(offset):
                continue
            identity = self.reader.identity(offset, size)
            multi = queue.topic.startswith(MULTI_DISPATCH_PREFIX)
            if identity == slot or (multi and identity is not None):
                continue
            position = queue_offset * layout.QUEUE_UNIT_SIZE
            file = queue.segments.file_at(position)
            yield Finding(
                code=FindingCode.UNIT_SURPLUS,
                file=self.directory.relative(file.path) if file else queue.segments.name,
                offset=offset,
                length=size if 0 < size < self.log[1] else 0,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
                found=_describe(identity),
            )

    def _may_continue(self, units: UnitRow, end: int) -> bool:
        """Return whether bytes other than zero follow shortly after the last unit.

        What a running broker has added since follows it, too: then a message after the limit.
        """
        if self.limit is not None:
            following = unit_at(units, end)
            if following is not None and following[0] >= self.limit:
                return False
        position = end * layout.QUEUE_UNIT_SIZE
        size = min(LOOK_AHEAD_BYTES, units.file_size - position % units.file_size)
        rest = units.read(position, size)
        return rest is not None and bool(rest.strip(b"\0"))

    def _is_inside(self, tally: QueueTally | None, queue_offset: int) -> bool:
        """Return whether the audit of the log has checked the message for this position."""
        return tally is not None and queue_offset <= tally.last_queue_offset

    def _is_lost(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self.stretches)


def _describe(identity: Slot | None) -> str:
    if identity is None:
        return "no message at that offset"
    topic, queue_id, queue_offset = identity
    return f"{topic} queue {queue_id} offset {queue_offset}"


def _fewer(
    file: str, topic: str, queue_id: int, count: int, tally: QueueTally
) -> Iterator[Finding]:
    """Check that a queue has as many units as the log has records for it."""
    if count < tally.count:
        yield Finding(
            code=FindingCode.UNIT_MISSING,
            file=file,
            topic=topic,
            queue_id=queue_id,
            found=count_text(count, "unit"),
            expected=f"units of {count_text(tally.count, 'record')}",
        )
