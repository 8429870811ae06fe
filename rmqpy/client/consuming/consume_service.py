"""One queue of a push consumer: its messages are pulled ahead of the listener, consumed and
finished (Java: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService).

::

    pull ──► ProcessQueue ──► listener ──SUCCESS──► finished
                  ▲               └────RECONSUME_LATER, an exception, a timeout──► sent back
                  └── ordered: a pause, then the same messages again

In concurrent consumption all queues share the workers of the consumer. An ordered queue has its own
worker, which pauses while the broker has not granted the queue's lock.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from enum import Enum
from inspect import isawaitable, iscoroutinefunction
from typing import cast

from attrs import define, field

from rmqpy.client.consuming.call_deadlines import CallDeadlines, resumed
from rmqpy.client.consuming.consumer_stats import ConsumerStats
from rmqpy.client.consuming.process_queue import FlowControlLimits, ProcessQueue
from rmqpy.client.consuming.work_queue import WorkQueue
from rmqpy.client.core.base_consumer import PullOrder, PullResult, PullStatus
from rmqpy.client.core.message import MessageExt
from rmqpy.client.core.quiet_log import QuietLog
from rmqpy.model.clock import Clock
from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.remoting.bodies import MessageQueue

logger = logging.getLogger(__name__)

LOCK_VALID_MS = 30_000
"""The time for which a granted lock is considered valid; the broker itself keeps it for 60 s."""


class ConsumeResult(Enum):
    """The listener's result for a batch (Java: ConsumeConcurrentlyStatus, ConsumeOrderlyStatus).

    ``SUCCESS`` finishes the messages; ``RECONSUME_LATER`` requests their redelivery after a delay.
    """

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "LATER"


class WithdrawnError(Exception):
    """Raised by a listener whose messages were not looked at: their queue is being dropped, and its
    next consumer receives them.
    """


Listener = Callable[[Sequence[MessageExt]], Awaitable[ConsumeResult | None]]
"""Consumes messages of one queue; None counts as SUCCESS, an exception as RECONSUME_LATER."""

AnyListener = Listener | Callable[[Sequence[MessageExt]], ConsumeResult | None]
"""A coroutine function, or a function that runs in a thread."""


def as_listener(given: AnyListener, threads: Executor) -> Listener:
    """Return a coroutine function that calls ``given``, in one of ``threads`` if it is not a
    coroutine function itself. Raises ConfigError if it cannot be called.
    """
    if not callable(given):
        raise ConfigError(f"listener: found {given!r}, expected a function of the messages")
    if iscoroutinefunction(given) or iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        return cast(Listener, given)

    async def listen(messages: Sequence[MessageExt]) -> ConsumeResult | None:
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(threads, given, messages)
        # A function may return what a coroutine function has returned to it.
        return await result if isawaitable(result) else result

    return listen


@define(frozen=True, kw_only=True)
class ConsumeSettings:
    """The settings of the delivery to the listener.

    * ``batch_max``: messages per listener call (Java: consumeMessageBatchMaxSize).
    * ``pull_max``: messages per pull (Java: pullBatchSize).
    * ``suspend_ms``: how long a broker may hold a pull that finds no message.
    * ``timeout_ms``: the limit for one listener call from its first ``await`` that waits; then it
      is cancelled and counts as RECONSUME_LATER (Java: consumeTimeout).
    * ``end_ms``: the time in which a running listener call may finish after its queue was assigned
      to another member.
    * ``pause_ms``: the pause of an ordered queue after RECONSUME_LATER (Java:
      suspendCurrentQueueTimeMillis).
    * ``fault_pause_ms``: the pause before the next pull after an error.
    * ``limits``: how many messages of a queue are held in memory.
    """

    batch_max: int = 1
    pull_max: int = 32
    suspend_ms: int = 15_000
    timeout_ms: int = 15 * 60_000
    end_ms: int = 5_000
    pause_ms: int = 1_000
    fault_pause_ms: int = 3_000
    limits: FlowControlLimits = field(factory=FlowControlLimits)


class ConsumerContext(ABC):
    """The services of a consumer that its queues use."""

    @property
    @abstractmethod
    def clock(self) -> Clock: ...

    @property
    @abstractmethod
    def rates(self) -> ConsumerStats: ...

    @property
    @abstractmethod
    def log(self) -> QuietLog: ...

    @abstractmethod
    async def pull(self, queue: MessageQueue, order: PullOrder) -> PullResult:
        """Pull from the broker; raises RmqError."""

    @abstractmethod
    async def send_back(self, message: MessageExt) -> bool:
        """Send ``message`` back for a later redelivery, and return whether that succeeded."""

    @property
    @abstractmethod
    def has_total_limit(self) -> bool:
        """True if there is a limit for what all queues hold together."""

    @abstractmethod
    def has_total_room(self, queue: QueueConsumer) -> bool:
        """Return whether all queues together may hold more messages, and ``queue`` may pull."""

    @abstractmethod
    def room_changed(self) -> None:
        """Let queues pull that waited for :meth:`has_total_room`."""

    @abstractmethod
    def dropping(self, queue: MessageQueue) -> None:
        """Take back messages of ``queue`` that were passed on, and not looked at."""

    @abstractmethod
    def report(self, error: Exception, queue: MessageQueue) -> None:
        """Pass ``error`` to the error callback of the application."""

    @abstractmethod
    def is_exhausted(self, message: MessageExt) -> bool:
        """Return whether an ordered queue must not deliver ``message`` again."""


@define(slots=True, frozen=True)
class Subscription:
    """A filter expression as it is sent in pulls."""

    expression: str
    expression_type: str
    version: int


@define(slots=True, eq=False, repr=False)
class _Run:
    """Listener calls of one worker, one after another, in one turn of the loop."""

    messages: list[MessageExt] = field(factory=list)
    """Those of the current call."""
    calls: int = 0
    """The number of calls before it, which all succeeded; ``count`` is that of their messages."""
    count: int = 0
    waits: bool = False
    """True once a call waits, which is then the last one."""


@define(slots=True, eq=False, repr=False)
class QueueConsumer:
    """The consumer of one queue, which pulls its messages and passes them to the listener.

    It runs from ``start`` to ``drop``; messages that are still held then belong to another member.
    """

    queue: MessageQueue
    process_queue: ProcessQueue
    subscription: Subscription
    listener: Listener
    settings: ConsumeSettings
    deps: ConsumerContext
    work: WorkQueue[QueueConsumer] | None
    """The queue from which the workers take their work; None in ordered consumption."""

    stored_offset: int | None = None
    """The offset that was committed last."""
    suspended: bool = False
    """True if the application has paused the queue."""

    _running: int = 0
    _offered: bool = False
    """True while the workers know that messages are waiting."""
    _paused: bool = False
    """True while pulling waits for ``_has_room``."""
    _idle: asyncio.Event = field(factory=asyncio.Event)
    _has_room: asyncio.Event = field(factory=asyncio.Event)
    _has_messages: asyncio.Event = field(factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(factory=list)
    _deadlines: CallDeadlines = field(init=False)
    _clock: Clock = field(init=False)
    _rates: ConsumerStats = field(init=False)
    _has_total_limit: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._deadlines = CallDeadlines(self.settings.timeout_ms)
        self._clock = self.deps.clock
        self._rates = self.deps.rates
        self._has_total_limit = self.deps.has_total_limit

    def start(self) -> None:
        """Start pulling and, in ordered consumption, consuming."""
        loops = [self._pull_forever()]
        if self.ordered:
            loops.append(self._consume_in_order())
        self._tasks = [asyncio.create_task(loop, name=f"rmqpy-{self.queue}") for loop in loops]

    @property
    def ordered(self) -> bool:
        """True if the queue is consumed in order."""
        return self.work is None

    async def drop(self) -> None:
        """Stop pulling and start no further listener call.

        Running calls may take up to ``end_ms`` to finish; ``process_queue`` then has the offset to
        commit.
        """
        self.process_queue.dropped = True
        self.deps.dropping(self.queue)
        try:
            async with asyncio.timeout(self.settings.end_ms / 1000):
                while self._running:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            logger.warning(
                "%s was dropped while a listener is running; its messages will be delivered again",
                self.queue,
            )
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("the consumption of %s failed", self.queue, exc_info=outcome)
        self._tasks = []
        self._deadlines.close()

    def suspend(self) -> None:
        """Pull and deliver nothing until :meth:`continue_`; running listener calls go on."""
        self.suspended = True

    def continue_(self) -> None:
        """Pull and deliver again after :meth:`suspend`."""
        if self.suspended:
            self.suspended = False
            self.wake()
            self._notify_workers()

    def wake(self) -> None:
        """Let the queue look again for room to pull."""
        self._has_room.set()

    def is_current_task(self) -> bool:
        """Return whether this is called in an ordered listener call of the queue."""
        return asyncio.current_task() in self._tasks

    def locked(self, now_ms: int) -> None:
        """Record that the broker has granted the lock."""
        self.process_queue.locked_ms = now_ms
        self._has_room.set()
        self._has_messages.set()

    def consume(self) -> Awaitable[None] | None:
        """Consume the waiting messages up to the first listener call that waits or fails; called by
        a worker. Return the rest of that call, if there is one.
        """
        self._offered = False
        run = _Run()
        rest: Awaitable[None] | None = None
        start_ms = self.process_queue.last_consume_ms = self._clock.monotonic_ms()
        self._running += 1
        try:
            outcome = self._started(run)
            if outcome is not ConsumeResult.SUCCESS:
                rest = self._finish(run.messages, outcome)
        except WithdrawnError:
            pass
        finally:
            if run.calls:
                spent_ms = self._clock.monotonic_ms() - start_ms
                self._rates.consumed(self.queue.topic, run.calls, run.count, 0, spent_ms)
            if rest is None:
                self._call_ended()
            else:
                self._notify_workers()  # Another worker goes on with the next messages.
        return rest

    def _started(self, run: _Run) -> ConsumeResult | Awaitable[object]:
        """Run listener calls up to the first one that waits, and return its rest, or that fails."""
        steps = self._call_in_turn(run).__await__()
        try:
            awaited = next(steps)
        except StopIteration as end:
            result: ConsumeResult = end.value
            return result
        except WithdrawnError:
            raise
        except Exception as error:  # noqa: BLE001 - any counts as RECONSUME_LATER
            return self._failed(run.messages, error)
        run.waits = True
        return resumed(steps, awaited)

    async def _call_in_turn(self, run: _Run) -> ConsumeResult:
        """Call the listener until nothing is waiting, or a call has waited or not succeeded.

        An ``await`` is the cheapest way to run a coroutine: an exception ends one that is resumed
        by ``send``.
        """
        process_queue, batch_max = self.process_queue, self.settings.batch_max
        while not self.suspended and (messages := process_queue.take(batch_max)):
            run.messages = messages
            result = await self.listener(messages)
            if result is not None and result is not ConsumeResult.SUCCESS:
                return self._checked(messages, result)
            if run.waits:
                break
            process_queue.done(messages)
            run.calls += 1
            run.count += len(messages)
        return ConsumeResult.SUCCESS

    async def _finish(
        self, messages: list[MessageExt], outcome: ConsumeResult | Awaitable[object]
    ) -> None:
        try:
            if await self._result(messages, outcome) is ConsumeResult.RECONSUME_LATER:
                messages = await self._send_all_back(messages)
            self.process_queue.done(messages)
        except WithdrawnError:
            pass
        finally:
            self._call_ended()

    def _call_ended(self) -> None:
        self._running -= 1
        if self._paused:
            self._has_room.set()
        if self._has_total_limit:
            self.deps.room_changed()
        if self.process_queue.dropped:
            self._idle.set()

    async def _send_all_back(self, messages: Sequence[MessageExt]) -> list[MessageExt]:
        """Return the messages that the broker took back; the others are consumed here again
        later.
        """
        outcomes = await asyncio.gather(*(self.deps.send_back(each) for each in messages))
        unsent = [each for each, sent in zip(messages, outcomes, strict=True) if not sent]
        if unsent:
            await asyncio.sleep(self.settings.fault_pause_ms / 1000)
            self.process_queue.requeue(unsent)
            self._notify_workers()
        return [each for each, sent in zip(messages, outcomes, strict=True) if sent]

    def _call(self, messages: Sequence[MessageExt]) -> ConsumeResult | Awaitable[object]:
        """Call the listener. Return its result, or the rest of the call if it waits."""
        try:
            steps = self.listener(messages).__await__()
            return resumed(steps, next(steps))
        except StopIteration as end:
            return self._checked(messages, end.value)
        except WithdrawnError:
            raise
        except Exception as error:  # noqa: BLE001 - any counts as RECONSUME_LATER
            return self._failed(messages, error)

    async def _result(
        self, messages: Sequence[MessageExt], outcome: ConsumeResult | Awaitable[object]
    ) -> ConsumeResult:
        """Return the result of a listener call, at its end, and count it."""
        start_ms = self._clock.monotonic_ms()
        if isinstance(outcome, ConsumeResult):
            result = outcome
        else:
            try:
                result = self._checked(messages, await self._deadlines.run(outcome))
            except WithdrawnError:
                raise
            except Exception as error:  # noqa: BLE001 - any counts as RECONSUME_LATER
                result = self._failed(messages, error)
        count = len(messages)
        failed = count if result is ConsumeResult.RECONSUME_LATER else 0
        spent_ms = self._clock.monotonic_ms() - start_ms
        self._rates.consumed(self.queue.topic, 1, count, failed, spent_ms)
        return result

    def _checked(self, messages: Sequence[MessageExt], result: object) -> ConsumeResult:
        if result is None:
            return ConsumeResult.SUCCESS
        if isinstance(result, ConsumeResult):
            return result
        return self._failed(
            messages, TypeError(f"found {result!r}, expected a ConsumeResult or None")
        )

    def _failed(self, messages: Sequence[MessageExt], error: Exception) -> ConsumeResult:
        self.deps.report(error, self.queue)
        logger.error(
            "the listener failed on %s at offset %d; its messages will be delivered again",
            self.queue,
            messages[0].queue_offset,
            exc_info=error,
        )
        return ConsumeResult.RECONSUME_LATER

    # -- pulling

    async def _pull_forever(self) -> None:
        while not self.process_queue.dropped:
            if self._must_pause():
                self._has_room.clear()
                self._paused = True
                await self._has_room.wait()
                self._paused = False
                continue
            if not await self._pull_once():
                await asyncio.sleep(self.settings.fault_pause_ms / 1000)

    def _must_pause(self) -> bool:
        if self.suspended or self.process_queue.is_full(self.settings.limits, self.ordered):
            return True
        if self._has_total_limit and not self.deps.has_total_room(self):
            return True
        return self.ordered and not self._lock_is_valid

    @property
    def _lock_is_valid(self) -> bool:
        locked_ms = self.process_queue.locked_ms
        return locked_ms is not None and (self._clock.monotonic_ms() - locked_ms < LOCK_VALID_MS)

    async def _pull_once(self) -> bool:
        process_queue, clock = self.process_queue, self._clock
        start_ms = clock.monotonic_ms()
        process_queue.last_pull_ms = clock.now_ms()
        order = PullOrder(
            offset=process_queue.next_offset,
            max_count=self.settings.pull_max,
            expression=self.subscription.expression,
            expression_type=self.subscription.expression_type,
            suspend_ms=self.settings.suspend_ms,
        )
        try:
            result = await self.deps.pull(self.queue, order)
        except RmqError as fault:
            self.deps.report(fault, self.queue)
            self.deps.log.warn(
                logger,
                ("pulling", self.queue.topic, self.queue.broker_name),
                "pulling %s at offset %d failed; retrying: %s",
                self.queue,
                process_queue.next_offset,
                fault,
            )
            return False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            logger.warning(
                "%s: offset %d is outside %d..%d, continuing at %d",
                self.queue,
                process_queue.next_offset,
                result.min_offset,
                result.max_offset,
                result.next_begin_offset,
            )
            process_queue.reset_to(result.next_begin_offset)
            return True
        added = process_queue.put(result.messages)
        process_queue.next_offset = result.next_begin_offset
        self._rates.pulled(self.queue.topic, added, clock.monotonic_ms() - start_ms)
        self._notify_workers()
        return True

    def _notify_workers(self) -> None:
        """Offer the waiting messages to the workers, unless they are offered already."""
        if self.work is None:
            self._has_messages.set()
        elif not self._offered and self.process_queue.waiting:
            self._offered = True
            self.work.put(self)

    # -- in order

    async def _consume_in_order(self) -> None:
        while not self.process_queue.dropped:
            messages = (
                self.process_queue.take(self.settings.batch_max)
                if self._lock_is_valid and not self.suspended
                else []
            )
            if not messages:
                self._has_messages.clear()
                await self._has_messages.wait()
                continue
            self._running += 1
            self.process_queue.last_consume_ms = self._clock.monotonic_ms()
            try:
                result = await self._result(messages, self._call(messages))
                if result is ConsumeResult.SUCCESS:
                    self.process_queue.done(messages)
            except WithdrawnError:
                return
            finally:
                self._call_ended()
            if result is ConsumeResult.RECONSUME_LATER:
                await self._retry_or_give_up(messages)

    async def _retry_or_give_up(self, messages: list[MessageExt]) -> None:
        exhausted = [each for each in messages if self.deps.is_exhausted(each)]
        sent = [each for each in exhausted if await self.deps.send_back(each)]
        self.process_queue.done(sent)
        self.process_queue.requeue([each for each in messages if each not in sent])
        await asyncio.sleep(self.settings.pause_ms / 1000)
