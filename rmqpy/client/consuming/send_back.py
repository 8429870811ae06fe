"""The return of a message to the broker, which delivers it again later or makes it a dead letter.

==================================  ===============================================================
CONSUMER_SEND_MSG_BACK (36)         to the broker that has the message, identified by its offset
refused, or no answer               a copy is sent to the group's retry topic, on any broker
both fail                           False: the caller keeps the message
==================================  ===============================================================

The copy is the one that Java's client sends: delay level 3 + times, reconsumeTimes incremented, the
first id as ORIGIN_MESSAGE_ID. Beyond the maximum the broker moves it to the group's dead letters.
"""

from __future__ import annotations

import logging

from attrs import define

from rmqpy.client.core.instance import ClientInstance
from rmqpy.client.core.message import MessageExt
from rmqpy.client.core.routes import publish_queues
from rmqpy.codec.properties import (
    PROPERTY_DELAY,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    encode_properties,
)
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.model.names import INNER_PRODUCER_GROUP, retry_topic
from rmqpy.remoting.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2

logger = logging.getLogger(__name__)

FIRST_RETRY_LEVEL = 3


@define(slots=True, frozen=True)
class SendBack:
    """The return of messages of one consumer group."""

    instance: ClientInstance
    group: str
    max_reconsume_times: int

    async def send(self, message: MessageExt) -> bool:
        """Send the message back, and return whether a broker has accepted it."""
        try:
            await self._send_to_broker(message)
        except RmqError as fault:
            logger.warning(
                "message %s was not sent back; sending a copy to the retry topic: %s",
                message.msg_id,
                fault,
            )
        else:
            return True
        try:
            await self._send_copy(message)
        except RmqError as fault:
            logger.warning(
                "message %s was not sent to the retry topic either; consuming it again: %s",
                message.msg_id,
                fault,
            )
            return False
        return True

    async def _send_to_broker(self, message: MessageExt) -> None:
        queue = message.queue
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.stored.physical_offset,
            group=self.group,
            delay_level=0,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self.max_reconsume_times,
            bname=queue.broker_name,
        )
        address = await self.instance.address(queue.topic, queue.broker_name)
        response = await self.instance.invoke(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        if response.code != ResponseCode.SUCCESS:
            raise RequestRejectedError(response.code, response.remark or "no remark")

    async def _send_copy(self, message: MessageExt) -> None:
        topic = retry_topic(self.group)
        queues = publish_queues(topic, await self.instance.route(topic))
        if not queues:
            raise NetworkError(f"no broker accepts messages of {topic}")
        queue = self.instance.randomness.choice(queues)
        address = self.instance.known_address(queue.broker_name)
        if address is None:
            raise NetworkError(f"the broker {queue.broker_name} has no master at the moment")
        stored, times = message.stored, message.stored.reconsume_times
        header = SendMessageRequestHeaderV2(
            producer_group=INNER_PRODUCER_GROUP,
            topic=topic,
            default_topic=topic,
            default_topic_queue_nums=len(queues),
            queue_id=queue.queue_id,
            sys_flag=stored.sys_flag,
            born_timestamp=self.instance.clock.now_ms(),
            flag=stored.flag,
            properties=self._properties(message).decode(),
            reconsume_times=times + 1,
            max_reconsume_times=self.max_reconsume_times,
            bname=queue.broker_name,
        )
        command = self.instance.request(RequestCode.SEND_MESSAGE_V2, header, stored.body)
        response = await self.instance.transport.invoke(address, command)
        if response.code != ResponseCode.SUCCESS:
            raise RequestRejectedError(response.code, response.remark or "no remark")

    def _properties(self, message: MessageExt) -> bytes:
        properties = dict(message.properties)
        properties.pop(PROPERTY_TRANSACTION_PREPARED, None)
        times = message.stored.reconsume_times
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_msg_id)
        properties[PROPERTY_RETRY_TOPIC] = message.topic
        properties[PROPERTY_RECONSUME_TIME] = str(times + 1)
        properties[PROPERTY_MAX_RECONSUME_TIMES] = str(self.max_reconsume_times)
        properties[PROPERTY_DELAY] = str(FIRST_RETRY_LEVEL + times)
        try:
            return encode_properties(properties)
        except ValueError as error:
            raise RequestRejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
