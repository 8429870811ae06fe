"""Sending: codes 10, 310 and 320, with and without a reply.

The sends of one ``handle`` call are collected and put together (a batch message is put separately,
in order); their replies wait at the gate until the watermarks of the mode have passed them.
:mod:`rmqpy.broker.processors.send_request` describes the checks and the stored message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, StoreWriter
from rmqpy.broker.processors.put_status import refusal_of, remark_of, response_for
from rmqpy.broker.processors.send_request import SendRequestParser
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.statistics import Statistics
from rmqpy.codec.message import offset_msg_id
from rmqpy.model.clock import Clock
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.message import OutgoingMessage
from rmqpy.net.pending_replies import PendingReply, SendGate
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command, encode_command
from rmqpy.remoting.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.results import PutResult

TRACE_ON: Final = "TRACE_ON"
MSG_REGION: Final = "MSG_REGION"

_OK: Final = PutMessageStatus.PUT_OK

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class _PendingSend:
    request: RemotingCommand
    draft: OutgoingMessage
    queue_id: int
    """The queue that the reply names; the message may wait in another queue."""


@define(slots=True, frozen=True, eq=False, repr=False)
class SendReplies:
    """The replies to sends that are refused or whose acknowledgement does not arrive."""

    identity: BrokerContext

    def refused(self, request: RemotingCommand, refusal: RequestRejectedError) -> RemotingCommand:
        response = RemotingCommand.response_to(request, refusal.code, refusal.remark)
        response.ext_fields = self._fields()
        return response

    def on_ack_timeout(self, ticket: RemotingCommand | bytes, status: PutMessageStatus) -> bytes:
        """Return the frames that replace replies which were not acknowledged. ``ticket`` is one
        reply, or the complete frames of several replies that waited together.
        """
        if not isinstance(ticket, bytes):
            return self._late_frame(ticket, status)
        late = []
        position = 0
        with memoryview(ticket) as view:
            while position < len(view):
                start = position + LENGTH_BYTES
                position = start + int.from_bytes(view[position:start])
                response = decode_command(view[start:position])
                response.header_type = SendMessageResponseHeader
                late.append(self._late_frame(response, status))
        return b"".join(late)

    def _late_frame(self, response: RemotingCommand, status: PutMessageStatus) -> bytes:
        answer = response_for(status)
        response.code = answer.code
        response.remark = remark_of(status, self.identity.store.max_message_size)
        if not answer.stored:
            response.header_type = None
            response.ext_fields = self._fields()
        return encode_command(response)

    def _fields(self) -> dict[str, str]:
        """Return the fields that a Java client reads from every reply to a send."""
        broker = self.identity.broker_settings
        return {MSG_REGION: broker.region_id, TRACE_ON: "true" if broker.trace_on else "false"}


@define(slots=True, kw_only=True, eq=False, repr=False)
class SendProcessor:
    """The processor of sends. Call ``receive_v1`` or ``receive_v2`` for each send of a ``handle``
    call, then ``put_collected`` once.
    """

    identity: BrokerContext
    drafts: SendRequestParser
    sink: StoreWriter
    gate: SendGate
    replies: SendReplies
    replication: ReplicationStatus
    statistics: Statistics
    clock: Clock
    collected: list[_PendingSend] = field(factory=list, init=False)
    """The sends that :meth:`put_collected` will put."""
    answers: list[bytes] = field(factory=list, init=False)
    """The frames that :meth:`put_collected` will return."""

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

    def put_collected(self, channel: Channel) -> list[bytes]:
        """Put the collected messages and return the frames to send to ``channel`` at once."""
        if self.collected:
            self._put_pending(channel)
        answers, self.answers = self.answers, []
        return answers

    def _receive(
        self,
        channel: Channel,
        request: RemotingCommand,
        header_type: type[SendMessageRequestHeader] | type[SendMessageRequestHeaderV2],
    ) -> RemotingCommand | None:
        try:
            header = header_type.decode(request.ext_fields)
            drafts = self.drafts
            if header.batch:
                messages = drafts.batch(channel, request, header)
                if self.identity.slaves_required:
                    self._check_replicas(messages[0])
                self._put_batch(channel, request, messages)
            else:
                draft, queue_id = drafts.single(channel, request, header)
                if self.identity.slaves_required:
                    self._check_replicas(draft)
                self.collected.append(_PendingSend(request, draft, queue_id))
        except RequestRejectedError as refusal:
            return self.replies.refused(request, refusal)
        return None

    def _check_replicas(self, draft: OutgoingMessage) -> None:
        """Refuse a message that waits for replicas, while there are too few to store it at all."""
        if draft.wait_store_ok and self.replication.refuses:
            self.statistics.put_failed()
            status = PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
            raise refusal_of(status, self.identity.store.max_message_size)

    # Put and answer

    def _put_pending(self, channel: Channel) -> None:
        pending, self.collected = self.collected, []
        if not self.gate.has_room(len(pending)):
            for sent in pending:
                self._answer(sent.request, self.replies.refused(sent.request, _busy()))
            return
        try:
            results = self._put([sent.draft for sent in pending], batch=False)
        except Exception as error:
            logger.exception("storing messages from %s failed", channel.peer)
            refusal = RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
            )
            for sent in pending:
                self._answer(sent.request, self.replies.refused(sent.request, refusal))
            return
        assert len(results) == len(pending), (len(results), len(pending))
        self._hold(channel, zip(pending, results, strict=True))

    def _put_batch(
        self, channel: Channel, request: RemotingCommand, drafts: Sequence[OutgoingMessage]
    ) -> None:
        if self.collected:
            self._put_pending(channel)
        if not self.gate.has_room(1):
            raise _busy()
        (result,) = self._put(drafts, batch=True)
        self._hold(channel, [(_PendingSend(request, drafts[0], drafts[0].queue_id), result)])

    def _hold(self, channel: Channel, sent: Iterable[tuple[_PendingSend, PutResult]]) -> None:
        """Hold the replies until their watermarks have passed. Missing slaves are not waited for;
        the replies report them.
        """
        of_slaves: Sequence[Watermark] | None = ()
        if self.identity.slaves_awaited:
            of_slaves = self.replication.required_marks()
        waiting: dict[bool, list[PendingReply[RemotingCommand | bytes]]] = {}
        for each, result in sent:
            waits = each.draft.wait_store_ok
            held = self._held(channel, each, result, lacks_slaves=waits and of_slaves is None)
            if held is not None:
                waiting.setdefault(waits, []).append(held)
        for waits, replies in waiting.items():
            marks = self.sink.acknowledged(waits)
            self.gate.hold((*marks, *of_slaves) if waits and of_slaves else marks, replies)

    def _put(self, drafts: Sequence[OutgoingMessage], batch: bool) -> list[PutResult]:
        clock, statistics = self.clock, self.statistics
        began_ms = clock.monotonic_ms()
        results = self.sink.put(drafts, batch)
        count = size = 0
        for result in results:
            if result.physical_offsets:
                count += len(result.physical_offsets)
                size += result.end - result.physical_offsets[0]
            else:
                statistics.put_failed()
        statistics.messages_put(count, size, clock.monotonic_ms() - began_ms)
        return results

    def _held(
        self, channel: Channel, sent: _PendingSend, result: PutResult, *, lacks_slaves: bool
    ) -> PendingReply[RemotingCommand | bytes] | None:
        """Return the reply to a stored message; a message that was not stored
        is answered at once.
        """
        request = sent.request
        if not result.physical_offsets:
            refusal = refusal_of(result.status, self.identity.store.max_message_size)
            if result.remark:
                refusal.remark = f"{refusal.remark} {result.remark}"
            self._answer(request, self.replies.refused(request, refusal))
            return None
        if request.is_oneway:
            return None
        identity = self.identity
        status, remark = result.status, None
        if lacks_slaves:
            status = PutMessageStatus.SLAVE_NOT_AVAILABLE
            remark = remark_of(status, identity.store.max_message_size)
        host = identity.store_host
        offsets = result.physical_offsets
        response = RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS if status is _OK else response_for(status).code,
            remark,
            header=SendMessageResponseHeader(
                msg_id=",".join([offset_msg_id(host, offset) for offset in offsets]),
                queue_id=sent.queue_id,
                queue_offset=result.queue_offset,
                trace_on=identity.broker_settings.trace_on,
                msg_region=identity.broker_settings.region_id,
            ),
        )
        return PendingReply(channel, result.end, encode_command(response), response)

    def _answer(self, request: RemotingCommand, response: RemotingCommand) -> None:
        if not request.is_oneway:
            self.answers.append(encode_command(response))


def _busy() -> RequestRejectedError:
    return RequestRejectedError(
        ResponseCode.SYSTEM_BUSY,
        "[OVERLOAD]system busy, start flow control for a while",
    )
