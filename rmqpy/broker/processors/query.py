"""Reading without a subscription: codes 12, 29, 30, 31, 32 and 33."""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.model import names
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from rmqpy.store.results import QueryMessageResult

FOUND_LIMIT: Final = 64
"""The maximum number of messages in one answer to a query by key."""
BODY_LIMIT: Final = 8 << 20
"""The maximum size of the messages in such an answer, in bytes; the first message is included
whatever its size.
"""
NOTHING_FOUND: Final = "can not find message, maybe time range not correct"


@define(slots=True, frozen=True, eq=False, repr=False)
class QueryProcessor:
    """The processor of queries of offsets, times and messages."""

    identity: BrokerContext
    queues: MessageReader

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = QueryMessageRequestHeader.decode(request.ext_fields)
        max_count = header.max_num
        if header.unique_key_query:
            max_count = self.identity.store.default_query_max_num
        found = self.queues.query_message(
            header.topic,
            header.key,
            max(0, min(max_count, FOUND_LIMIT)),
            header.begin_timestamp,
            header.end_timestamp,
        )
        is_found = bool(found.messages)
        if not is_found:
            found = QueryMessageResult()
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS if is_found else ResponseCode.QUERY_NOT_FOUND,
            None if is_found else NOTHING_FOUND,
            header=QueryMessageResponseHeader(
                index_last_update_timestamp=found.index_last_update_timestamp_ms,
                index_last_update_phyoffset=found.index_last_update_physical_offset,
            ),
            body=b"".join(_fitting(found.messages)),
        )

    def view(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewMessageRequestHeader.decode(request.ext_fields)
        record = self.queues.message_at(header.offset)
        if record is None:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"no message starts at offset {header.offset}"
            )
        return RemotingCommand.response_to(request, body=bytes(record))

    def search_offset(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        names.check_topic(header.topic)
        offset = self.queues.offset_by_time(header.topic, header.queue_id, header.timestamp)
        return RemotingCommand.response_to(
            request, header=SearchOffsetResponseHeader(offset=offset)
        )

    def max_offset(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        names.check_topic(header.topic)
        offset = self.queues.max_queue_offset(header.topic, header.queue_id)
        return RemotingCommand.response_to(
            request, header=GetMaxOffsetResponseHeader(offset=offset)
        )

    def min_offset(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        names.check_topic(header.topic)
        offset = self.queues.min_queue_offset(header.topic, header.queue_id)
        return RemotingCommand.response_to(
            request, header=GetMinOffsetResponseHeader(offset=offset)
        )

    def earliest_time(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with the store time of the queue's first message, or -1 if it has none."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(request.ext_fields)
        names.check_topic(header.topic)
        first = self.queues.min_queue_offset(header.topic, header.queue_id)
        timestamp = self.queues.store_timestamp_at(header.topic, header.queue_id, first)
        return RemotingCommand.response_to(
            request, header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp)
        )


def _fitting(messages: list[memoryview]) -> list[memoryview]:
    """Return the messages that fit into one answer."""
    size = 0
    for number, message in enumerate(messages):
        size += len(message)
        if size > BODY_LIMIT and number:
            return messages[:number]
    return messages
