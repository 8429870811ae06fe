"""The check whether a consume queue unit leads to its message: the record there has the size of the
unit, and the topic, the queue and the queue offset that belong to the unit.

The same rule in C is ``is_message`` of native/pull.c.
"""

from __future__ import annotations

from struct import Struct

from rmqpy.codec.layout import (
    BODY_POSITIONS,
    HOSTS_V6,
    RECORD_SIZE_MIN,
    TOPIC_LENGTH_SIZES,
)
from rmqpy.model.ids import PhysicalOffset
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.queues.table import QueueName

LIGHT_QUEUE_PREFIX = "%LMQ%"
"""The prefix of Java's light queues. Their units lead to messages of other topics, with the queue
offsets of those topics.
"""

_HEAD = Struct(">iI4xi4xq8xi")
"""TOTALSIZE, MAGICCODE, QUEUEID, QUEUEOFFSET, SYSFLAG."""


def is_plausible_unit(log: CommitLog, physical_offset: int, size: int) -> bool:
    """Return whether the log may contain, or may have contained, a record of this size there."""
    return physical_offset >= 0 and RECORD_SIZE_MIN <= size <= log.max_offset - physical_offset


def unit_matches_record(
    log: CommitLog, location: tuple[int, int], name: QueueName, queue_offset: int
) -> bool:
    """Return whether a unit leads to its message. ``location`` is the physical offset and size in
    the unit.
    """
    if not is_plausible_unit(log, *location):
        return False
    record = log.read(PhysicalOffset(location[0]), location[1])
    return record is not None and is_message(record, name, queue_offset)


def is_message(record: memoryview, name: QueueName, queue_offset: int) -> bool:
    """Return whether ``record``, which has the length given by its unit, is the message at this
    queue offset.
    """
    size, magic, queue_id, record_offset, sys_flag = _HEAD.unpack_from(record)
    if size != len(record) or magic not in TOPIC_LENGTH_SIZES:
        return False
    topic, wanted_id = name
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        return True
    if (queue_id, record_offset) != (wanted_id, queue_offset):
        return False
    body = BODY_POSITIONS[sys_flag & HOSTS_V6]
    body_length = int.from_bytes(record[body - 4 : body], signed=True)
    body_end = body + body_length
    length_end = body_end + TOPIC_LENGTH_SIZES[magic]
    if body_length < 0 or length_end > size:
        return False
    topic_end = length_end + int.from_bytes(record[body_end:length_end])
    return record[length_end:topic_end] == topic.encode("utf-8", "surrogateescape")
