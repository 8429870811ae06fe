"""PushConsumer: delivers messages to a listener, with a topic's queues shared in the group.

===========================  ======================================================================
every 20 s, and on request   rebalance: the members of the group and this client's share of the
                             queues are computed; queues that left the share are dropped and their
                             offsets are committed
every 5 s, and at the end    offsets of finished messages are committed to the brokers
                             (broadcasting: written to a file)
every 20 s, when ordered     the locks of this client's queues are renewed
===========================  ======================================================================

A group resumes at its committed offset or, if there is none, at the offset that ``from_where``
selects. A message that the listener does not accept is delivered again through the group's retry
topic, at most ``max_reconsume_times`` times, and then becomes a dead letter; with ``ordered`` its
queue waits for it, and with ``broadcasting`` it is dropped with a log line.

Invariants: a queue is consumed only while it is in this client's share (and, when ordered, locked);
an offset is committed only after every message before it is finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from attrs import define, evolve

from rmqpy.client.consuming.callbacks import ConsumerCallbacks, ErrorCallback, QueuesCallback
from rmqpy.client.consuming.consume_service import (
    AnyListener,
    ConsumerContext,
    ConsumeResult,
    ConsumeSettings,
    Listener,
    QueueConsumer,
    Subscription,
    as_listener,
)
from rmqpy.client.consuming.consumer_commands import ConsumerCommands
from rmqpy.client.consuming.consumer_stats import SAMPLE_MS, ConsumerStats
from rmqpy.client.consuming.iteration import MessageIterator
from rmqpy.client.consuming.local_offsets import LocalOffsets
from rmqpy.client.consuming.process_queue import ProcessQueue
from rmqpy.client.consuming.push_settings import PushSettings
from rmqpy.client.consuming.queue_locks import QueueLocks
from rmqpy.client.consuming.send_back import SendBack
from rmqpy.client.consuming.work_queue import WorkQueue
from rmqpy.client.core.base_consumer import (
    SUBSCRIBE_ALL,
    Consumer,
    PullOrder,
    PullResult,
    exact_tags,
)
from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.message import MessageExt
from rmqpy.client.core.quiet_log import QuietLog
from rmqpy.client.core.routes import subscribe_queues
from rmqpy.client.errors import ClientStateError
from rmqpy.client.producer import trace_context
from rmqpy.client.trace import Tracer
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.properties import PROPERTY_RETRY_TOPIC
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, NetworkError, RequestRejectedError, RmqError
from rmqpy.model.names import check_topic, is_retry_topic, retry_topic
from rmqpy.remoting.bodies import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    EXPRESSION_TAG,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    MessageQueue,
    SubscriptionData,
)
from rmqpy.remoting.headers import GetConsumerListByGroupRequestHeader

logger = logging.getLogger(__name__)

DEFAULT_MAX_RECONSUME_TIMES = 16
EARLY_RETRY_MS = 1_000
"""The delay before a topic without a route is looked up again. A group's retry topic is created by
the group's first heartbeat.
"""

EARLY_RETRIES_MAX = 10
"""The number of such early lookups; after them the next regular rebalance looks up the route."""


class PushConsumer(Consumer):
    """A consumer whose listener receives messages as they arrive (Java: DefaultMQPushConsumer).

    The queues of each topic are shared between the members of the group. ``listener`` is a
    coroutine function that takes the messages of one batch, all of one queue; it returns None or
    ``ConsumeResult.SUCCESS`` when they are consumed, and ``ConsumeResult.RECONSUME_LATER`` (or
    raises) to receive them again later. Another function runs in a thread. ::

        async def consume(messages):
            for message in messages:
                print(message.topic, message.body)

        async with PushConsumer("billing", "127.0.0.1:9876", listener=consume) as consumer:
            consumer.subscribe("orders", "paid || refunded")
            await asyncio.sleep(3600)

    Without ``listener`` the consumer is iterated over; a message is finished when the next one is
    requested (:mod:`rmqpy.client.consuming.iteration`)::

        async for message in consumer:
            print(message.body)

    ``on_assigned`` and ``on_revoked`` are called with the queues that this client has taken over,
    before or soon after their first messages, and with those that it has given up, whose offsets
    are committed. ``on_error`` is called with each error of the background work and the listener;
    the consumer goes on by itself.

    ``name_servers`` is ``host:port;host:port``, a sequence of addresses, or
    :class:`ClientSettings`. With ``instance`` the consumer shares that client instead of opening
    one.
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        listener: AnyListener | None = None,
        settings: PushSettings | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_error: ErrorCallback | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        self.settings = settings or PushSettings()
        self._iterator: MessageIterator | None = None
        if listener is None:
            self._iterator = MessageIterator()
            listener = self._iterator.listen
            # One message at a time: the limit for a listener call is that for one loop body.
            self.settings = evolve(self.settings, parallel=1)
        super().__init__(group, name_servers, pulling=self.settings.pulling, instance=instance)
        self._threads = ThreadPoolExecutor(
            self.settings.parallel, thread_name_prefix=f"rmqpy-listener-{group}"
        )
        self.listener = as_listener(listener, self._threads)
        self.callbacks = ConsumerCallbacks(group, on_assigned, on_revoked, on_error)
        self._tracer: Tracer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.consuming: dict[MessageQueue, QueueConsumer] = {}
        self.rates = ConsumerStats()
        self.start_ms = 0
        self._next_version = 0
        self._rebalance_due = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._work: WorkQueue[QueueConsumer] = WorkQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._early_retries = EARLY_RETRIES_MAX
        self._local: dict[MessageQueue, int] = {}
        self._queue_locks = QueueLocks(self.group, self._open)

    def subscribe(
        self,
        topic: str,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = EXPRESSION_TAG,
    ) -> None:
        """Consume ``topic`` from now on; may be called before or after ``start``.

        ``expression`` selects all messages (``*``), some tags (``a || b``), or, with
        ``expression_type`` SQL92, messages by their properties. A second call for the same topic
        replaces its expression. Raises RequestRejectedError if the topic name is illegal or the
        expression names no tag.
        """
        check_topic(topic)
        if expression_type == EXPRESSION_TAG:
            exact_tags(expression)  # This raises if the expression names no tag.
        self._next_version += 1
        self.subscriptions[topic] = Subscription(expression, expression_type, self._next_version)
        for consuming in self.consuming.values():
            if consuming.queue.topic == topic:
                consuming.subscription = self.subscriptions[topic]
        self._changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``; its queues are dropped by the next rebalance."""
        self.subscriptions.pop(topic, None)
        self._changed()

    # -- one by one

    def __aiter__(self) -> Self:
        if self._iterator is None:
            raise ClientStateError("found a consumer with a listener; async for needs one without")
        self._open()
        return self

    async def __anext__(self) -> MessageExt:
        if self._iterator is None:
            raise ClientStateError("found a consumer with a listener; async for needs one without")
        message = await self._iterator.next()
        if message is None:
            raise StopAsyncIteration
        return message

    def acknowledge(self) -> None:
        """Finish the current message of ``async for``; otherwise the next request does it."""
        if self._iterator is not None:
            self._iterator.finish(ConsumeResult.SUCCESS)

    def reconsume_later(self) -> None:
        """Request that the current message of ``async for`` is delivered again later."""
        if self._iterator is not None:
            self._iterator.finish(ConsumeResult.RECONSUME_LATER)

    # -- the share of this client

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this client consumes now."""
        return frozenset(self.consuming)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue ``queue`` at ``offset``, and commit it. Messages that were pulled and not
        consumed are dropped; running listener calls may finish first.

        Raises ClientStateError if the queue is not in the assignment, or in a listener call, for
        which it would wait.
        """
        if offset < 0:
            raise ConfigError(f"offset: found {offset}, expected 0 or more")
        task = asyncio.current_task()
        if task in self._workers or any(each.is_current_task() for each in self.consuming.values()):
            raise ClientStateError("seek in a listener call would wait for itself; use a task")
        self._open()
        if self._iterator is not None:
            self._iterator.finish(ConsumeResult.SUCCESS)
        async with self._rebalancing:
            consuming = self._assigned(queue)
            await consuming.drop()
            del self.consuming[queue]
            try:
                await self._store(queue, offset)
            finally:
                self._start_queue(queue, offset, suspended=consuming.suspended)

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue ``queue`` at its first message."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue ``queue`` at the next message that it receives."""
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Pull and deliver nothing from these queues until :meth:`resume`. A queue that goes to
        another member and comes back is not paused.
        """
        for consuming in [self._assigned(queue) for queue in queues]:
            consuming.suspend()

    def resume(self, *queues: MessageQueue) -> None:
        """Continue these queues after :meth:`pause`."""
        for consuming in [self._assigned(queue) for queue in queues]:
            consuming.continue_()

    def paused(self) -> frozenset[MessageQueue]:
        """Return the queues that are paused."""
        return frozenset(queue for queue, each in self.consuming.items() if each.suspended)

    def _assigned(self, queue: MessageQueue) -> QueueConsumer:
        consuming = self.consuming.get(queue)
        if consuming is None:
            raise ClientStateError(f"{queue}: found a queue that is not in the assignment")
        return consuming

    async def rebalance(self) -> None:
        """Take over the queues that are in this client's share now, and drop the others."""
        await self._rebalance()
        await self.callbacks.assignment_changed(self.assignment())

    async def _rebalance(self) -> None:
        async with self._rebalancing:
            for topic in sorted(self._topics()):
                try:
                    allocated = await self._allocated_queues(topic)
                except RmqError as fault:
                    self._report_rebalance(topic, fault)
                    self._retry_rebalance_soon()
                    continue
                if allocated is not None:
                    await self._update_queues(topic, allocated)
            unsubscribed = [queue for queue in self.consuming if queue.topic not in self._topics()]
            await self._drop_queues(unsubscribed)

    def _report_rebalance(self, topic: str, fault: RmqError) -> None:
        """Log a failed rebalance, unless it belongs to a start: the first heartbeat of a group
        creates its retry topic, and the first message a topic.
        """
        unknown = isinstance(fault, RequestRejectedError) and fault.response_code in (
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SYSTEM_ERROR,
        )
        if unknown and self._early_retries > 0:
            logger.debug("group %s has no queues of %s yet: %s", self.group, topic, fault)
            return
        self.callbacks.failed(fault)
        text = "rebalance failed; group %s keeps its queues of %s: %s"
        self._open().log.warn(logger, ("rebalance", self.group), text, self.group, topic, fault)

    @property
    def has_total_limit(self) -> bool:
        """True if there is a limit for what all queues hold."""
        return (self.settings.held_messages_max, self.settings.held_bytes_max) != (None, None)

    def has_total_room(self, asking: QueueConsumer) -> bool:
        """Return whether ``asking`` may pull, with what all queues hold."""
        most, bytes_max = self.settings.held_messages_max, self.settings.held_bytes_max
        if not asking.process_queue.count:
            return True
        held = [each.process_queue for each in self.consuming.values()]
        if most is not None and sum(each.count for each in held) >= most:
            return False
        return bytes_max is None or sum(each.byte_count for each in held) < bytes_max

    def room_changed(self) -> None:
        """Let queues pull that have waited for room."""
        for consuming in self.consuming.values():
            consuming.wake()

    async def persist_offsets(self) -> None:
        """Commit the listener's progress to the brokers (broadcasting: write it to the file)."""
        await self._persist(list(self.consuming))

    async def move(self, offsets: dict[MessageQueue, int]) -> None:
        """Continue at other offsets, which an administrator has reset.

        The queues are dropped, their offsets are set, and the next rebalance takes them again.
        """
        async with self._rebalancing:
            for queue in [queue for queue in offsets if queue in self.consuming]:
                await self.consuming.pop(queue).drop()
                await self._store(queue, offsets[queue])
        self._rebalance_due.set()

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offset at which the group would resume, for this client's queues of
        ``topic``.
        """
        return {
            queue: consuming.process_queue.commit_offset
            for queue, consuming in sorted(self.consuming.items())
            if queue.topic == topic
        }

    @property
    def clock(self) -> Clock:
        """The clock of the client instance."""
        return self._open().clock

    @property
    def ordered(self) -> bool:
        """True if queues are consumed in order."""
        return self.settings.ordered

    def wake_rebalance(self) -> None:
        """Rebalance now, because the members of the group or its subscriptions have changed."""
        self._early_retries = EARLY_RETRIES_MAX
        self._rebalance_due.set()

    # -- lifecycle

    async def _join(self, instance: ClientInstance) -> None:
        self.start_ms = instance.clock.now_ms()
        if self.settings.broadcasting:
            self._local = await asyncio.to_thread(self._file(instance).load)
        instance.join_consumer(self.group, self._consumer_data)
        instance.pushed.answer(self.group, ConsumerCommands(self).answerers())
        if self.settings.trace_topic is not None:
            self._tracer = await trace_context(self.settings.trace_topic, instance, self.group)
        self._rebalance_due.set()
        loops: list[Coroutine[Any, Any, None]] = [
            self._rebalance_forever(),
            self._every(self.settings.persist_ms, self.persist_offsets),
            self._every(SAMPLE_MS, self._sample),
        ]
        if self._uses_locks:
            loops.append(self._every(self.settings.lock_ms, self._renew_locks))
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        if not self.settings.ordered:
            count = self.settings.parallel
            self._workers = [asyncio.create_task(self._work_forever()) for _ in range(count)]

    async def _leave(self, instance: ClientInstance) -> None:
        instance.pushed.forget(self.group, list(ConsumerCommands(self).answerers()))
        await self._end(self._tasks)
        if self._iterator is not None:
            self._iterator.close()
        await self._drop_queues(list(self.consuming))
        await self.callbacks.assignment_changed(self.assignment())
        await self._end(self._workers)
        # A call that has not ended until now goes on; its messages are delivered again.
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._tracer is not None:
            await self._tracer.close()
        await instance.leave_consumer(self.group)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error(
                    "a background task of consumer group %s failed", self.group, exc_info=outcome
                )
        tasks.clear()

    async def _every(self, period_ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(period_ms / 1000)
            try:
                await work()
            except (RmqError, OSError) as fault:
                self._open().log.warn(
                    logger,
                    ("periodic", self.group),
                    "a periodic task of consumer group %s failed; it will run again: %s",
                    self.group,
                    fault,
                )

    async def _rebalance_forever(self) -> None:
        instance = self._open()
        while True:
            try:
                async with asyncio.timeout(self.settings.rebalance_ms / 1000):
                    await self._rebalance_due.wait()
            except TimeoutError:
                pass
            self._rebalance_due.clear()
            for topic in self._topics():  # Heartbeats are sent to the brokers of known routes.
                try:
                    await instance.route(topic)
                except RmqError as fault:
                    logger.info("topic %s has no route yet: %s", topic, fault)
            await instance.send_heartbeats()
            await self.rebalance()

    async def _work_forever(self) -> None:
        while True:
            consuming = self._work.take() or await self._work.get()
            rest = consuming.consume()
            if rest is not None:
                await rest

    async def _sample(self) -> None:
        self.rates.sample(self._open().clock.monotonic_ms())

    def _changed(self) -> None:
        if self._instance is not None:
            self.wake_rebalance()

    def _retry_rebalance_soon(self) -> None:
        if self._early_retries > 0:
            self._early_retries -= 1
            loop = asyncio.get_running_loop()
            loop.call_later(EARLY_RETRY_MS / 1000, self._rebalance_due.set)

    # -- the share of the queues

    @property
    def _uses_locks(self) -> bool:
        return self.settings.ordered and not self.settings.broadcasting

    def _topics(self) -> dict[str, Subscription]:
        """Return the subscriptions by topic, including the group's retry topic."""
        topics = dict(self.subscriptions)
        if topics and not self.settings.broadcasting:
            topics.setdefault(
                retry_topic(self.group), Subscription(SUBSCRIBE_ALL, EXPRESSION_TAG, 0)
            )
        return topics

    async def _allocated_queues(self, topic: str) -> list[MessageQueue] | None:
        """Return this client's queues of ``topic``, or None if its share is not known yet."""
        instance = self._open()
        queues = subscribe_queues(topic, await instance.route(topic))
        if self.settings.broadcasting:
            return queues
        client_ids = await self._client_ids(topic, queues)
        if instance.client_id not in client_ids:
            # The broker does not list this client (yet). That is not the same as an empty share.
            self._retry_rebalance_soon()
            return None
        return self.settings.strategy(instance.client_id, queues, client_ids)

    async def _client_ids(self, topic: str, queues: Collection[MessageQueue]) -> list[str]:
        """Return the client ids of the group's members, as one broker of the topic lists them."""
        instance = self._open()
        names = sorted({queue.broker_name for queue in queues})
        instance.randomness.shuffle(names)
        fault: RmqError = NetworkError(f"{topic} has no readable queue")
        header = GetConsumerListByGroupRequestHeader(consumer_group=self.group)
        for name in names:
            try:
                address = await instance.address(topic, name)
                response = await instance.invoke(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header
                )
            except NetworkError as error:
                instance.invalidate_route(topic)
                fault = error
                continue
            if response.code == ResponseCode.SUCCESS:
                body = GetConsumerListByGroupResponseBody.decode(response.body)
                return body.consumer_id_list
            fault = RequestRejectedError(response.code, response.remark or "no remark")
        raise fault

    async def _update_queues(self, topic: str, allocated: Collection[MessageQueue]) -> None:
        current = {queue for queue in self.consuming if queue.topic == topic}
        await self._drop_queues(sorted(current - set(allocated)))
        added = sorted(set(allocated) - current)
        if self._uses_locks:
            added = sorted(await self._queue_locks.lock(added))
            if len(added) < len(set(allocated) - current):
                self._retry_rebalance_soon()  # Another member still holds some locks.
        for queue in added:
            try:
                offset = await self._first_offset(queue)
            except RmqError as fault:
                self._open().log.warn(
                    logger,
                    ("start", self.group, topic),
                    "group %s cannot start consuming %s; retrying: %s",
                    self.group,
                    queue,
                    fault,
                )
                self._retry_rebalance_soon()
                continue
            self._start_queue(queue, offset)

    def _start_queue(self, queue: MessageQueue, offset: int, *, suspended: bool = False) -> None:
        process_queue = ProcessQueue(offset)
        listener = self.listener
        if self._tracer is not None:
            listener = self._tracer.traced_listener(self.group, listener)
        consuming = QueueConsumer(
            queue=queue,
            process_queue=process_queue,
            subscription=self._topics()[queue.topic],
            listener=listener,
            settings=self.settings.consuming,
            deps=_ConsumerAdapter(self),
            work=None if self.settings.ordered else self._work,
            suspended=suspended,
        )
        if self.settings.ordered:
            consuming.locked(self._open().clock.monotonic_ms())
        self.consuming[queue] = consuming
        consuming.start()

    async def _drop_queues(self, queues: Collection[MessageQueue]) -> None:
        """Drop ``queues``, commit their offsets, then release their locks."""
        if not queues:
            return
        await asyncio.gather(*(self.consuming[queue].drop() for queue in queues))
        await self._persist(queues)
        for queue in queues:
            del self.consuming[queue]
        if self._uses_locks:
            await self._queue_locks.unlock(queues)

    # -- offsets

    async def _first_offset(self, queue: MessageQueue) -> int:
        if self.settings.broadcasting:
            committed = self._local.get(queue)
        else:
            committed = await self.committed_offset(queue)
        if committed is not None and committed >= 0:
            return committed
        where = self.settings.from_where
        if where == CONSUME_FROM_FIRST_OFFSET:
            return 0
        if where == CONSUME_FROM_LAST_OFFSET:
            return 0 if is_retry_topic(queue.topic) else await self.max_offset(queue)
        if is_retry_topic(queue.topic):
            return await self.max_offset(queue)
        return await self.search_offset(queue, self.settings.from_timestamp_ms)

    async def _persist(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            consuming = self.consuming.get(queue)
            if (
                consuming is None
                or consuming.stored_offset == consuming.process_queue.commit_offset
            ):
                continue
            offset = consuming.process_queue.commit_offset
            try:
                await self._store(queue, offset)
            except RmqError as fault:
                self.callbacks.failed(fault, queue)
                self._open().log.warn(
                    logger,
                    ("commit", self.group),
                    "offset %d of %s was not committed; retrying: %s",
                    offset,
                    queue,
                    fault,
                )
            else:
                consuming.stored_offset = offset
        if self.settings.broadcasting and self._local:
            await asyncio.to_thread(self._file(self._open()).save, dict(self._local))

    async def _store(self, queue: MessageQueue, offset: int) -> None:
        if self.settings.broadcasting:
            self._local[queue] = offset
        else:
            await self.commit_offset(queue, offset)

    def _file(self, instance: ClientInstance) -> LocalOffsets:
        return LocalOffsets(self.settings.offset_directory, instance.client_id, self.group)

    # -- locks

    async def _renew_locks(self) -> None:
        granted = await self._queue_locks.lock(list(self.consuming))
        now_ms = self._open().clock.monotonic_ms()
        for queue in granted:
            consuming = self.consuming.get(queue)
            if consuming is not None:
                consuming.locked(now_ms)

    # -- heartbeats

    def _consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=BROADCASTING if self.settings.broadcasting else CLUSTERING,
            consume_from_where=self.settings.from_where,
            subscription_data_set=self.subscription_data(),
        )

    def subscription_data(self) -> list[SubscriptionData]:
        """Return the subscriptions as heartbeats carry them."""
        data = []
        for topic, subscription in sorted(self._topics().items()):
            by_tag = subscription.expression_type == EXPRESSION_TAG
            tags = sorted(exact_tags(subscription.expression) or ()) if by_tag else []
            data.append(
                SubscriptionData(
                    topic=topic,
                    sub_string=subscription.expression,
                    tags_set=tags,
                    code_set=[java_string_hash(tag) for tag in tags],
                    sub_version=self.start_ms + subscription.version,
                    expression_type=subscription.expression_type,
                )
            )
        return data


@define(slots=True, eq=False, repr=False)
class _ConsumerAdapter(ConsumerContext):
    """The services of the consumer for its queues."""

    consumer: PushConsumer

    @property
    def clock(self) -> Clock:
        return self.consumer.clock

    @property
    def rates(self) -> ConsumerStats:
        return self.consumer.rates

    @property
    def log(self) -> QuietLog:
        return self.consumer._open().log

    async def pull(self, queue: MessageQueue, order: PullOrder) -> PullResult:
        result = await self.consumer._pull(queue, order)
        if not is_retry_topic(queue.topic):
            return result
        return evolve(result, messages=[_with_original_topic(each) for each in result.messages])

    @property
    def has_total_limit(self) -> bool:
        return self.consumer.has_total_limit

    def has_total_room(self, queue: QueueConsumer) -> bool:
        return self.consumer.has_total_room(queue)

    def room_changed(self) -> None:
        self.consumer.room_changed()

    def dropping(self, queue: MessageQueue) -> None:
        if self.consumer._iterator is not None:
            self.consumer._iterator.withdraw(queue)

    def report(self, error: Exception, queue: MessageQueue) -> None:
        self.consumer.callbacks.failed(error, queue)

    async def send_back(self, message: MessageExt) -> bool:
        if self.consumer.settings.broadcasting:
            logger.warning("dropped broadcast message %s: the listener failed", message.msg_id)
            return True
        times = self.consumer.settings.max_reconsume_times
        limit = DEFAULT_MAX_RECONSUME_TIMES if times is None else times
        return await SendBack(self.consumer._open(), self.consumer.group, limit).send(message)

    def is_exhausted(self, message: MessageExt) -> bool:
        times = self.consumer.settings.max_reconsume_times
        return times is not None and message.stored.reconsume_times >= times


def _with_original_topic(message: MessageExt) -> MessageExt:
    """Return the message with the topic that it was first sent to."""
    topic = message.properties.get(PROPERTY_RETRY_TOPIC)
    if topic is None:
        return message
    return evolve(message, stored=evolve(message.stored, topic=topic))


__all__ = ["ConsumeResult", "ConsumeSettings", "Listener", "PushConsumer", "PushSettings"]
