"""A client for programs without an event loop: each call waits for its result.

A thread runs an event loop, and calls from other threads are passed to it. The calls are served by
the asynchronous producer and consumer, so settings, results, and errors are the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rmqpy.client.consuming.callbacks import ErrorCallback, QueuesCallback
from rmqpy.client.consuming.consume_service import AnyListener
from rmqpy.client.consuming.push_settings import PushSettings
from rmqpy.client.core.base_consumer import SUBSCRIBE_ALL, PullResult, PullSettings
from rmqpy.client.core.group_member import GroupMember
from rmqpy.client.core.instance import NameServers
from rmqpy.client.core.message import Message, MessageExt, SendResult
from rmqpy.client.errors import ClientStateError
from rmqpy.client.producer import Producer, ProducerSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.client.push_consumer import PushConsumer
from rmqpy.client.transactional_producer import (
    TransactionalProducer,
    TransactionSendResult,
    TransactionState,
)
from rmqpy.net.loop import new_event_loop
from rmqpy.remoting.bodies import EXPRESSION_TAG, MessageQueue

T = TypeVar("T")
M = TypeVar("M", bound=GroupMember)


class Blocking(Generic[M]):
    """A context manager around an asynchronous member; its methods wait for the member's
    coroutines.
    """

    def __init__(self, member: M) -> None:
        self._member = member
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the loop's thread and join the group."""
        if self._thread is not None:
            raise ClientStateError(f"the {type(self).__name__} is already started")
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rmqpy-client")
        self._thread.daemon = True  # A program that does not call close() must be able to exit.
        self._thread.start()
        try:
            self._wait(self._member.start())
        except BaseException:
            self._end_loop()
            raise

    def close(self) -> None:
        """Leave the group and stop the thread. May be called twice."""
        if self._thread is None:
            return
        try:
            self._wait(self._member.close())
        finally:
            self._end_loop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop, thread = self._loop, self._thread
        if loop is None or thread is threading.current_thread():
            work.close()
            self._member.check_open()
            raise ClientStateError("found a call in the client's own thread, expected another")
        result = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return result.result()
        except BaseException:
            result.cancel()  # after Ctrl-C; otherwise it has ended
            raise

    def _do(self, call: Callable[[], T]) -> T:
        """Run ``call`` in the loop's thread; before the start, in this one."""
        if self._loop is None:
            return call()

        async def work() -> T:
            return call()

        return self._wait(work())

    def _end_loop(self) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None


class BlockingProducer(Blocking[Producer]):
    """A :class:`Producer` whose methods block (Java: DefaultMQProducer). ::

    with BlockingProducer("order-service", "127.0.0.1:9876") as producer:
        producer.send(Message(topic="orders", body=b"order 7"))
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers,
        *,
        settings: ProducerSettings | None = None,
    ) -> None:
        super().__init__(Producer(group, name_servers, settings=settings))

    def send(
        self, message: Message, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message; see :meth:`Producer.send`."""
        return self._wait(self._member.send(message, queue, timeout_ms))

    def send_ordered(
        self, message: Message, sharding_key: str, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message to the queue that its key selects; see :meth:`Producer.send_ordered`."""
        return self._wait(self._member.send_ordered(message, sharding_key, timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send several messages, all or none; see :meth:`Producer.send_batch`."""
        return self._wait(self._member.send_batch(messages, queue, timeout_ms))

    def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send one message without an answer; see :meth:`Producer.send_oneway`."""
        self._wait(self._member.send_oneway(message, queue))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic``; see :meth:`Producer.queues`."""
        return self._wait(self._member.queues(topic))


class BlockingPullConsumer(Blocking[PullConsumer]):
    """A :class:`PullConsumer` whose methods block (Java: DefaultMQPullConsumer). ::

    with BlockingPullConsumer("audit", "127.0.0.1:9876") as consumer:
        for queue in consumer.queues("orders"):
            result = consumer.pull(queue, consumer.min_offset(queue))
    """

    def __init__(
        self, group: str, name_servers: NameServers, *, settings: PullSettings | None = None
    ) -> None:
        super().__init__(PullConsumer(group, name_servers, settings=settings))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``; see :meth:`PullConsumer.queues`."""
        return self._wait(self._member.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the smallest offset; see :meth:`PullConsumer.min_offset`."""
        return self._wait(self._member.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message; see :meth:`PullConsumer.max_offset`."""
        return self._wait(self._member.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset at a time; see :meth:`PullConsumer.search_offset`."""
        return self._wait(self._member.search_offset(queue, timestamp_ms))

    def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset; see :meth:`PullConsumer.committed_offset`."""
        return self._wait(self._member.committed_offset(queue))

    def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset; see :meth:`PullConsumer.commit_offset`."""
        self._wait(self._member.commit_offset(queue, offset))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        expression: str = SUBSCRIBE_ALL,
        suspend_ms: int = 0,
        expression_type: str = EXPRESSION_TAG,
    ) -> PullResult:
        """Read messages at an offset; see :meth:`PullConsumer.pull`."""
        return self._wait(
            self._member.pull(queue, offset, max_count, expression, suspend_ms, expression_type)
        )

    def earliest_time(self, queue: MessageQueue) -> int:
        """Return the time of the first message; see :meth:`PullConsumer.earliest_time`."""
        return self._wait(self._member.earliest_time(queue))

    def query_by_key(
        self, topic: str, key: str, max_count: int = 32, **options: Any
    ) -> list[MessageExt]:
        """Return messages by key; see :meth:`PullConsumer.query_by_key`."""
        return self._wait(self._member.query_by_key(topic, key, max_count, **options))

    def view_message(self, offset_msg_id: str, queue: MessageQueue | None = None) -> MessageExt:
        """Return the message with an offset id; see :meth:`PullConsumer.view_message`."""
        return self._wait(self._member.view_message(offset_msg_id, queue))


class BlockingTransactionalProducer(BlockingProducer):
    """A :class:`TransactionalProducer` whose methods block (Java: TransactionMQProducer).

    ``check`` and ``execute`` are functions, which run in threads.
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers,
        *,
        check: Callable[[MessageExt], TransactionState],
        settings: ProducerSettings | None = None,
    ) -> None:
        async def check_in_thread(message: MessageExt) -> TransactionState:
            return await asyncio.to_thread(check, message)

        self._transactional = TransactionalProducer(
            group, name_servers, check=check_in_thread, settings=settings
        )
        Blocking.__init__(self, self._transactional)

    def send_in_transaction(
        self, message: Message, execute: Callable[[Message, str], TransactionState]
    ) -> TransactionSendResult:
        """Send a half message and end it; see :meth:`TransactionalProducer.send_in_transaction`."""

        async def execute_in_thread(sent: Message, unique_id: str) -> TransactionState:
            return await asyncio.to_thread(execute, sent, unique_id)

        return self._wait(self._transactional.send_in_transaction(message, execute_in_thread))


class BlockingPushConsumer(Blocking[PushConsumer]):
    """A :class:`PushConsumer` whose methods block (Java: DefaultMQPushConsumer).

    ``listener`` is a function, which runs in threads; without it the consumer is iterated over::

        with BlockingPushConsumer("billing", "127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                print(message.body)

    The callbacks run in the client's thread, and must not block.
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers,
        *,
        listener: AnyListener | None = None,
        settings: PushSettings | None = None,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        on_error: ErrorCallback | None = None,
    ) -> None:
        super().__init__(
            PushConsumer(
                group,
                name_servers,
                listener=listener,
                settings=settings,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_error=on_error,
            )
        )

    def __iter__(self) -> Iterator[MessageExt]:
        while True:
            try:
                yield self._wait(self._next())
            except _IterationEnd:
                return

    def get(self, timeout_s: float | None = None) -> MessageExt | None:
        """Return the next message, or None after ``timeout_s`` or when the consumer is closed."""
        try:
            return self._wait(self._next(timeout_s))
        except (_IterationEnd, TimeoutError):
            return None

    def acknowledge(self) -> None:
        """Finish the current message; see :meth:`PushConsumer.acknowledge`."""
        self._do(self._member.acknowledge)

    def reconsume_later(self) -> None:
        """Receive the current message again later; see :meth:`PushConsumer.reconsume_later`."""
        self._do(self._member.reconsume_later)

    def subscribe(
        self, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Consume ``topic``; see :meth:`PushConsumer.subscribe`."""
        self._do(lambda: self._member.subscribe(topic, expression, expression_type))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``; see :meth:`PushConsumer.unsubscribe`."""
        self._do(lambda: self._member.unsubscribe(topic))

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues of this client; see :meth:`PushConsumer.assignment`."""
        return self._do(self._member.assignment)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at an offset; see :meth:`PushConsumer.seek`."""
        self._wait(self._member.seek(queue, offset))

    def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue a queue at its first message; see :meth:`PushConsumer.seek_to_beginning`."""
        self._wait(self._member.seek_to_beginning(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue at its end; see :meth:`PushConsumer.seek_to_end`."""
        self._wait(self._member.seek_to_end(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Deliver nothing from these queues; see :meth:`PushConsumer.pause`."""
        self._do(lambda: self._member.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Continue these queues; see :meth:`PushConsumer.resume`."""
        self._do(lambda: self._member.resume(*queues))

    def paused(self) -> frozenset[MessageQueue]:
        """Return the queues that are paused; see :meth:`PushConsumer.paused`."""
        return self._do(self._member.paused)

    def persist_offsets(self) -> None:
        """Commit the progress now; see :meth:`PushConsumer.persist_offsets`."""
        self._wait(self._member.persist_offsets())

    def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset; see :meth:`PushConsumer.committed_offset`."""
        return self._wait(self._member.committed_offset(queue))

    async def _next(self, timeout_s: float | None = None) -> MessageExt:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self._member)
        except StopAsyncIteration:
            raise _IterationEnd from None  # A future cannot hold a StopAsyncIteration.


class _IterationEnd(Exception):  # noqa: N818 - it is no error
    """The consumer is closed."""
