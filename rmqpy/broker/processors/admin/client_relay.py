"""Requests of administrators to consumers, relayed by the broker: codes 222, 223, 307 and 309.

=====  ==========================  =============================================================
code   to clients                  what the broker does
=====  ==========================  =============================================================
222    220 RESET_CONSUMER_         calculates the new offsets and sends them to every member; its
       CLIENT_OFFSET, one-way      own table changes when the members commit
223    221 GET_CONSUMER_STATUS     requests the tables of one member or all, and combines them
307    307, as received            relays it to one member and returns the answer
309    309, with the message       the same
=====  ==========================  =============================================================
"""

from __future__ import annotations

from functools import partial
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.state.client_calls import ClientRequests
from rmqpy.broker.state.clients import Client, ClientTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.codec.message import parse_offset_msg_id
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    GetConsumerStatusBody,
    MessageQueue,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import LANGUAGE_CPP, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)

STATUS_TIMEOUT_MS: Final = 5_000
TO_THE_END: Final = -1
"""The timestamp that means the end of the queue."""
RESET_SINCE_VERSION: Final = 28
"""V3_0_7_SNAPSHOT: clients from this version on understand 220 and 221."""
ASKED_SINCE_VERSION: Final = 62
"""V3_1_8_SNAPSHOT: clients from this version on understand 307 and 309."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class ClientRelayProcessor:
    """The processor of requests of administrators to consumers."""

    identity: BrokerContext
    topics: TopicTable
    clients: ClientTable
    offsets: ConsumerOffsetTable
    queues: MessageReader
    calls: ClientRequests

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # Code 222

    def reset_offset(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ResetOffsetRequestHeader.decode(request.ext_fields)
        offsets = self._new_offsets(header)
        members = self._members(header.group)
        if not members:
            raise RequestRejectedError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: "
                f"{header.topic} Timestamp: {header.timestamp}",
            )
        for client in members.values():
            _check_version(client, RESET_SINCE_VERSION)
        body = ResetOffsetBody(offset_table=offsets).encode()
        notice_body = body
        if request.language == LANGUAGE_CPP:
            rows = [
                MessageQueueForC(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in offsets.items()
            ]
            notice_body = ResetOffsetBodyForC(offset_table=rows).encode()
        for channel in members:
            notice = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ResetOffsetRequestHeader(
                    topic=header.topic,
                    group=header.group,
                    timestamp=header.timestamp,
                    is_force=False,
                ),
                notice_body,
            )
            self.calls.tell(channel, notice)
        return RemotingCommand.response_to(request, body=body)

    def _new_offsets(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        topic = header.topic
        config = self.topics.get(topic)
        if config is None:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}",
            )
        table = {}
        for queue_id in range(config.write_queue_nums):
            committed = self.offsets.get(header.group, topic, queue_id)
            if committed < 0:
                raise RequestRejectedError(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            requested = (
                self.queues.max_queue_offset(topic, queue_id)
                if header.timestamp == TO_THE_END
                else self.queues.offset_by_time(topic, queue_id, header.timestamp)
            )
            chosen = max(0, requested) if header.is_force or requested < committed else committed
            table[MessageQueue(topic, self.identity.name, queue_id)] = chosen
        return table

    # Code 223

    def consumer_status(self, channel: Channel, request: RemotingCommand) -> None:
        header = GetConsumerStatusRequestHeader.decode(request.ext_fields)
        members = self._members(header.group)
        if not members:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        client_id = (header.client_addr or "").strip()
        targets = {
            member: client
            for member, client in members.items()
            if not client_id or client.client_id == client_id
        }
        for client in targets.values():
            _check_version(client, RESET_SINCE_VERSION)
        found = GetConsumerStatusBody()
        waiting = set(targets)

        def answered(member: Channel, answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
                try:
                    table = GetConsumerStatusBody.decode(answer.body).message_queue_table
                    found.consumer_table[targets[member].client_id] = table
                except RequestRejectedError:
                    pass  # an unreadable answer is ignored, as in Java
            waiting.discard(member)
            if not waiting:
                reply()

        def reply() -> None:
            response = RemotingCommand.response_to(request, body=found.encode())
            if not request.is_oneway:
                channel.write(encode_command(response))

        if not targets:
            reply()
        for member in targets:
            question = RemotingCommand.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                GetConsumerStatusRequestHeader(topic=header.topic, group=header.group),
            )
            self.calls.call(member, question, partial(answered, member), STATUS_TIMEOUT_MS)

    # Codes 307 and 309

    def running_info(self, channel: Channel, request: RemotingCommand) -> None:
        header = GetConsumerRunningInfoRequestHeader.decode(request.ext_fields)
        question = RemotingCommand(request.code, ext_fields=dict(request.ext_fields))
        question.body = request.body
        self._relay(channel, request, question, (header.consumer_group, header.client_id))

    def consume_directly(self, channel: Channel, request: RemotingCommand) -> None:
        header = ConsumeMessageDirectlyResultRequestHeader.decode(request.ext_fields)
        try:
            _, offset = parse_offset_msg_id(header.msg_id or "")
        except ValueError as error:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        record = self.queues.message_at(offset)
        if record is None:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, f"no message at offset {offset}")
        question = RemotingCommand(request.code, ext_fields=dict(request.ext_fields))
        question.ext_fields["brokerName"] = self.identity.name
        question.body = bytes(record)
        self._relay(channel, request, question, (header.consumer_group, header.client_id or ""))

    def _relay(
        self,
        channel: Channel,
        request: RemotingCommand,
        question: RemotingCommand,
        target: tuple[str, str],
    ) -> None:
        """Send the request to the client (group, id) and return its answer to the administrator."""
        group, client_id = target
        member = self._member(group, client_id)

        def answered(answer: RemotingCommand | None) -> None:
            if answer is None:
                response = RemotingCommand.response_to(
                    request,
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"consumer <{group}> <{client_id}> Timeout",
                )
            else:
                response = RemotingCommand.response_to(
                    request, answer.code, answer.remark, body=answer.body
                )
                response.ext_fields = answer.ext_fields
            if not request.is_oneway:
                channel.write(encode_command(response))

        self.calls.call(member, question, answered)

    def _member(self, group: str, client_id: str) -> Channel:
        for channel, client in self._members(group).items():
            if client.client_id == client_id:
                if client.version < ASKED_SINCE_VERSION:
                    raise RequestRejectedError(
                        ResponseCode.SYSTEM_ERROR,
                        f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                        "please upgrade it to V3_1_8_SNAPSHOT",
                    )
                return channel
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
        )

    def _members(self, group: str) -> dict[Channel, Client]:
        online = self.clients.consumer_group(group)
        return dict(online.members) if online is not None else {}


def _check_version(client: Client, since: int) -> None:
    if client.version < since:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={client.version}",
        )
