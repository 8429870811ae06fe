"""The contents of a consume queue, unit by unit: code 321."""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.state.clients import ClientTable
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import QueryConsumeQueueRequestHeader

COUNT_MAX: Final = 1_000
"""Units in one answer; Java has no bound."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class QueueContentsProcessor:
    """Answers with units of a consume queue."""

    queues: MessageReader
    clients: ClientTable

    def handlers(self) -> HandlerTable:
        return {RequestCode.QUERY_CONSUME_QUEUE: self.units}

    def units(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with units; for a consumer group also with its subscription, or that it is not
        online.
        """
        header = QueryConsumeQueueRequestHeader.decode(request.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        end = self.queues.max_queue_offset(topic, queue_id)
        if end <= 0:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!"
            )
        body = QueryConsumeQueueResponseBody(
            max_queue_index=end, min_queue_index=self.queues.min_queue_offset(topic, queue_id)
        )
        if header.consumer_group is not None:
            self._tell_subscription(body, header.consumer_group, topic)
        if not body.min_queue_index <= header.index < end:
            return RemotingCommand.response_to(
                request, remark=f"Index {header.index} of {queue_id}@{topic} is not exist!"
            )
        count = max(0, min(header.count, COUNT_MAX))
        body.queue_data = [
            ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=tags_code)
            for offset, size, tags_code in self.queues.queue_units(
                topic, queue_id, header.index, count
            )
        ]
        return RemotingCommand.response_to(request, body=body.encode())

    def _tell_subscription(
        self, body: QueryConsumeQueueResponseBody, group: str, topic: str
    ) -> None:
        online = self.clients.consumer_group(group)
        body.subscription_data = online.subscriptions.get(topic) if online is not None else None
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"
        else:
            body.filter_data = "null"
