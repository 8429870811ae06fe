"""PullConsumer: reads queues at offsets that the caller keeps."""

from __future__ import annotations

from collections.abc import Awaitable

from rmqpy.client.core.base_consumer import (
    SUBSCRIBE_ALL,
    Consumer,
    PullOrder,
    PullResult,
    PullSettings,
)
from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.read_ahead import ReadAhead
from rmqpy.client.core.routes import subscribe_queues
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestTimeoutError
from rmqpy.remoting.bodies import (
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    EXPRESSION_TAG,
    ConsumerData,
    MessageQueue,
    SubscriptionData,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

_GROUP_CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
_FINAL = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
"""The answers that do not depend on when a pull is sent: messages, or that none of them matched."""


class PullConsumer(Consumer):
    """A consumer that reads queues at offsets of the caller's choice (Java: DefaultMQPullConsumer).

    It takes no part in rebalancing: every member of the group may read every queue. Offsets are
    committed only by :meth:`commit_offset`. ::

        async with PullConsumer("audit", "127.0.0.1:9876") as consumer:
            for queue in await consumer.queues("orders"):
                offset = await consumer.min_offset(queue)
                result = await consumer.pull(queue, offset)
                for message in result.messages:
                    print(message.queue_offset, message.body)
                await consumer.commit_offset(queue, result.next_begin_offset)

    ``name_servers`` is ``host:port;host:port``, a sequence of addresses, or
    :class:`ClientSettings`. With ``instance`` the consumer shares that client instead of opening
    one.
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        settings: PullSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        super().__init__(group, name_servers, pulling=settings, instance=instance)
        self._topics: dict[str, int] = {}
        self._read_ahead = ReadAhead()

    async def _join(self, instance: ClientInstance) -> None:
        await super()._join(instance)
        instance.pushed.answer(self.group, {_GROUP_CHANGED: _ignore})

    async def _leave(self, instance: ClientInstance) -> None:
        self._read_ahead.clear()
        instance.pushed.forget(self.group, [_GROUP_CHANGED])
        await super()._leave(instance)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of ``topic``, sorted (Java: fetchSubscribeMessageQueues).

        Raises RequestRejectedError with TOPIC_NOT_EXIST if no name server has the topic.
        """
        self._subscribe(topic)
        return subscribe_queues(topic, await self._open().route(topic))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        expression: str = SUBSCRIBE_ALL,
        suspend_ms: int = 0,
        expression_type: str = EXPRESSION_TAG,
    ) -> PullResult:
        """Read up to ``max_count`` messages of ``queue``, starting at the queue offset ``offset``.

        ``expression`` selects by tags (``a || b``, or ``*`` for all) or, with ``expression_type``
        SQL92, by properties. If there is no message at ``offset`` the broker holds the request for
        up to ``suspend_ms`` milliseconds; 0 returns at once.

        The result's ``status`` determines the next pull (:class:`PullStatus`). Raises
        RequestRejectedError if the broker refuses the request, and NetworkError if it does not
        answer within ``suspend_ms`` plus :attr:`PullSettings.pull_timeout_ms`.

        If pulls continue each other within a second, the next messages are requested while the
        application handles the last ones; up to 16 such responses are kept
        (:attr:`PullSettings.read_ahead`).
        """
        instance = self._open()
        self._subscribe(queue.topic)
        order = PullOrder(
            offset=offset,
            max_count=max_count,
            expression=expression,
            expression_type=expression_type,
            suspend_ms=suspend_ms,
        )
        if not self._pulling.read_ahead:
            return await self._pull(queue, order)
        now_ms = instance.clock.monotonic_ms()
        sequence = self._read_ahead.sequence(queue, now_ms)
        if sequence is None:
            return await self._pull(queue, order)
        is_continued, ahead = sequence.is_continued_by(order, now_ms), sequence.take()
        response = None
        if is_continued and ahead is not None:
            response = await self._found(instance, queue, ahead)
        if response is None:
            response = await self._pull_response(queue, order)
        offsets = following, _, largest = self._numbers(queue, response)
        sequence.ended_ms = instance.clock.monotonic_ms()
        sequence.following = PullOrder(
            offset=following,
            max_count=max_count,
            expression=expression,
            expression_type=expression_type,
        )
        if is_continued and response.code in _FINAL and following < largest:
            sequence.response = self._pull_ahead(instance, queue, sequence.following)
        return self._pulled(queue, order, response, offsets)

    async def _found(
        self, instance: ClientInstance, queue: MessageQueue, ahead: Awaitable[RemotingCommand]
    ) -> RemotingCommand | None:
        """Return a response that was read ahead, or None if the pull must be sent."""
        try:
            response = await ahead
        except RequestTimeoutError:
            self._pull_failed(instance, queue)
            raise
        except NetworkError:
            return None  # The connection was closed, perhaps some time ago.
        return response if response.code in _FINAL else None

    def _subscribe(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics[topic] = self._open().clock.now_ms()

    def _consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_ACTIVELY,
            message_model=CLUSTERING,
            consume_from_where=CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=since_ms)
                for topic, since_ms in sorted(self._topics.items())
            ],
        )


async def _ignore(_channel: Channel, _request: RemotingCommand) -> None:
    """Ignore the request: the caller decides which member reads which queue."""
