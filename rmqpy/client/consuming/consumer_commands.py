"""The answers of a push consumer to requests of brokers: rebalance, reset offsets, report the
status.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from attrs import define

from rmqpy.client.consuming.consume_service import ConsumeResult, Listener, QueueConsumer
from rmqpy.client.consuming.consumer_stats import ConsumerStats
from rmqpy.client.core.message import MessageExt
from rmqpy.client.core.server_requests import Answerer
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageQueue,
    ProcessQueueInfo,
    ResetOffsetBody,
    SubscriptionData,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import CURRENT_VERSION, RemotingCommand
from rmqpy.remoting.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerStatusRequestHeader,
)

logger = logging.getLogger(__name__)

_MIB = 1 << 20


class ConsumerView(Protocol):
    """The part of a push consumer that the requests concern."""

    listener: Listener
    consuming: dict[MessageQueue, QueueConsumer]
    rates: ConsumerStats
    start_ms: int

    @property
    def clock(self) -> Clock: ...

    @property
    def ordered(self) -> bool: ...

    def wake_rebalance(self) -> None: ...

    async def move(self, offsets: dict[MessageQueue, int]) -> None: ...

    def offsets(self, topic: str) -> dict[MessageQueue, int]: ...

    def subscription_data(self) -> list[SubscriptionData]: ...


@define(slots=True, frozen=True)
class ConsumerCommands:
    """The answerers of one consumer."""

    consumer: ConsumerView

    def answerers(self) -> Mapping[int, Answerer]:
        """Return the answerers by request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._rebalance,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    async def _rebalance(self, _channel: Channel, _request: RemotingCommand) -> None:
        self.consumer.wake_rebalance()

    async def _reset(self, _channel: Channel, request: RemotingCommand) -> None:
        await self.consumer.move(dict(ResetOffsetBody.decode(request.body).offset_table))

    async def _status(self, _channel: Channel, request: RemotingCommand) -> bytes:
        header = GetConsumerStatusRequestHeader.decode(request.ext_fields)
        table = dict(self.consumer.offsets(header.topic))
        return GetConsumerStatusBody(message_queue_table=table).encode()

    async def _running_info(self, _channel: Channel, _request: RemotingCommand) -> bytes:
        consumer = self.consumer
        now_ms = consumer.clock.monotonic_ms()
        subscriptions = consumer.subscription_data()
        return ConsumerRunningInfo(
            properties={
                "PROP_CONSUMEORDERLY": "true" if consumer.ordered else "false",
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CLIENT_VERSION": str(CURRENT_VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(consumer.start_ms),
            },
            subscription_set=subscriptions,
            mq_table={
                queue: _queue_info(consuming)
                for queue, consuming in sorted(consumer.consuming.items())
            },
            status_table={
                each.topic: consumer.rates.status(each.topic, now_ms) for each in subscriptions
            },
        ).encode()

    async def _consume_directly(self, _channel: Channel, request: RemotingCommand) -> bytes:
        header = ConsumeMessageDirectlyResultRequestHeader.decode(request.ext_fields)
        try:
            stored = decode_message(memoryview(request.body))
        except InvalidRecordError as fault:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"the body is not a message: {fault}"
            ) from None
        queue = MessageQueue(stored.topic, header.broker_name or "", stored.queue_id)
        outcome = ConsumeMessageDirectlyResult(order=self.consumer.ordered)
        clock = self.consumer.clock
        start_ms = clock.monotonic_ms()
        try:
            result = await self.consumer.listener([MessageExt(queue=queue, stored=stored)])
        except Exception as error:
            logger.exception("the listener failed on a message that an administrator sent to it")
            outcome.consume_result, outcome.remark = "CR_THROW_EXCEPTION", repr(error)
        else:
            later = result is ConsumeResult.RECONSUME_LATER
            outcome.consume_result = "CR_LATER" if later else "CR_SUCCESS"
        outcome.spent_time_mills = clock.monotonic_ms() - start_ms
        return outcome.encode()


def _queue_info(consuming: QueueConsumer) -> ProcessQueueInfo:
    process_queue, clock = consuming.process_queue, consuming.deps.clock
    first, last = process_queue.offsets
    consumed_ms = process_queue.last_consume_ms
    if consumed_ms:
        consumed_ms += clock.now_ms() - clock.monotonic_ms()
    return ProcessQueueInfo(
        commit_offset=process_queue.commit_offset,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=process_queue.count,
        cached_msg_size_in_mib=process_queue.byte_count // _MIB,
        locked=process_queue.locked_ms is not None,
        droped=process_queue.dropped,
        last_pull_timestamp=process_queue.last_pull_ms,
        last_consume_timestamp=consumed_ms,
    )
