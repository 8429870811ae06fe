"""Sending: codes 10, 310 and 320, with and without a reply.

The sends of one ``handle`` call are collected and put together (a batch message is put on its own,
in its place); their replies wait at the gate until the watermarks of the mode have passed them.

Checks in order; the first that fails answers:

=== ========================================================== ====
1   before ``startAcceptSendRequestTimeStamp``                    1
2   broker without W, topic ordered                              16
3   topic name                                                    1
4   topic closed to clients                                      16
5   topic unknown and not to be created                          17
6   queue id not in the topic                                     1
7   retry topic of an unknown group                              26
8   half message where ``rejectTransactionMessage``              16
9   prepared without being a half message, a batch that is
    delayed or part of a transaction                             13
10  sizes                                                        13
=== ========================================================== ====

What is stored differs from what was sent: ``CLUSTER`` is added; ``WAIT`` is taken out of a single
message's properties (and honoured) unless it becomes a delayed one (:mod:`.delays`) or a half one
(:mod:`.half_messages`); properties of a batch's header are appended to those of each message; a
message to a retry topic that came back too often goes to the dead letters. The order of what was
taken apart and put together is that of Java's map, so that the same requests give the same log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field

from rmqpy.broker.copies import waits
from rmqpy.broker.delays import delay_level, redirect
from rmqpy.broker.groups import GroupTable
from rmqpy.broker.half_messages import is_half, make_half
from rmqpy.broker.hosts import born_host
from rmqpy.broker.identity import Identity
from rmqpy.broker.ports import HandlerTable, MessageSink
from rmqpy.broker.put_status import answer_to, remark_of
from rmqpy.broker.replication import Replication
from rmqpy.broker.statistics import Statistics
from rmqpy.broker.topics import DLQ_QUEUES, NewTopic, TopicTable
from rmqpy.codec.layout import PROPERTIES_BYTES_MAX
from rmqpy.codec.message import BatchItem, RecordFault, batch_records, offset_msg_id
from rmqpy.codec.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from rmqpy.model import names
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import Refusal
from rmqpy.model.flags import (
    BORN_HOST_V6,
    MULTI_TAGS,
    STORE_HOST_V6,
    TRANSACTION_NOT_TYPE,
    has_queue_unit,
    transaction_type,
)
from rmqpy.model.message import Host, MessageDraft
from rmqpy.model.runtime import Clock
from rmqpy.net.gate import ReplyGate, Waiting
from rmqpy.remoting.bodies import MULTI_TAG, TopicConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command, encode_command
from rmqpy.remoting.headers import (
    AnySendHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqpy.remoting.java_map import in_java_order
from rmqpy.store.results import PutResult
from rmqpy.store.watermark import Watermark

SendGate = ReplyGate[RemotingCommand | bytes]
"""The gate of send replies; a ticket is the reply as a command, or the frames of several."""

TRACE_ON: Final = "TRACE_ON"
MSG_REGION: Final = "MSG_REGION"
IPV6_BYTES: Final = 16
TOPIC_FLAG_UNIT: Final = 1
TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION: Final = 2

_log = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True)
class SendSurroundings:
    """What sending needs to know and to use."""

    identity: Identity
    topics: TopicTable
    groups: GroupTable
    sink: MessageSink
    gate: SendGate
    replication: Replication
    statistics: Statistics
    clock: Clock
    pick_queue: Callable[[int], int]
    """A queue id below its argument, at random."""


@define(slots=True, eq=False)
class _Pending:
    request: RemotingCommand
    draft: MessageDraft
    queue_id: int
    """What the sender is told; the message may wait in another queue."""


@define(slots=True, eq=False)
class SendProcessor:
    """``receive`` each send of a ``handle`` call, then ``finish`` once."""

    around: SendSurroundings
    _pending: list[_Pending] = field(factory=list, init=False)
    _answers: list[bytes] = field(factory=list, init=False)

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.SEND_MESSAGE: self.receive_v1,
            RequestCode.SEND_MESSAGE_V2: self.receive_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.receive_v2,
        }

    def receive_v1(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        return self._receive(channel, request, SendMessageRequestHeader)

    def receive_v2(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        return self._receive(channel, request, SendMessageRequestHeaderV2)

    def draft_of_reply(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader
    ) -> MessageDraft:
        """The message of a reply (:mod:`.replies`), checked as a send is; its properties stay as
        they came.
        """
        draft = self._draft(channel, header, self._check(header))
        draft.flag = header.flag
        draft.body = request.body
        draft.properties = _raw(header)
        draft.wait_store_ok = False
        self._check_sizes(len(draft.body), len(draft.properties))
        self._check_type(draft)
        return draft

    def finish(self, channel: Channel) -> list[bytes]:
        """Put what was collected; the frames to be sent to ``channel`` at once."""
        self._put_pending(channel)
        answers, self._answers = self._answers, []
        return answers

    def late(self, response: RemotingCommand, status: PutMessageStatus) -> bytes:
        """The frame for a reply that may not leave as it is (the gate asks for it)."""
        answer = answer_to(status)
        response.code = answer.code
        response.remark = remark_of(status, self.around.identity.store.max_message_size)
        if not answer.stored:
            response.header_type = None
            response.ext_fields = self._reply_fields()
        return encode_command(response)

    def late_frames(self, frames: bytes, status: PutMessageStatus) -> bytes:
        """The same for whole frames of replies that waited together."""
        late = []
        position = 0
        with memoryview(frames) as view:
            while position < len(view):
                start = position + LENGTH_BYTES
                position = start + int.from_bytes(view[position:start])
                response = decode_command(view[start:position])
                response.header_type = SendMessageResponseHeader
                late.append(self.late(response, status))
        return b"".join(late)

    def _receive(
        self,
        channel: Channel,
        request: RemotingCommand,
        header_type: type[SendMessageRequestHeader] | type[SendMessageRequestHeaderV2],
    ) -> RemotingCommand | None:
        try:
            header = header_type.decode(request.ext_fields)
            topic = self._check(header)
            if header.batch:
                self._put_batch(channel, request, self._batch(channel, request, header, topic))
            else:
                self._pending.append(self._single(channel, request, header, topic))
        except Refusal as refusal:
            return self._refused(request, refusal)
        return None

    # ------------------------------------------------------------------------------------ checks

    def _check(self, header: AnySendHeader) -> TopicConfig:
        around = self.around
        identity, topic = around.identity, header.topic
        accept_from_ms = identity.broker.start_accept_send_request_time_stamp
        if around.clock.now_ms() < accept_from_ms:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {accept_from_ms}"
            )
        if not identity.writeable and around.topics.is_ordered(topic):
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"the broker {identity.host} may not be written to"
            )
        config = around.topics.get(topic)
        if config is None:
            config = self._unknown_topic(header)
        else:
            self._check_open(topic)
        if header.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queueId {header.queue_id} is illegal: topic {topic} has "
                f"{config.read_queue_nums} queues to read and {config.write_queue_nums} to write",
            )
        return config

    def _unknown_topic(self, header: AnySendHeader) -> TopicConfig:
        topic = header.topic
        names.check_topic(topic)
        self._check_open(topic)
        if self.around.identity.is_slave:
            raise self._put_refusal(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        sys_flag = TOPIC_FLAG_UNIT if header.unit_mode else 0
        created = self.around.topics.create_for_send(
            NewTopic(
                topic=topic,
                pattern=header.default_topic,
                queue_nums=header.default_topic_queue_nums,
                sys_flag=sys_flag,
            )
        )
        if created is None and names.is_retry_topic(topic):
            sys_flag = TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION if header.unit_mode else 0
            created = self.around.topics.create_for_group(topic, 1, sys_flag)
        if created is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist and may not be created from {header.default_topic}; "
                "create it first",
            )
        return created

    def _check_open(self, topic: str) -> None:
        names.check_send_topic(topic)

    def _check_half(self) -> None:
        identity = self.around.identity
        if identity.broker.reject_transaction_message:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{identity.host}] sending transaction message is forbidden",
            )

    def _check_type(self, draft: MessageDraft) -> None:
        """A prepared message that is no half message would have no place in any queue."""
        if not has_queue_unit(draft.sys_flag):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the sysFlag says that the message is part of a transaction, its properties do not",
            )

    def _check_sizes(self, body_bytes: int, properties_bytes: int) -> None:
        if body_bytes > self.around.identity.store.max_message_size:
            raise self._put_refusal(PutMessageStatus.MESSAGE_ILLEGAL)
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise self._put_refusal(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED)

    def _put_refusal(self, status: PutMessageStatus) -> Refusal:
        remark = remark_of(status, self.around.identity.store.max_message_size)
        return Refusal(answer_to(status).code, remark or status.value)

    # ------------------------------------------------------------------------------------ drafts

    def _single(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader, topic: TopicConfig
    ) -> _Pending:
        draft = self._draft(channel, header, topic)
        queue_id = draft.queue_id
        self._bury_if_exhausted(header, draft)
        properties = decode_properties(_raw(header))
        properties[PROPERTY_CLUSTER] = self.around.identity.cluster
        draft.wait_store_ok = waits(properties)
        _move_wait(properties)
        draft.flag = header.flag
        draft.body = request.body
        returned = draft.reconsume_times > 0 and delay_level(properties) > 0
        if is_half(properties) and not returned:
            self._check_half()
            make_half(draft, properties)
        elif not redirect(draft, properties, len(self.around.identity.store.delay_levels_ms)):
            self._check_type(draft)
            draft.properties = encode_properties(stored_properties(properties))
        self._check_sizes(len(draft.body), len(draft.properties))
        return _Pending(request, draft, queue_id)

    def _bury_if_exhausted(self, header: AnySendHeader, draft: MessageDraft) -> None:
        """A message that a consumer sends to its retry topic once too often is a dead letter."""
        if not names.is_retry_topic(header.topic):
            return
        group = names.group_of_retry_topic(header.topic)
        config = self.around.groups.find_or_create(group)
        if config is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        times_max = header.max_reconsume_times
        if times_max is None:
            times_max = config.retry_max_times
        if draft.reconsume_times >= times_max:
            topic = names.dlq_topic(group)
            if self.around.topics.create_for_group(topic, DLQ_QUEUES) is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist")
            draft.topic = topic.encode()
            draft.queue_id = 0

    def _batch(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader, topic: TopicConfig
    ) -> list[MessageDraft]:
        properties = decode_properties(_raw(header))
        if transaction_type(header.sys_flag) != TRANSACTION_NOT_TYPE or delay_level(properties) > 0:
            raise self._put_refusal(PutMessageStatus.MESSAGE_ILLEGAL)
        properties[PROPERTY_CLUSTER] = self.around.identity.cluster
        common = encode_properties(dict(in_java_order(properties)))
        self._check_sizes(len(request.body), len(common))
        try:
            items = batch_records(request.body)
        except RecordFault as fault:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be split: {fault}"
            ) from fault
        if not items:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        model = self._draft(channel, header, topic)
        model.wait_store_ok = waits(properties)
        return [self._batch_draft(model, item, common) for item in items]

    def _batch_draft(self, model: MessageDraft, item: BatchItem, common: bytes) -> MessageDraft:
        own = item.properties
        separator = b"\x02" if own and not own.endswith(b"\x02") else b""
        stored = own + separator + common
        self._check_sizes(len(item.body), len(stored))
        return MessageDraft(
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

    def _draft(self, channel: Channel, header: AnySendHeader, topic: TopicConfig) -> MessageDraft:
        """All but flag, body, properties and waiting."""
        store_host = self.around.identity.store_host
        born = born_host(channel.peer)
        sys_flag = stored_sys_flag(header.sys_flag, topic, born, store_host)
        queue_id = header.queue_id
        if queue_id < 0:
            if topic.write_queue_nums <= 0:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR, f"topic {topic.topic_name} has no queue to write to"
                )
            queue_id = self.around.pick_queue(topic.write_queue_nums)
        return MessageDraft(
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

    # ---------------------------------------------------------------------------- put and answer

    def _put_pending(self, channel: Channel) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        if not self.around.gate.has_room(len(pending)):
            for sent in pending:
                self._answer(sent.request, self._refused(sent.request, _busy()))
            return
        try:
            results = self._put([sent.draft for sent in pending], batch=False)
        except Exception as error:  # noqa: BLE001 - logged and answered
            _log.exception("storing messages from %s failed", channel.peer)
            refusal = Refusal(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            for sent in pending:
                self._answer(sent.request, self._refused(sent.request, refusal))
            return
        assert len(results) == len(pending), (len(results), len(pending))
        waiting: dict[bool, list[Waiting[RemotingCommand | bytes]]] = {}
        for sent, result in zip(pending, results, strict=True):
            held = self._held(channel, sent, result)
            if held is not None:
                waiting.setdefault(sent.draft.wait_store_ok, []).append(held)
        for wait_store_ok, replies in waiting.items():
            self.around.gate.hold(self._marks(wait_store_ok), replies)

    def _put_batch(
        self, channel: Channel, request: RemotingCommand, drafts: Sequence[MessageDraft]
    ) -> None:
        self._put_pending(channel)
        if not self.around.gate.has_room(1):
            raise _busy()
        (result,) = self._put(drafts, batch=True)
        held = self._held(channel, _Pending(request, drafts[0], drafts[0].queue_id), result)
        if held is not None:
            self.around.gate.hold(self._marks(drafts[0].wait_store_ok), (held,))

    def _marks(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """What replies wait for. Slaves that are lacking are not waited for: the reply says so."""
        replication = self.around.replication
        marks = self.around.sink.acknowledged(wait_store_ok)
        if not wait_store_ok or replication.lacks_slaves:
            return marks
        return (*marks, *replication.marks)

    def _put(self, drafts: Sequence[MessageDraft], batch: bool) -> list[PutResult]:
        clock, statistics = self.around.clock, self.around.statistics
        began_ms = clock.monotonic_ms()
        results = self.around.sink.put(drafts, batch)
        stored = [result for result in results if answer_to(result.status).stored]
        statistics.messages_put(
            sum(len(result.physical_offsets) for result in stored),
            sum(result.end - result.physical_offsets[0] for result in stored),
            clock.monotonic_ms() - began_ms,
        )
        statistics.counters.put_failed += len(results) - len(stored)
        return results

    def _held(
        self, channel: Channel, sent: _Pending, result: PutResult
    ) -> Waiting[RemotingCommand | bytes] | None:
        """The reply to a stored message; what was not stored is answered at once."""
        request, draft = sent.request, sent.draft
        answer = answer_to(result.status)
        if not answer.stored:
            refusal = self._put_refusal(result.status)
            if result.remark:
                refusal.remark = f"{refusal.remark} {result.remark}"
            self._answer(request, self._refused(request, refusal))
            return None
        if request.is_oneway:
            return None
        identity = self.around.identity
        remark = None
        if draft.wait_store_ok and self.around.replication.lacks_slaves:
            status = PutMessageStatus.SLAVE_NOT_AVAILABLE
            answer = answer_to(status)
            remark = remark_of(status, identity.store.max_message_size)
        host = identity.store_host
        offsets = result.physical_offsets
        response = RemotingCommand.response_to(
            request,
            answer.code,
            remark,
            header=SendMessageResponseHeader(
                msg_id=",".join([offset_msg_id(host, offset) for offset in offsets]),
                queue_id=sent.queue_id,
                queue_offset=result.queue_offset,
                trace_on=identity.broker.trace_on,
                msg_region=identity.broker.region_id,
            ),
        )
        return Waiting(channel, result.end, encode_command(response), response)

    def _answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        if not request.is_oneway:
            self._answers.append(encode_command(response))

    def _refused(self, request: RemotingCommand, refusal: Refusal) -> RemotingCommand:
        response = RemotingCommand.response_to(request, refusal.code, refusal.remark)
        response.ext_fields = self._reply_fields()
        return response

    def _reply_fields(self) -> dict[str, str]:
        """A Java client reads these from every reply to a send."""
        broker = self.around.identity.broker
        return {MSG_REGION: broker.region_id, TRACE_ON: "true" if broker.trace_on else "false"}


def stored_sys_flag(sys_flag: int, topic: TopicConfig, born: Host, stored: Host) -> int:
    """SYSFLAG of a record: the sender's, but what follows from the topic and the two hosts."""
    sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born[0]) == IPV6_BYTES:
        sys_flag |= BORN_HOST_V6
    if len(stored[0]) == IPV6_BYTES:
        sys_flag |= STORE_HOST_V6
    if topic.topic_filter_type == MULTI_TAG:
        sys_flag |= MULTI_TAGS
    return sys_flag


def stored_properties(properties: dict[str, str]) -> dict[str, str]:
    """The properties of a plain message, with the cluster's name, as and in the order in which they
    are stored. Which and in what order depends on their names alone.
    """
    _move_wait(properties)
    in_order = dict(in_java_order(properties))
    in_order.pop(PROPERTY_WAIT, None)
    return in_order


def _move_wait(properties: dict[str, str]) -> None:
    """Java takes it out and puts it back, as the last one."""
    if PROPERTY_WAIT in properties:
        properties[PROPERTY_WAIT] = properties.pop(PROPERTY_WAIT)


def _busy() -> Refusal:
    return Refusal(
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]system busy: too many sends wait for their acknowledgement",
    )


def _raw(header: AnySendHeader) -> bytes:
    return header.properties.encode("utf-8", "replace") if header.properties else b""

