"""Delivery of delayed messages: from SCHEDULE_TOPIC_XXXX to the topics that they name.

Runs on masters only: ``start`` and ``stop`` follow the role. Each level is a queue read in order::

    unit due? ──no──► again when it is (at least each ``POLL_MS``)
        │ yes
        ├─ delivered by a former master (:mod:`.delivered`) ───► done
        └─ copy to the real topic, staged in the log ─► waiting ─► acknowledged ─► done
                                                           └─► refused, late: again from here

The offset of a level (:mod:`rmqpy.broker.state.delay_levels`) passes a message when it and all
before it are done. An acknowledged message is not delivered again, unless the process dies before
the offset is saved and the copy can no longer be found.

Bounds: ``STEP_MESSAGES`` copies per step, then other work has its turn; ``IN_FLIGHT_MAX`` copies of
a level wait for their acknowledgement.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from attrs import define, field

from rmqpy.broker.base.message_copy import copy_of
from rmqpy.broker.base.store_api import MessageReader
from rmqpy.broker.services.delivered import DeliveryDeduplicator, ExpectedCopy
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.codec.message import InvalidRecordError, decode_message
from rmqpy.codec.properties import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.model.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC

if TYPE_CHECKING:
    from rmqpy.broker.assembly.server import BrokerDependencies, BrokerServer

FIRST_STEP_MS: Final = 1_000
POLL_MS: Final = 100
"""The time between two checks of a level, and before a failed delivery is repeated."""
STEP_MESSAGES: Final = 256
IN_FLIGHT_MAX: Final = 2_000
BUSY_MS: Final = 1
"""The time before the next step when the last one used up its bounds."""

logger = logging.getLogger(__name__)

Turn = Callable[[Callable[[], None]], None]
"""Runs work that writes messages as one turn of the broker: it is committed at its end."""


@define(slots=True, eq=False, repr=False)
class _Delivery:
    offset: int
    done: bool = False


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


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class DeliverySurroundings:
    """What delivery uses. ``delays_ms`` has the delay of level n at n - 1."""

    delays_ms: tuple[int, ...]
    offsets: DelayOffsetTable
    queues: MessageReader
    messages: InternalMessageWriter
    scheduler: Scheduler
    turn: Turn


@define(slots=True, eq=False, repr=False)
class ScheduleMessageService:
    """Delivers delayed messages while this broker is a master."""

    deps: DeliverySurroundings
    _levels: list[_Level] = field(factory=list, init=False)
    _timer: Timer | None = field(default=None, init=False)

    @classmethod
    def of(cls, broker: BrokerServer, deps: BrokerDependencies) -> Self:
        """Over the store and the delay offsets of ``broker``."""
        return cls(
            DeliverySurroundings(
                delays_ms=broker.identity.store.delay_levels_ms,
                offsets=broker.delay_offsets,
                queues=broker.store,
                messages=broker.own_messages,
                scheduler=deps.scheduler,
                turn=broker.run_in_turn,
            )
        )

    def start(self) -> None:
        """Start delivering, because this broker is a master now. Harmless if already started."""
        if self._timer is not None:
            return
        deps = self.deps
        self._levels = [
            _Level(level, delay_ms, deps.offsets.get(level), DeliveryDeduplicator(deps.queues))
            for level, delay_ms in enumerate(deps.delays_ms, 1)
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

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return level to (offset delivered, end of its queue), for the levels
        that have messages.
        """
        queues, offsets = self.deps.queues, self.deps.offsets
        ends = {
            level: queues.max_queue_offset(SCHEDULE_TOPIC, level - 1)
            for level in range(1, len(self.deps.delays_ms) + 1)
        }
        return {level: (offsets.get(level), end) for level, end in ends.items() if end}

    def _plan(self, delay_ms: int) -> None:
        self._timer = self.deps.scheduler.call_later(delay_ms, self._run)

    def _run(self) -> None:
        wait_ms = POLL_MS
        try:
            if any(self._has_news(level) for level in self._levels):
                self.deps.turn(self._step)
                wait_ms = self._wait_ms()
        finally:
            self._plan(wait_ms)

    def _has_news(self, level: _Level) -> bool:
        queues = self.deps.queues
        return level.next != queues.max_queue_offset(SCHEDULE_TOPIC, level.queue_id)

    def _wait_ms(self) -> int:
        """Return the time until the first level must be checked again."""
        now_ms = self.deps.scheduler.monotonic_ms()
        times = [level.not_before_ms for level in self._levels if self._has_news(level)]
        return min(max(BUSY_MS, min(times) - now_ms), POLL_MS) if times else POLL_MS

    def _step(self) -> None:
        now_ms = self.deps.scheduler.monotonic_ms()
        budget = STEP_MESSAGES
        for level in self._levels:
            if budget > 0 and level.not_before_ms <= now_ms:
                budget -= self._deliver(level, budget)

    def _deliver(self, level: _Level, budget: int) -> int:
        """Deliver up to ``budget`` messages of a level; return how many were examined."""
        self._settle_offset(level)
        now_ms = self.deps.scheduler.now_ms()
        count = min(budget, IN_FLIGHT_MAX - len(level.pending))
        if count <= 0 or not self.deps.messages.has_room:
            self._rest(level, POLL_MS)
            return 0
        units = self.deps.queues.queue_units(SCHEDULE_TOPIC, level.queue_id, level.next, count)
        looked = 0
        for physical_offset, _, due_ms in units:
            if due_ms > now_ms + level.delay_ms:
                due_ms = now_ms  # the clock was set back, or the delay of the level was shortened
            if due_ms > now_ms:
                self._rest(level, due_ms - now_ms)
                break
            looked += 1
            if not self._deliver_one(level, physical_offset, due_ms):
                break
        if not units:
            self._rest(level, POLL_MS)
        return looked

    def _rest(self, level: _Level, wait_ms: int) -> None:
        """Do not check a level for some time."""
        now_ms = self.deps.scheduler.monotonic_ms()
        level.not_before_ms = now_ms + min(wait_ms, POLL_MS)

    def _settle_offset(self, level: _Level) -> None:
        """Adjust the level if its queue was cut or has expired, or if a table was merged."""
        deps = self.deps
        level.next = max(level.next, deps.offsets.get(level.number))
        if level.pending:
            return
        low = deps.queues.min_queue_offset(SCHEDULE_TOPIC, level.queue_id)
        high = deps.queues.max_queue_offset(SCHEDULE_TOPIC, level.queue_id)
        if not low <= level.next <= high:
            level.next = low if level.next < low else high
            deps.offsets.correct_delay_offset(level.number, level.next)

    def _deliver_one(self, level: _Level, physical_offset: int, due_ms: int) -> bool:
        """Deliver the message at ``level.next``; return False if the level must wait."""
        awaited = self._awaited(physical_offset, due_ms)
        delivery = _Delivery(level.next)
        if awaited is None:
            delivery.done = True
        elif level.search is not None:
            found = level.search.step(awaited)
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
            assert awaited is not None
            self._write(level, delivery, awaited)
        return level.next > delivery.offset

    def _awaited(self, physical_offset: int, due_ms: int) -> ExpectedCopy | None:
        """Return what is to be delivered, or None, with a log line, if that is impossible."""
        record = self.deps.queues.message_at(physical_offset)
        if record is None:
            logger.warning("delayed message at %d skipped: no longer in the log", physical_offset)
            return None
        try:
            message = decode_message(record)
            topic, queue_id = _real_queue(message)
        except (InvalidRecordError, ValueError) as fault:
            logger.error("delayed message at %d skipped: %s", physical_offset, fault)
            return None
        return ExpectedCopy(message, topic, queue_id, due_ms)

    def _write(self, level: _Level, delivery: _Delivery, awaited: ExpectedCopy) -> None:
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
                self._again(level, delivery, status)

        self.deps.messages.submit([delivery_of(awaited)], done)

    def _again(self, level: _Level, failed: _Delivery, status: PutMessageStatus) -> None:
        """Start again with the first message that is not delivered."""
        logger.warning(
            "delay level %d: delivery of queue offset %d failed, retrying: %s",
            level.number,
            failed.offset,
            status.value,
        )
        while level.pending and level.pending[-1].offset >= failed.offset:
            level.pending.pop()
        level.next = min(level.next, failed.offset)
        self._rest(level, POLL_MS)

    def _settle(self, level: _Level) -> None:
        while level.pending and level.pending[0].done:
            self.deps.offsets.advance(level.number, level.pending.popleft().offset + 1)


def delivery_of(awaited: ExpectedCopy) -> OutgoingMessage:
    """Return the copy that consumers get: unchanged, including DELAY and
    REAL_TOPIC (as in Java).
    """
    message = awaited.message
    return copy_of(message, awaited.topic, awaited.queue_id, message.properties)


def _real_queue(message: StoredMessage) -> tuple[str, int]:
    """Return the real topic and queue of a delayed message. Raises ValueError with the reason."""
    if message.topic != SCHEDULE_TOPIC:
        raise ValueError(f"its topic is {message.topic!r}")
    topic = message.properties.get(PROPERTY_REAL_TOPIC, "")
    if not topic or topic == TRANSACTION_HALF_TOPIC:
        raise ValueError(f"{PROPERTY_REAL_TOPIC} is {topic!r}")
    return topic, int(message.properties.get(PROPERTY_REAL_QUEUE_ID, ""))
