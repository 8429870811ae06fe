"""The checks of send requests (codes 10, 310, 320, 324 and 325) and the messages that are stored
for them.

Checks in order; the first that fails determines the answer:

=== ========================================================== ====
1   before ``startAcceptSendRequestTimeStamp``                    1
2   broker without W, topic ordered                              16
3   topic name                                                    1
4   topic closed to clients                                      16
5   topic unknown and not to be created                          17
6   queue id not in the topic                                     1
7   retry topic of an unknown group                              26
8   half message while ``rejectTransactionMessage`` is on        16
9   prepared without being a half message, a batch that is
    delayed or part of a transaction                             13
10  sizes                                                        13
=== ========================================================== ====

The stored message differs from the sent one: ``CLUSTER`` is added; ``WAIT`` is removed from a
single message's properties (and honoured) unless the message becomes a delayed one
(:mod:`rmqpy.broker.state.delay_levels`) or a half one (:mod:`rmqpy.broker.services.half_messages`);
properties of a batch's header are appended to those of each message; a message to a retry topic
that was retried too often becomes a dead letter. Properties are reassembled in the order of Java's
map, so that the same requests produce the same log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext, born_host
from rmqpy.broker.base.message_copy import wait_store_msg_ok
from rmqpy.broker.processors.put_status import refusal_of
from rmqpy.broker.services.half_messages import is_half, make_half
from rmqpy.broker.state.delay_levels import delay_level, redirect
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import DLQ_QUEUES, NewTopic, TopicTable
from rmqpy.codec.layout import PROPERTIES_BYTES_MAX, REVERSIBLE_PROPERTIES_MAX
from rmqpy.codec.message import BatchItem, InvalidRecordError, batch_records
from rmqpy.codec.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.codes import PutMessageStatus, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import (
    BORN_HOST_V6,
    MULTI_TAGS,
    STORE_HOST_V6,
    TRANSACTION_NOT_TYPE,
    has_queue_unit,
    transaction_type,
)
from rmqpy.model.message import Host, OutgoingMessage
from rmqpy.remoting.bodies import MULTI_TAG, TopicConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import AnySendHeader
from rmqpy.remoting.java_values import hashmap_ordered

_REROUTING: Final = frozenset({PROPERTY_DELAY, PROPERTY_TRANSACTION_PREPARED})
"""The properties with which a message goes to another topic first."""
IPV6_BYTES: Final = 16
TOPIC_FLAG_UNIT: Final = 1
TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION: Final = 2


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class SendRequestParser:
    """The parser from send requests to stored messages. Methods raise RequestRejectedError."""

    identity: BrokerContext
    topics: TopicTable
    groups: SubscriptionGroupTable
    clock: Clock
    pick_queue: Callable[[int], int]
    """Returns a random queue id below its argument."""

    def single(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader
    ) -> tuple[OutgoingMessage, int]:
        """Return the message and the queue id for the reply. A delayed or half message waits in
        another queue.
        """
        draft = self._draft(channel, header, self._check(header))
        queue_id = draft.queue_id
        draft.flag = header.flag
        draft.body = request.body
        properties = self._properties(draft, _raw(header))
        self._dead_letter_if_exhausted(header, draft)
        properties[PROPERTY_CLUSTER] = self.identity.cluster
        if PROPERTY_WAIT in properties:
            draft.wait_store_ok = wait_store_msg_ok(properties)
            _move_wait(properties)
        if _REROUTING.isdisjoint(properties) or not self._rerouted(draft, properties):
            if draft.sys_flag:
                self._check_type(draft)
            draft.properties = encode_properties(stored_properties(properties))
        self._check_sizes(len(draft.body), len(draft.properties))
        return draft, queue_id

    def _rerouted(self, draft: OutgoingMessage, properties: dict[str, str]) -> bool:
        """Turn ``draft`` into a half or a delayed message if ``properties`` request it, and return
        whether they do.
        """
        returned = draft.reconsume_times > 0 and delay_level(properties) > 0
        if is_half(properties) and not returned:
            self._check_half()
            make_half(draft, properties)
            return True
        return redirect(draft, properties, len(self.identity.store.delay_levels_ms))

    def batch(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader
    ) -> list[OutgoingMessage]:
        """Return the messages of a batch, at least one."""
        topic = self._check(header)
        properties = decode_properties(_raw(header))
        if transaction_type(header.sys_flag) != TRANSACTION_NOT_TYPE or delay_level(properties) > 0:
            raise self._refusal(PutMessageStatus.MESSAGE_ILLEGAL)
        properties[PROPERTY_CLUSTER] = self.identity.cluster
        common = encode_properties(dict(hashmap_ordered(properties)))
        self._check_sizes(len(request.body), len(common))
        try:
            items = batch_records(request.body)
        except InvalidRecordError as fault:
            raise RequestRejectedError(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be split: {fault}"
            ) from fault
        if not items:
            raise RequestRejectedError(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        model = self._draft(channel, header, topic)
        model.wait_store_ok = wait_store_msg_ok(properties)
        return [self._batch_draft(model, item, common) for item in items]

    def reply(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader
    ) -> OutgoingMessage:
        """Return the message of a reply (:mod:`.reply`), checked like a send. Its properties remain
        as received.
        """
        draft = self._draft(channel, header, self._check(header))
        draft.flag = header.flag
        draft.body = request.body
        draft.properties = _raw(header)
        draft.wait_store_ok = False
        self._check_sizes(len(draft.body), len(draft.properties))
        self._check_type(draft)
        return draft

    # Checks

    def _check(self, header: AnySendHeader) -> TopicConfig:
        identity, topic = self.identity, header.topic
        accept_from_ms = identity.broker_settings.start_accept_send_request_time_stamp
        if self.clock.now_ms() < accept_from_ms:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {accept_from_ms}"
            )
        if not identity.is_writeable and self.topics.is_ordered(topic):
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION, f"the broker {identity.host} is not writable"
            )
        config = self.topics.get(topic)
        if config is None:
            config = self._unknown_topic(header)
        else:
            names.check_send_topic(topic)
        if header.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId {header.queue_id} is illegal: topic {topic} has "
                f"{config.read_queue_nums} queues to read and {config.write_queue_nums} to write",
            )
        return config

    def _unknown_topic(self, header: AnySendHeader) -> TopicConfig:
        topic = header.topic
        names.check_topic(topic)
        names.check_send_topic(topic)
        if self.identity.is_slave:
            raise self._refusal(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        sys_flag = TOPIC_FLAG_UNIT if header.unit_mode else 0
        created = self.topics.create_for_send(
            NewTopic(
                topic=topic,
                pattern=header.default_topic,
                queue_nums=header.default_topic_queue_nums,
                sys_flag=sys_flag,
            )
        )
        if created is None and names.is_retry_topic(topic):
            sys_flag = TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION if header.unit_mode else 0
            created = self.topics.create_for_group(topic, 1, sys_flag)
        if created is None:
            raise RequestRejectedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist and may not be created from {header.default_topic}; "
                "create it first",
            )
        return created

    def _check_half(self) -> None:
        identity = self.identity
        if identity.broker_settings.reject_transaction_message:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{identity.host}] sending transaction message is forbidden",
            )

    def _check_type(self, draft: OutgoingMessage) -> None:
        """Refuse a prepared message that is not a half message: no consume queue
        would contain it.
        """
        if not has_queue_unit(draft.sys_flag):
            raise RequestRejectedError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the sysFlag marks the message as part of a transaction, its properties do not",
            )

    def _check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        if body_bytes > self.identity.store.max_message_size:
            raise self._refusal(PutMessageStatus.MESSAGE_ILLEGAL)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise self._refusal(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)
        store = self.identity.store
        if (
            properties_bytes > REVERSIBLE_PROPERTIES_MAX
            and store.rmqpy_refuse_blocking_leave
            and store.enable_dledger_commit_log
        ):
            raise RequestRejectedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {properties_bytes} bytes; with more than"
                f" {REVERSIBLE_PROPERTIES_MAX} they would block the way back to a classic log"
                " (rmqpyRefuseBlockingLeave)",
            )

    # Drafts

    def _properties(self, draft: OutgoingMessage, raw: bytes) -> dict[str, str]:
        """Return the properties of a single message, which ``draft`` does not have yet."""
        return decode_properties(raw)

    def _dead_letter_if_exhausted(self, header: AnySendHeader, draft: OutgoingMessage) -> None:
        """Turn a message that has used up the retries of its group into a dead letter."""
        if not names.is_retry_topic(header.topic):
            return
        group = names.group_of_retry_topic(header.topic)
        config = self.groups.find_or_create(group)
        if config is None:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        times_max = header.max_reconsume_times
        if times_max is None:
            times_max = config.retry_max_times
        if draft.reconsume_times >= times_max:
            topic = names.dlq_topic(group)
            if self.topics.create_for_group(topic, DLQ_QUEUES) is None:
                raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist")
            draft.topic = topic.encode()
            draft.queue_id = 0

    def _batch_draft(
        self, model: OutgoingMessage, item: BatchItem, common: bytes
    ) -> OutgoingMessage:
        own = item.properties
        separator = b"\x02" if own and not own.endswith(b"\x02") else b""
        stored = own + separator + common
        self._check_sizes(len(item.body), len(stored))
        return OutgoingMessage(
            topic=model.topic,
            queue_id=model.queue_id,
            body=item.body,
            properties=stored,
            flag=item.flag,
            sys_flag=model.sys_flag,
            born_timestamp_ms=model.born_timestamp_ms,
            born_host=model.born_host,
            store_host=model.store_host,
            reconsume_times=model.reconsume_times,
            wait_store_ok=model.wait_store_ok,
        )

    def _draft(
        self, channel: Channel, header: AnySendHeader, topic: TopicConfig
    ) -> OutgoingMessage:
        """Return a draft; the caller sets ``flag``, ``body``, ``properties`` and
        ``wait_store_ok``.
        """
        store_host = self.identity.store_host
        born = born_host(channel.peer)
        sys_flag = stored_sys_flag(header.sys_flag, topic, born, store_host)
        queue_id = header.queue_id
        if queue_id < 0:
            if topic.write_queue_nums <= 0:
                raise RequestRejectedError(
                    ResponseCode.SYSTEM_ERROR, f"topic {topic.topic_name} has no queue to write to"
                )
            queue_id = self.pick_queue(topic.write_queue_nums)
        return OutgoingMessage(
            topic=topic.topic_name.encode(),
            queue_id=queue_id,
            body=b"",
            properties=b"",
            sys_flag=sys_flag,
            born_timestamp_ms=header.born_timestamp,
            born_host=born,
            store_host=store_host,
            reconsume_times=header.reconsume_times or 0,
        )

    def _refusal(self, status: PutMessageStatus) -> RequestRejectedError:
        return refusal_of(status, self.identity.store.max_message_size)


def stored_sys_flag(sys_flag: int, topic: TopicConfig, born: Host, stored: Host) -> int:
    """Return SYSFLAG of a record: the sender's flags, and those that follow from
    the topic and the two hosts.
    """
    sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born[0]) == IPV6_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(stored[0]) == IPV6_BYTES:
        sys_flag |= STORE_HOST_V6
    if topic.topic_filter_type == MULTI_TAG:
        sys_flag |= MULTI_TAGS
    return sys_flag


def stored_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of a plain message with the cluster's name, in the order in which they
    are stored. Their names alone determine which are stored, and in what order.
    """
    if PROPERTY_WAIT in properties:
        _move_wait(properties)
    in_order = dict(hashmap_ordered(properties))
    in_order.pop(PROPERTY_WAIT, None)
    return in_order


def _move_wait(properties: dict[str, str]) -> None:
    """Move WAIT to the end, as Java does by removing it and putting it back."""
    properties[PROPERTY_WAIT] = properties.pop(PROPERTY_WAIT)


def _raw(header: AnySendHeader) -> bytes:
    return header.properties.encode("utf-8", "replace") if header.properties else b""
