"""PullConsumer: read queues at offsets that the caller keeps."""

from __future__ import annotations

from rmqpy.client.core.base_consumer import (
    SUBSCRIBE_ALL,
    Consumer,
    PullOrder,
    PullResult,
    PullSettings,
)
from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.routes import subscribe_queues
from rmqpy.model.codes import RequestCode
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


class PullConsumer(Consumer):
    """``async with PullConsumer("group", "host:9876") as consumer: await consumer.pull(…)``."""

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

    async def _join(self, instance: ClientInstance) -> None:
        await super()._join(instance)
        instance.pushed.answer(self.group, {_GROUP_CHANGED: _not_concerned})

    async def _leave(self, instance: ClientInstance) -> None:
        instance.pushed.forget(self.group, [_GROUP_CHANGED])
        await super()._leave(instance)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of ``topic``, sorted."""
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
        """Messages from ``offset`` on; the broker may wait ``suspend_ms`` for a new one."""
        self._open()
        self._subscribe(queue.topic)
        return await self._pull(
            queue,
            PullOrder(
                offset=offset,
                max_count=max_count,
                expression=expression,
                expression_type=expression_type,
                suspend_ms=suspend_ms,
            ),
        )

    def _subscribe(self, topic: str) -> None:
        self._topics.setdefault(topic, self._open().clock.now_ms())

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


async def _not_concerned(_channel: Channel, _request: RemotingCommand) -> None:
    """Whose queue is whose is the caller's business."""
