"""A client for programs without an event loop: each call waits for its result.

A thread runs an event loop, and calls from other threads are passed to it. The calls are served by
the asynchronous producer and consumer, so settings, results, and errors are the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rmqpy.client.core.base_consumer import SUBSCRIBE_ALL, PullResult
from rmqpy.client.core.group_member import GroupMember
from rmqpy.client.core.instance import NameServers
from rmqpy.client.core.message import Message, MessageExt, SendResult
from rmqpy.client.producer import Producer, ProducerSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.model.errors import NetworkError
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
        assert self._thread is None, "started twice"
        self._loop = asyncio.new_event_loop()
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
        if self._loop is None:
            work.close()
            raise NetworkError(f"the {type(self).__name__} of {self._member.group} is not started")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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

    def __init__(self, group: str, name_servers: NameServers) -> None:
        super().__init__(PullConsumer(group, name_servers))

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

    def query_by_key(self, topic: str, key: str, max_count: int = 32) -> list[MessageExt]:
        """Return messages by key; see :meth:`PullConsumer.query_by_key`."""
        return self._wait(self._member.query_by_key(topic, key, max_count))

    def view_message(self, offset_msg_id: str) -> MessageExt:
        """Return the message with an offset id; see :meth:`PullConsumer.view_message`."""
        return self._wait(self._member.view_message(offset_msg_id))
