"""The proof that the consume queues of a broker that was killed have the units of its log.

A process writes units before the records they lead to are durable, so of those after the last
durable point one, the last that was written, may be torn, and nothing shows which one that is.
Therefore they are dropped and dispatched again, which costs a start more time the more queues there
are. Instead, number and sum of all units from that point on are compared with those that the
messages of the log must have, as an audit does: both are read once, in C, and in any order. Those
of the units are mostly known from the reading of the ends of the queues.

The tags codes of delayed messages are times of delivery, which the proof leaves out.
"""

from __future__ import annotations

import os
from typing import Final

from rmqpy.codec.scan import StopReason
from rmqpy.model.files import NumberAndSum
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.queues.consume_queue import END_STATE, MIN_STATE
from rmqpy.store.queues.table import ConsumeQueueTable, YoungUnits

QUEUES_MIN: Final = 256
UNIT_BYTES_MAX: Final = 128 << 20
LOG_BYTES_MAX: Final = 1 << 30
BYTES_MAX_PER_QUEUE: Final = 32 << 10
"""The limits of the proof: to drop the units of a few queues is cheaper, and so it is if much must
be read: other units of the same queues, or a long log from the last durable point on. To drop the
units of one queue takes as long as to read 200 KiB.
"""

_MASK64: Final = (1 << 64) - 1


def are_units_proven(queues: ConsumeQueueTable, log: CommitLog, low: int) -> bool:
    """Return whether the units that lead to the log from ``low`` on are proven to be those of its
    messages, up to the last message that has one.
    """
    high = queues.max_physical_offset
    if (
        len(queues) < QUEUES_MIN
        or high - low > LOG_BYTES_MAX + len(queues) * BYTES_MAX_PER_QUEUE
        or any(queue.damaged for queue in queues)
    ):
        return False
    young = queues.young_units
    if young is None or young.low != low:
        young = YoungUnits(low, (0, 0), tuple(queues.topic_folders()))
    found = units_on_disk(queues, young)
    return found is not None and found == units_of_log(log, low, high)


def units_on_disk(queues: ConsumeQueueTable, young: YoungUnits) -> NumberAndSum | None:
    """Return number and sum of the units of messages from ``low`` on, or None if something is not
    as usual, or there are too many other units.
    """
    if not young.unread:
        return young.read
    from rmqpy.codec.tally.backend import folder_pool  # A clean start does not need it.

    unread = set(young.unread)
    states = (queue.state for (topic, _), queue in queues.items() if topic in unread)
    size = sum(state[END_STATE] - state[MIN_STATE] for state in states)
    if size > UNIT_BYTES_MAX + len(queues) * BYTES_MAX_PER_QUEUE:
        return None
    descriptor = queues.open_folder()
    if descriptor < 0:
        return None
    try:
        pool = folder_pool(descriptor, young.low)
        if pool is None:
            return None
        for topic in young.unread:
            if pool.add(topic.encode(), any_tags=topic == SCHEDULE_TOPIC) is None:
                return None
        return young.read[0] + pool.count, (young.read[1] + pool.sum) & _MASK64
    finally:
        os.close(descriptor)


def units_of_log(log: CommitLog, low: int, high: int) -> NumberAndSum | None:
    """Return number and sum of the units that the messages from ``low`` to ``high`` must have, or
    None if they cannot be read.
    """
    from rmqpy.codec.tally.backend import tally_frames
    from rmqpy.codec.tally.kernel import Tally, TallyPlan

    count = total = 0
    for piece in log.ranges(PhysicalOffset(low)):
        if low >= high:
            break
        if piece.offset != low:
            return None
        plan = TallyPlan(dledger=piece.dledger, check_crc=False, digests=False, pooled=True)
        tally = Tally(plan)
        end = min(high - piece.offset, len(piece.view))
        position, stop = tally_frames(piece.view, piece.offset, 0, end, tally)
        if stop is StopReason.BLANK and piece.file_end <= high:
            low = piece.file_end
        elif stop is StopReason.END:
            low = piece.offset + position
        else:
            return None
        count, total = count + tally.pooled_count, (total + tally.pooled_sum) & _MASK64
    return (count, total) if low == high else None
