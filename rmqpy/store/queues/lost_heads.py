"""Find the queues whose first files are missing although the log still has their messages.

Cleaning removes the first file of a queue when all of its units lead below the start of the log.
So a queue may begin at any file, and a file that was lost looks like one that was removed. What
decides is the first unit that is left:

===========================================  ====================================================
the first file begins with                   the files before it
===========================================  ====================================================
the unit of queue offset 0                   do not exist
filler                                       do not exist: the queue was created at a later offset
a unit that leads below the start of the     were removed: they led below it, too
log
any other unit                               were lost, if the log has a message of the queue with
                                             a smaller queue offset; its first message decides
===========================================  ====================================================

Only the last case reads the log, from its start to that unit at most. It is rare: in a store that
was cleaned, the start of the log must fall between two files of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import QUEUE_FILLER_SIZE, QUEUE_UNIT_SIZE
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.flags import has_queue_unit
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import ConsumeQueueTable, QueueName
from rmqpy.store.queues.unit_check import LIGHT_QUEUE_PREFIX

STEP_RECORDS = 4096


def queues_without_head(queues: ConsumeQueueTable, log: CommitLog) -> list[QueueName]:
    """Return the queues whose first messages in the log have no units, because files are missing
    before the first one.
    """
    doubtful = {}
    for name, queue in queues.items():
        unit = _first_unit(queue) if queue.begins_later else None
        if unit is not None and unit[1] > log.min_offset:
            doubtful[name] = unit
    return _with_earlier_messages(doubtful, log) if doubtful else []


def _first_unit(queue: ConsumeQueue) -> tuple[int, int] | None:
    """Return the queue offset and the physical offset of the first unit of a queue that does not
    begin with its first file; None if there is nothing to doubt.
    """
    segments = queue.segments
    if queue.name[0].startswith(LIGHT_QUEUE_PREFIX):
        return None
    offset, size, _ = QUEUE_UNIT.unpack_from(segments.first.view)
    queue.close()
    if size <= 0 or size == QUEUE_FILLER_SIZE:
        return None
    return segments.min_offset // QUEUE_UNIT_SIZE, offset


def _with_earlier_messages(
    doubtful: Mapping[QueueName, tuple[int, int]], log: CommitLog
) -> list[QueueName]:
    """Return the queues of which the log has a message with a smaller queue offset."""
    left = {
        (topic.encode("utf-8", "surrogateescape"), queue_id): (topic, queue_id)
        for topic, queue_id in doubtful
    }
    end = max(offset for _, offset in doubtful.values())
    lost = []
    for piece in log.ranges(log.min_offset):
        position = 0
        while left and piece.offset + position < end:
            start = piece.offset + position
            scan = scan_records(
                piece.view[position:],
                start,
                dledger=piece.dledger,
                check_crc=False,
                max_records=STEP_RECORDS,
            )
            for row, key in enumerate(zip(scan.topic, scan.queue_id, strict=True)):
                name = left.get(key)
                if name is None or not has_queue_unit(scan.sys_flag[row]):
                    continue
                del left[key]  # The queue offsets of a queue ascend.
                if scan.queue_offset[row] < doubtful[name][0]:
                    lost.append(name)
            if scan.end == start:
                break
            position = scan.end - piece.offset
        if not left or piece.file_end >= end:
            break
    return lost
