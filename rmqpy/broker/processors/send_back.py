"""Messages that consumers send back because they could not consume them: code 36.

Checks in order; the first that fails determines the answer:

=== ============================================================ ====
1   group unknown and not to be created                            26
2   broker without W                                               16
3   group without retry queues: dropped, answered as successful     0
4   retry topic without W                                          16
5   no message at the physical offset                               1
=== ============================================================ ====

The message is written to the log again: to ``%RETRY%group``, with the delay level that the consumer
names or that follows from the number of retries; after too many retries, or when the consumer
requests it (level below 0), to ``%DLQ%group``. It keeps its original topic (RETRY_TOPIC) and its
original id (ORIGIN_MESSAGE_ID).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.message_copy import copy_of
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.state.delay_levels import redirect
from rmqpy.broker.state.statistics import Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import DLQ_QUEUES, TopicTable
from rmqpy.codec.message import InvalidRecordError, decode_intact, offset_msg_id
from rmqpy.codec.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
)
from rmqpy.model import names
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import PERM_WRITE
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import ConsumerSendMsgBackRequestHeader

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry if the consumer names none; it grows by one with each retry."""
TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION: Final = 2
OWN_MAXIMUM_SINCE_VERSION: Final = 121
"""V3_4_9: consumers from this version on send their own maximum number of retries."""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class SendBackProcessor:
    """The processor of messages that consumers send back."""

    identity: BrokerContext
    topics: TopicTable
    groups: SubscriptionGroupTable
    queues: MessageReader
    messages: InternalMessageWriter
    statistics: Statistics
    pick_queue: Callable[[int], int]

    def handlers(self) -> HandlerTable:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        group = self._group(header)
        if group.retry_queue_nums <= 0:
            return RemotingCommand.response_to(request)
        retry_queue = self._retry_queue(group, header.unit_mode)
        message = self._message(header.offset)
        times_max = group.retry_max_times
        if request.version >= OWN_MAXIMUM_SINCE_VERSION and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        dead = message.reconsume_times >= times_max or header.delay_level < 0
        draft = (
            self._dead_letter(header.group, message)
            if dead
            else self._retry(header, retry_queue, message)
        )
        refusal = self.messages.refusal
        if refusal is not None:
            raise RequestRejectedError(ResponseCode.SYSTEM_BUSY, refusal)
        topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)

        def done(status: PutMessageStatus) -> None:
            if status is PutMessageStatus.PUT_OK:
                self.statistics.sent_back(header.group, topic)
                response = RemotingCommand.response_to(request)
            else:
                response = RemotingCommand.response_to(
                    request, ResponseCode.SYSTEM_ERROR, status.value
                )
            if not request.is_oneway:
                channel.write(encode_command(response))

        self.messages.submit([draft], done)
        return None

    def _group(self, header: ConsumerSendMsgBackRequestHeader) -> SubscriptionGroupConfig:
        group = self.groups.find_or_create(header.group)
        if group is None:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group}",
            )
        if not self.identity.is_writeable:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self.identity.host}] sending message is forbidden",
            )
        return group

    def _retry_queue(self, group: SubscriptionGroupConfig, unit_mode: bool) -> int:
        """Return a queue id of the group's retry topic, which is created if it does not exist."""
        name = names.retry_topic(group.group_name)
        sys_flag = TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION if unit_mode else 0
        topic = self.topics.create_for_group(name, group.retry_queue_nums, sys_flag)
        if topic is None:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        if not topic.perm & PERM_WRITE:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )
        return self.pick_queue(group.retry_queue_nums)

    def _message(self, physical_offset: int) -> StoredMessage:
        record = self.queues.message_at(physical_offset)
        try:
            if record is not None:
                return decode_intact(record, physical_offset)
        except InvalidRecordError as fault:
            logger.error("the message at %d cannot be read: %s", physical_offset, fault)
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical_offset}"
        )

    def _retry(
        self, header: ConsumerSendMsgBackRequestHeader, queue_id: int, message: StoredMessage
    ) -> OutgoingMessage:
        level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        draft, properties = _sent_back(message, names.retry_topic(header.group), queue_id, level)
        redirect(draft, properties, len(self.identity.store.delay_levels_ms))
        return draft

    def _dead_letter(self, group: str, message: StoredMessage) -> OutgoingMessage:
        name = names.dlq_topic(group)
        if self.topics.create_for_group(name, DLQ_QUEUES) is None:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        draft, _ = _sent_back(message, name, self.pick_queue(DLQ_QUEUES), 0)
        return draft


def _sent_back(
    message: StoredMessage, topic: str, queue_id: int, level: int
) -> tuple[OutgoingMessage, dict[str, str]]:
    """Return the draft of the message to write again, and its properties."""
    properties = dict(message.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.topic)
    properties[PROPERTY_WAIT] = "false"
    properties[PROPERTY_DELAY] = str(level)
    origin = properties.get(PROPERTY_ORIGIN_MESSAGE_ID, "").strip()
    properties[PROPERTY_ORIGIN_MESSAGE_ID] = origin or offset_msg_id(
        message.store_host, message.physical_offset
    )
    draft = copy_of(message, topic, queue_id, properties)
    draft.reconsume_times = message.reconsume_times + 1
    return draft, properties
