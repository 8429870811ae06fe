"""Delay levels: where a delayed message waits, and the progress of each level
(``config/delayOffset.json``, code 45).

A message with ``DELAY`` goes to queue *level - 1* of SCHEDULE_TOPIC_XXXX; its own topic and queue
are kept in REAL_TOPIC and REAL_QID. Levels above the last one of ``messageDelayLevel`` count as the
last. The tags code of that topic's consume queue is the time when the message is due
(:mod:`rmqpy.store.dispatcher`).

Invariant: a merge never decreases the offset of a level. Of two different offsets the larger wins,
and the difference is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmqpy.broker.base.message_copy import encode_java_properties
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.codec.properties import PROPERTY_DELAY, PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import has_queue_unit
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.model.steps import Steps
from rmqpy.remoting.bodies import DelayOffsetSerializeWrapper
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

LEVELS_MAX: Final = 1024
"""The highest level that is accepted from a saved or received table."""

logger = logging.getLogger(__name__)


def delay_level(properties: dict[str, str]) -> int:
    """Return the delay level that a message requests, or 0. Raises
    RequestRejectedError if it is not a number.
    """
    text = properties.get(PROPERTY_DELAY)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"property DELAY is not a number: {text[:64]!r}"
        ) from None


def redirect(draft: OutgoingMessage, properties: dict[str, str], level_max: int) -> bool:
    """Turn ``draft`` into a delayed message if ``properties`` request it, and return whether they
    do.

    Only messages of the types none and commit are delayed. ``properties`` are changed accordingly.
    """
    level = min(delay_level(properties), level_max)
    if level <= 0 or not has_queue_unit(draft.sys_flag):
        return False
    properties[PROPERTY_DELAY] = str(level)
    properties[PROPERTY_REAL_TOPIC] = draft.topic.decode()
    properties[PROPERTY_REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic = SCHEDULE_TOPIC.encode()
    draft.queue_id = level - 1
    draft.properties = encode_java_properties(properties)
    return True


@define(slots=True, eq=False, repr=False)
class DelayOffsetTable:
    """The queue offset of the first undelivered message of each delay level."""

    _table: dict[int, int] = field(factory=dict, init=False)
    _on_change: Callable[[], None] = field(default=lambda: None, init=False)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change."""
        self._on_change = listener

    def get(self, level: int) -> int:
        return self._table.get(level, 0)

    def advance(self, level: int, offset: int) -> None:
        """Record that everything below ``offset`` is delivered; an offset smaller than the current
        one is ignored.
        """
        if offset > self._table.get(level, 0):
            self._table[level] = offset
            self._on_change()

    def correct_delay_offset(self, level: int, offset: int) -> None:
        """Set a level to ``offset``, which may be smaller, because its queue does not contain the
        current offset.
        """
        logger.warning(
            "delay level %d: offset %d not in queue, set to %d", level, self.get(level), offset
        )
        self._table[level] = offset
        self._on_change()

    def merge(self, other: DelayOffsetSerializeWrapper) -> None:
        """Take over the offsets of another member that are larger than our own."""
        for level, offset in other.offset_table.items():
            own = self._table.get(level)
            if own is not None and own != offset:
                logger.info("delay level %d: own offset %d, received %d", level, own, offset)
            if 0 < level <= LEVELS_MAX:
                self.advance(level, offset)

    def wrapper(self) -> DelayOffsetSerializeWrapper:
        """Return the table as it is sent to slaves and saved."""
        return DelayOffsetSerializeWrapper(offset_table=dict(sorted(self._table.items())))

    def file_steps(self) -> Steps[list[bytes]]:
        """Return the table as it is saved."""
        yield
        return [self.wrapper().encode(pretty=True)]

    def restore(self, saved: DelayOffsetSerializeWrapper) -> None:
        """Take over the saved table."""
        self.merge(saved)

    # Requests

    def handlers(self) -> HandlerTable:
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.all_offsets}

    def all_offsets(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, body=self.wrapper().encode())
