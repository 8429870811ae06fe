"""Replies to request messages: codes 324 and 325, pushed to the requesting producer by 326.

The producer that waits for a reply names itself in REPLY_TO_CLIENT and is looked up among the
producers that are online. Its acknowledgement becomes the answer to the replying consumer. With
``storeReplyMessageEnable`` the reply is also stored, whether or not it was delivered, and the
answer contains its place in the log.
"""

from __future__ import annotations

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.message_copy import encode_java_properties
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.processors.send import MSG_REGION, TRACE_ON
from rmqpy.broker.processors.send_request import SendRequestParser
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.state.client_calls import ClientRequests
from rmqpy.broker.state.clients import ClientTable
from rmqpy.codec.message import offset_msg_id
from rmqpy.codec.properties import (
    PROPERTY_MESSAGE_REPLY_TO_CLIENT,
    PROPERTY_PUSH_REPLY_TIME,
    decode_properties,
)
from rmqpy.config.keys import host_and_port
from rmqpy.model.clock import Clock
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    AnySendHeader,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class ReplyMessageProcessor:
    """The processor that pushes replies to the producers that requested them."""

    identity: BrokerContext
    clients: ClientTable
    calls: ClientRequests
    drafts: SendRequestParser
    messages: InternalMessageWriter
    clock: Clock

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply_v1,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    def reply_v1(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = SendMessageRequestHeader.decode(request.ext_fields)
        return self._reply(channel, request, header)

    def reply_v2(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = SendMessageRequestHeaderV2.decode(request.ext_fields)
        return self._reply(channel, request, header)

    def _reply(
        self, channel: Channel, request: RemotingCommand, header: AnySendHeader
    ) -> RemotingCommand | None:
        draft = self.drafts.reply(channel, request, header)
        properties = decode_properties(draft.properties)
        requester = properties.get(PROPERTY_MESSAGE_REPLY_TO_CLIENT)
        waiting = self._producer(requester) if requester is not None else None
        stored_header = self._stored(draft)
        if requester is None:
            return self._failed(
                request, "reply message properties[REPLY_TO_CLIENT] is null", stored_header
            )
        if waiting is None:
            remark = f"push reply message fail, channel of <{requester}> not found."
            return self._failed(request, remark, stored_header)
        properties[PROPERTY_PUSH_REPLY_TIME] = str(self.clock.now_ms())
        push = self._push(channel, header, draft, properties)

        def answered(answer: RemotingCommand | None) -> None:
            pushed = answer is not None and answer.code == ResponseCode.SUCCESS
            response = (
                RemotingCommand.response_to(
                    request, header=stored_header or self._response_header("0", draft.queue_id, 0)
                )
                if pushed
                else self._failed(request, f"push reply message to {requester}fail.", stored_header)
            )
            if not request.is_oneway:
                channel.write(encode_command(response))

        try:
            self.calls.call(waiting, push, answered)
        except RequestRejectedError as refusal:
            return self._failed(request, str(refusal.remark), stored_header)
        return None

    def _stored(self, draft: OutgoingMessage) -> SendMessageResponseHeader | None:
        """Store the reply and return where it is in the log, or None if it is not stored."""
        if not (
            self.identity.broker_settings.store_reply_message_enable and self.messages.has_room
        ):
            return None
        (result,) = self.messages.submit([draft], lambda _status: None)
        if result.status is not PutMessageStatus.PUT_OK:
            return None
        message_id = offset_msg_id(self.identity.store_host, result.physical_offsets[0])
        return self._response_header(message_id, draft.queue_id, result.queue_offset)

    def _response_header(
        self, message_id: str, queue_id: int, queue_offset: int
    ) -> SendMessageResponseHeader:
        broker = self.identity.broker_settings
        return SendMessageResponseHeader(
            msg_id=message_id,
            queue_id=queue_id,
            queue_offset=queue_offset,
            trace_on=broker.trace_on,
            msg_region=broker.region_id,
        )

    def _producer(self, client_id: str) -> Channel | None:
        """Return the open connection of the producer with this client id, or None."""
        for members in self.clients.producer_groups.values():
            for channel, client in members.items():
                if client.client_id == client_id and not channel.closed:
                    return channel
        return None

    def _push(
        self,
        channel: Channel,
        header: AnySendHeader,
        draft: OutgoingMessage,
        properties: dict[str, str],
    ) -> RemotingCommand:
        pushed = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_java_properties(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=host_and_port(*channel.peer),
            store_host=self.identity.address,
            store_timestamp=self.clock.now_ms(),
        )
        return RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, bytes(draft.body)
        )

    def _failed(
        self, request: RemotingCommand, remark: str, stored_header: SendMessageResponseHeader | None
    ) -> RemotingCommand:
        code = ResponseCode.SYSTEM_ERROR
        response = RemotingCommand.response_to(request, code, remark, header=stored_header)
        if stored_header is None:
            broker = self.identity.broker_settings
            response.ext_fields = {
                MSG_REGION: broker.region_id,
                TRACE_ON: "true" if broker.trace_on else "false",
            }
        return response
