"""Ends of transactions: END_TRANSACTION (37), and resuming the check of a discarded half message
(323).

============  ================================================================================
commit        the final message, directly followed by the op message
rollback      the op message alone
unknown       nothing; a later check follows (:mod:`rmqpy.broker.services.transaction_check`)
============  ================================================================================

The producer names the half message by its physical offset; its queue offset and producer group must
agree. If the op message is lost (a crash between the two), the transaction is checked once more,
and the message may be delivered twice, but is never lost.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.services.half_messages import final_message, op_message, renew_half_message
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.codec.message import InvalidRecordError, decode_intact, parse_offset_msg_id
from rmqpy.codec.properties import PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_CHECK_TIMES
from rmqpy.model.clock import Clock
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.model.names import TRANSACTION_CHECK_MAX_TIME_TOPIC, TRANSACTION_HALF_TOPIC
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    EndTransactionRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)

NOT_FOUND: Final = "Find prepared transaction message failed"


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class TransactionProcessor:
    """The processor of requests that end a transaction or resume its check."""

    identity: BrokerContext
    queues: MessageReader
    messages: InternalMessageWriter
    clock: Clock

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    def end(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = EndTransactionRequestHeader.decode(request.ext_fields)
        if self.identity.is_slave:
            raise RequestRejectedError(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave")
        if header.commit_or_rollback not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return RemotingCommand.response_to(request)
        half = self._half(header)
        drafts = []
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            try:
                drafts.append(final_message(half, len(self.identity.store.delay_levels_ms)))
            except ValueError as fault:
                raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(fault)) from fault
        now_ms = self.clock.now_ms()
        drafts.append(op_message(half.queue_offset, half.queue_id, self.identity, now_ms))
        return self._write(channel, request, drafts)

    def resume_check(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Put a half message at the end of the half queue, as if it had never been checked."""
        header = ResumeCheckHalfMessageRequestHeader.decode(request.ext_fields)
        try:
            _, offset = parse_offset_msg_id(header.msg_id or "")
        except ValueError as error:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        half = self._message(offset)
        if half.topic not in (TRANSACTION_HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC):
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"the message at {offset} is of topic {half.topic}"
            )
        properties = {**half.properties, PROPERTY_TRANSACTION_CHECK_TIMES: "0"}
        return self._write(channel, request, [renew_half_message(half, properties)])

    def _half(self, header: EndTransactionRequestHeader) -> StoredMessage:
        half = self._message(header.commit_log_offset)
        if half.topic != TRANSACTION_HALF_TOPIC:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
        if half.properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
            )
        return half

    def _message(self, physical_offset: int) -> StoredMessage:
        record = self.queues.message_at(physical_offset)
        try:
            if record is not None:
                return decode_intact(record, physical_offset)
        except InvalidRecordError:
            pass  # a damaged message counts as missing
        raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, NOT_FOUND)

    def _write(
        self, channel: Channel, request: RemotingCommand, drafts: list[OutgoingMessage]
    ) -> RemotingCommand | None:
        refusal = self.messages.refusal
        if refusal is not None:
            raise RequestRejectedError(ResponseCode.SYSTEM_BUSY, refusal)

        def done(status: PutMessageStatus) -> None:
            if request.is_oneway:
                return
            stored = status is PutMessageStatus.PUT_OK
            response = RemotingCommand.response_to(
                request,
                ResponseCode.SUCCESS if stored else ResponseCode.SYSTEM_ERROR,
                None if stored else status.value,
            )
            channel.write(encode_command(response))

        self.messages.submit(drafts, done)
        return None
