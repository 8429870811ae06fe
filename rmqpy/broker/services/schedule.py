"""Delivery of delayed messages: from SCHEDULE_TOPIC_XXXX to the topics that they name.

Runs on masters only: ``start`` and ``stop`` follow the role. Each level is a queue read in order::

    unit due? ──no──► again when it is (at least each ``POLL_MS``)
        │ yes
        ├─ delivered by a former master (``DeliveryDeduplicator``) ───► done
        └─ copy to the real topic, staged in the log ─► waiting ─► acknowledged ─► done
                                                           └─► refused, timed out: retried

The offset of a level (:mod:`rmqpy.broker.state.delay_levels`) passes a message when it and all
before it are done. An acknowledged message is not delivered again, unless the process dies before
the offset is saved and the copy can no longer be found.

Bounds: ``STEP_MESSAGES`` copies per step, so that other work can run; ``IN_FLIGHT_MAX`` copies of a
level wait for their acknowledgement.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import field

from rmqpy.broker.base.message_copy import copy_of
from rmqpy.broker.base.store_api import MessageReader
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.message import InvalidRecordError, decode_intact, decode_message
from rmqpy.codec.properties import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, PROPERTY_TAGS
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.model.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from rmqpy.model.values import define

CLOCK_SKEW_MS: Final = 5_000
"""The time by which the clock of the former master may have been ahead."""
UNITS_AT_ONCE: Final = 1024


@define(slots=True, frozen=True)
class ExpectedCopy:
    """A delayed message, the queue to which it is delivered, and when it is due."""

    message: StoredMessage
    topic: str
    queue_id: int
    due_ms: int


@define(slots=True, eq=False, repr=False)
class DeliveryDeduplicator:
    """The search for copies of delayed messages that were delivered before; one per level.

    The progress that a new master has read may be older than its log: offsets are saved each
    ``flushDelayOffsetInterval`` and reach slaves later still. A delivered copy is in the queue that
    the message names, after the message and not before it was due, and equals it in everything that
    the producer set. A level is delivered in order: once a message turns out not to be delivered,
    none after it is, and the search ends. Each cursor continues after the last find, because two
    equal messages are two messages.
    """

    queues: MessageReader
    _cursors: dict[tuple[str, int], int] = field(factory=dict, init=False)

    def step(self, expected: ExpectedCopy) -> bool | None:
        """Return whether the copy exists, or None if the search is not finished (call again)."""
        target = (expected.topic, expected.queue_id)
        cursor = self._cursors.get(target)
        if cursor is None:
            since_ms = expected.due_ms - CLOCK_SKEW_MS
            cursor = self.queues.offset_by_time(*target, since_ms)
        tags_code = _tags_code(expected.message)
        units = self.queues.queue_units(*target, cursor, UNITS_AT_ONCE)
        for physical_offset, _, code in units:
            cursor += 1
            if (
                code == tags_code
                and physical_offset > expected.message.physical_offset
                and self._is_copy(physical_offset, expected.message)
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


FIRST_STEP_MS: Final = 1_000
POLL_MS: Final = 100
"""The time between two checks of a level, and before a failed delivery is repeated."""
STEP_MESSAGES: Final = 256
IN_FLIGHT_MAX: Final = 2_000
BUSY_MS: Final = 1
"""The time before the next step when the last one used up its bounds."""

logger = logging.getLogger(__name__)

Turn = Callable[[Callable[[], None]], None]
"""Runs work that writes messages as one turn of the broker, at whose end they are committed."""


class DeliveryAccelerator(Protocol):
    """The delivery in C of messages in the usual form."""

    def deliver(self, messages: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Stage copies of ``messages``, each an offset and a size. Return how many, from the first
        one on, and the offset at which the last of them ends.
        """


@define(slots=True, eq=False, repr=False)
class _Delivery:
    """``count`` consecutive messages of a level, which are acknowledged together."""

    offset: int
    done: bool = False
    count: int = 1


@define(slots=True, eq=False, repr=False)
class _Level:
    number: int
    delay_ms: int
    next: int
    search: DeliveryDeduplicator | None
    pending: deque[_Delivery] = field(factory=deque)
    """Deliveries that are not all done, in order of their offsets."""
    not_before_ms: int = 0
    """Monotonic time before which the level is not checked."""

    @property
    def queue_id(self) -> int:
        return self.number - 1

    @property
    def in_flight(self) -> int:
        return self.next - self.pending[0].offset if self.pending else 0


@define(slots=True, kw_only=True, eq=False, repr=False)
class ScheduleMessageService:
    """The delivery of delayed messages, level by level."""

    delays_ms: tuple[int, ...]
    """The delay of level n at index n - 1."""
    offsets: DelayOffsetTable
    queues: MessageReader
    messages: InternalMessageWriter
    scheduler: Scheduler
    turn: Turn
    _accelerator: DeliveryAccelerator | None = field(default=None, init=False)
    _levels: list[_Level] = field(factory=list, init=False)
    _timer: Timer | None = field(default=None, init=False)

    def install_accelerator(self, accelerator: DeliveryAccelerator) -> None:
        self._accelerator = accelerator

    def start(self) -> None:
        """Start delivering, because this broker is a master now. Has no effect if started."""
        if self._timer is not None:
            return
        self._levels = [
            _Level(level, delay_ms, self.offsets.get(level), DeliveryDeduplicator(self.queues))
            for level, delay_ms in enumerate(self.delays_ms, 1)
        ]
        self._plan(FIRST_STEP_MS)

    def stop(self) -> None:
        """Stop, because this broker is no longer a master; pending copies count
        as not delivered.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._levels = []

    def _plan(self, delay_ms: int) -> None:
        self._timer = self.scheduler.call_later(delay_ms, self._run)

    def _run(self) -> None:
        wait_ms = POLL_MS
        try:
            if any(self._has_messages(level) for level in self._levels):
                self.turn(self._step)
                wait_ms = self._wait_ms()
        finally:
            self._plan(wait_ms)

    def _has_messages(self, level: _Level) -> bool:
        queues = self.queues
        return level.next != queues.max_queue_offset(SCHEDULE_TOPIC, level.queue_id)

    def _wait_ms(self) -> int:
        """Return the time until the next check of a level."""
        now_ms = self.scheduler.monotonic_ms()
        times = [level.not_before_ms for level in self._levels if self._has_messages(level)]
        return min(max(BUSY_MS, min(times) - now_ms), POLL_MS) if times else POLL_MS

    def _step(self) -> None:
        now_ms = self.scheduler.monotonic_ms()
        budget = STEP_MESSAGES
        for level in self._levels:
            if budget > 0 and level.not_before_ms <= now_ms:
                budget -= self._deliver(level, budget)

    def _deliver(self, level: _Level, budget: int) -> int:
        """Deliver up to ``budget`` messages of a level; return how many were examined."""
        self._settle_offset(level)
        now_ms = self.scheduler.now_ms()
        count = min(budget, IN_FLIGHT_MAX - level.in_flight)
        if count <= 0 or not self.messages.has_room:
            self._postpone(level, POLL_MS)
            return 0
        units = self.queues.queue_units(SCHEDULE_TOPIC, level.queue_id, level.next, count)
        due: list[tuple[int, int]] = []
        times: list[int] = []
        for physical_offset, size, due_ms in units:
            if due_ms > now_ms + level.delay_ms:
                due_ms = now_ms  # the clock was set back, or the delay of the level was shortened
            if due_ms > now_ms:
                self._postpone(level, due_ms - now_ms)
                break
            due.append((physical_offset, size))
            times.append(due_ms)
        if not units:
            self._postpone(level, POLL_MS)
        examined = 0
        while examined < len(due):
            if level.search is None:
                examined += self._deliver_in_c(level, due[examined:])
                if examined == len(due):
                    break
            examined += 1
            if not self._deliver_one(level, due[examined - 1][0], times[examined - 1]):
                break
        return examined

    def _deliver_in_c(self, level: _Level, due: Sequence[tuple[int, int]]) -> int:
        """Deliver messages at ``level.next``; return how many."""
        count, end = self._accelerator.deliver(due) if self._accelerator is not None else (0, 0)
        if count:
            delivery = _Delivery(level.next, count=count)
            level.pending.append(delivery)
            level.next += count
            self.messages.wait(end, self._done(level, delivery))
        return count

    def _postpone(self, level: _Level, wait_ms: int) -> None:
        """Postpone the next check of a level."""
        now_ms = self.scheduler.monotonic_ms()
        level.not_before_ms = now_ms + min(wait_ms, POLL_MS)

    def _settle_offset(self, level: _Level) -> None:
        """Move the level if its queue was cut or has expired, or if the offsets were merged."""
        level.next = max(level.next, self.offsets.get(level.number))
        if level.pending:
            return
        low = self.queues.min_queue_offset(SCHEDULE_TOPIC, level.queue_id)
        high = self.queues.max_queue_offset(SCHEDULE_TOPIC, level.queue_id)
        if not low <= level.next <= high:
            level.next = low if level.next < low else high
            self.offsets.correct_delay_offset(level.number, level.next)

    def _deliver_one(self, level: _Level, physical_offset: int, due_ms: int) -> bool:
        """Deliver the message at ``level.next``; return False if the level must wait."""
        expected = self._expected_copy(physical_offset, due_ms)
        delivery = _Delivery(level.next)
        if expected is None and self.queues.is_awaiting_repair(physical_offset):
            self._postpone(level, POLL_MS)
            return False
        if expected is None:
            delivery.done = True
        elif level.search is not None:
            found = level.search.step(expected)
            if found is None:
                return False
            if found:
                delivery.done = True
            else:
                level.search = None
        level.pending.append(delivery)
        level.next += 1
        if delivery.done:
            self._settle(level)
        else:
            assert expected is not None
            self._write(level, delivery, expected)
        return level.next > delivery.offset

    def _expected_copy(self, physical_offset: int, due_ms: int) -> ExpectedCopy | None:
        """Return the message to deliver, or None (logged) if it cannot be read."""
        record = self.queues.message_at(physical_offset)
        if record is None:
            logger.warning("delayed message at %d is no longer in the log", physical_offset)
            return None
        try:
            message = decode_intact(record, physical_offset)
            topic, queue_id = _real_queue(message)
        except (InvalidRecordError, ValueError) as fault:
            logger.error("delayed message at %d cannot be read: %s", physical_offset, fault)
            return None
        return ExpectedCopy(message, topic, queue_id, due_ms)

    def _write(self, level: _Level, delivery: _Delivery, expected: ExpectedCopy) -> None:
        self.messages.submit([delivery_of(expected)], self._done(level, delivery))

    def _done(self, level: _Level, delivery: _Delivery) -> Callable[[PutMessageStatus], None]:
        def done(status: PutMessageStatus) -> None:
            if level not in self._levels:
                return
            if status is PutMessageStatus.PUT_OK:
                delivery.done = True
                self._settle(level)
            elif status in (
                PutMessageStatus.MESSAGE_ILLEGAL,
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
            ):
                logger.error(
                    "delayed message of level %d skipped: refused with %s", level.number, status
                )
                delivery.done = True
                self._settle(level)
            else:
                self._retry(level, delivery, status)

        return done

    def _retry(self, level: _Level, failed: _Delivery, status: PutMessageStatus) -> None:
        """Continue the level at ``failed``, dropping the deliveries after it."""
        logger.warning(
            "delay level %d: delivery of queue offset %d failed, retrying: %s",
            level.number,
            failed.offset,
            status.value,
        )
        while level.pending and level.pending[-1].offset >= failed.offset:
            level.pending.pop()
        level.next = min(level.next, failed.offset)
        self._postpone(level, POLL_MS)

    def _settle(self, level: _Level) -> None:
        while level.pending and level.pending[0].done:
            done = level.pending.popleft()
            self.offsets.advance(level.number, done.offset + done.count)


def delay_progress(
    offsets: DelayOffsetTable, queues: MessageReader, level_count: int
) -> dict[int, tuple[int, int]]:
    """Return (offset delivered, end of the queue) of each level that has messages."""
    ends = {
        level: queues.max_queue_offset(SCHEDULE_TOPIC, level - 1)
        for level in range(1, level_count + 1)
    }
    return {level: (offsets.get(level), end) for level, end in ends.items() if end}


def delivery_of(expected: ExpectedCopy) -> OutgoingMessage:
    """Return the copy that consumers receive: unchanged, including DELAY and
    REAL_TOPIC (as in Java).
    """
    message = expected.message
    return copy_of(message, expected.topic, expected.queue_id, message.properties)


def _real_queue(message: StoredMessage) -> tuple[str, int]:
    """Return the real topic and queue of a delayed message. Raises ValueError with the reason."""
    if message.topic != SCHEDULE_TOPIC:
        raise ValueError(f"its topic is {message.topic!r}")
    topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
    if not topic or topic == TRANSACTION_HALF_TOPIC:
        raise ValueError(f"{PROPERTY_REAL_TOPIC} is {topic!r}")
    return topic, int(message.properties.get(PROPERTY_REAL_QUEUE_ID, ""))
