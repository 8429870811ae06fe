"""The search for copies of delayed messages that a former master delivered.

A new master may know less of the progress than the log does: offsets are saved each
``flushDelayOffsetInterval`` and sent to slaves even later.

A delivered copy is in the queue that the message names, after the message and not before it was
due, and agrees with it in everything that a producer set. A level is delivered in order: once a
message turns out not to be delivered, none after it is, and the search is over.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from rmqpy.broker.base.store_api import MessageReader
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.message import InvalidRecordError, decode_message
from rmqpy.codec.properties import PROPERTY_TAGS
from rmqpy.model.message import StoredMessage

CLOCK_SKEW_MS: Final = 5_000
"""The maximum by which the clock of the former master may have been ahead."""
UNITS_AT_ONCE: Final = 1024


@define(slots=True, frozen=True)
class ExpectedCopy:
    """A delayed message, the queue that it is for, and when it is due."""

    message: StoredMessage
    topic: str
    queue_id: int
    due_ms: int


@define(slots=True, eq=False, repr=False)
class DeliveryDeduplicator:
    """The search of one level. Cursors continue after each copy found: two
    equal messages are two.
    """

    queues: MessageReader
    _cursors: dict[tuple[str, int], int] = field(factory=dict, init=False)

    def step(self, awaited: ExpectedCopy) -> bool | None:
        """Return whether the copy exists, or None if the search must continue (call again)."""
        target = (awaited.topic, awaited.queue_id)
        cursor = self._cursors.get(target)
        if cursor is None:
            since_ms = awaited.due_ms - CLOCK_SKEW_MS
            cursor = self.queues.offset_by_time(*target, since_ms)
        tags_code = _tags_code(awaited.message)
        units = self.queues.queue_units(*target, cursor, UNITS_AT_ONCE)
        for physical_offset, _, code in units:
            cursor += 1
            if (
                code == tags_code
                and physical_offset > awaited.message.physical_offset
                and self._is_copy(physical_offset, awaited.message)
            ):
                self._cursors[target] = cursor
                return True
        self._cursors[target] = cursor
        return None if units else False

    def _is_copy(self, physical_offset: int, message: StoredMessage) -> bool:
        record = self.queues.message_at(physical_offset)
        if record is None:
            return False
        try:
            found = decode_message(record)
        except InvalidRecordError:
            return False
        return (
            found.born_timestamp_ms == message.born_timestamp_ms
            and found.born_host == message.born_host
            and found.reconsume_times == message.reconsume_times
            and found.body == message.body
            and found.properties == message.properties
        )


def _tags_code(message: StoredMessage) -> int:
    tags = message.properties.get(PROPERTY_TAGS)
    return java_string_hash(tags) if tags else 0
