"""The requests common to all consumers: pull, read and commit offsets, look up messages.

======  ===================  ==================================================================
code    status               what the caller does next
======  ===================  ==================================================================
0       FOUND                pulls at ``next_begin_offset`` after it has handled the messages
19      NO_NEW_MSG           pulls at the same offset again (long polling: at once)
20      NO_MATCHED_MSG       pulls at ``next_begin_offset``: everything before was filtered out
21      OFFSET_ILLEGAL       pulls at ``next_begin_offset``: its offset was outside the queue
other   (raises)             RequestRejectedError
======  ===================  ==================================================================

Brokers filter by the hash code of a tag. The exact tag is compared again here, so a result with
status FOUND may have no message.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from enum import Enum
from operator import itemgetter

from attrs import define

from rmqpy.client.core.group_member import GroupMember
from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.message import MessageExt, host_address, messages_of
from rmqpy.codec.backend import received_records
from rmqpy.codec.message import parse_offset_msg_id
from rmqpy.codec.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from rmqpy.codec.received import decode_records
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.model.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.message import slot_setter
from rmqpy.remoting.bodies import (
    EXPRESSION_TAG,
    ConsumerData,
    MessageQueue,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rmqpy.remoting.request_template import (
    TEMPLATES_MAX,
    RequestTemplate,
    TemplatedRequest,
    varying_fields,
)

logger = logging.getLogger(__name__)

SUBSCRIBE_ALL = "*"
_END_OF_TIME_MS = 2**63 - 1
_VARYING = varying_fields(
    PullMessageRequestHeader,
    ("queue_id", "queue_offset", "max_msg_nums", "sys_flag", "suspend_timeout_millis"),
)
"""The fields in which the pulls from one topic and broker with the same expression differ."""


_PULL_TEXTS = itemgetter("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
_SAFE_DIGITS = 18


class PullStatus(Enum):
    """The outcome of a pull (Java: PullStatus).

    * ``FOUND``: there may be messages; continue at ``next_begin_offset``.
    * ``NO_NEW_MSG``: the offset is the end of the queue; pull again at the same offset.
    * ``NO_MATCHED_MSG``: no message matched; continue at ``next_begin_offset``.
    * ``OFFSET_ILLEGAL``: the offset is outside the queue; continue at ``next_begin_offset``.
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUS_OF_CODE: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@define(frozen=True, kw_only=True)
class PullResult:
    """The result of one pull (Java: PullResult).

    ``next_begin_offset`` is the offset to pull next, ``min_offset`` the offset of the queue's first
    message, and ``max_offset`` the offset of its next message.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


_set_status = slot_setter(PullResult, "status")
_set_next = slot_setter(PullResult, "next_begin_offset")
_set_min = slot_setter(PullResult, "min_offset")
_set_max = slot_setter(PullResult, "max_offset")
_set_messages = slot_setter(PullResult, "messages")


def _pull_result(
    status: PullStatus, following: int, smallest: int, largest: int, messages: list[MessageExt]
) -> PullResult:
    """Return a result; the generated method takes twice as long."""
    result = object.__new__(PullResult)
    _set_status(result, status)
    _set_next(result, following)
    _set_min(result, smallest)
    _set_max(result, largest)
    _set_messages(result, messages)
    return result


@define(frozen=True, kw_only=True)
class PullSettings:
    """The settings of pulls. ``pull_timeout_ms`` is added to the time for which a broker may hold a
    pull. With ``read_ahead`` a pull consumer that reads a queue in sequence requests the next
    messages while the application handles the last ones.
    """

    pull_timeout_ms: int = 10_000
    read_ahead: bool = True


@define(kw_only=True)
class PullOrder:
    """The parameters of one pull; the broker may hold it for up to ``suspend_ms`` ms. It is created
    for each pull, which would take twice as long if it were frozen.
    """

    offset: int
    max_count: int = 32
    expression: str = SUBSCRIBE_ALL
    expression_type: str = EXPRESSION_TAG
    suspend_ms: int = 0


class Consumer(GroupMember):
    """A member of a consumer group; a subclass decides what it subscribes to."""

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        pulling: PullSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        super().__init__(group, name_servers, instance=instance)
        self._pulling = pulling or PullSettings()
        self._suggested: dict[MessageQueue, int] = {}
        self._templates: dict[tuple[str, str, str, str], RequestTemplate] = {}

    async def _join(self, instance: ClientInstance) -> None:
        instance.join_consumer(self.group, self._consumer_data)

    async def _leave(self, instance: ClientInstance) -> None:
        await instance.leave_consumer(self.group)

    @abstractmethod
    def _consumer_data(self) -> ConsumerData:
        """Return the data of this consumer that heartbeats carry."""

    # -- offsets

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that the queue still has."""
        header = GetMinOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._invoke_broker(queue, RequestCode.GET_MIN_OFFSET, header)
        return GetMinOffsetResponseHeader.decode(response.ext_fields).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that the queue will receive."""
        header = GetMaxOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._invoke_broker(queue, RequestCode.GET_MAX_OFFSET, header)
        return GetMaxOffsetResponseHeader.decode(response.ext_fields).offset

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message that was stored at ``timestamp_ms`` (ms since 1970), or
        of the message nearest to that time.
        """
        header = SearchOffsetRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            bname=queue.broker_name,
        )
        response = await self._invoke_broker(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return SearchOffsetResponseHeader.decode(response.ext_fields).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Return the store time of the queue's first message, in ms since 1970, or -1 if there is
        none.
        """
        header = GetEarliestMsgStoretimeRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker_name
        )
        response = await self._invoke_broker(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return GetEarliestMsgStoretimeResponseHeader.decode(response.ext_fields).timestamp

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group has committed, or None if it has committed none."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            bname=queue.broker_name,
        )
        try:
            response = await self._invoke_broker(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except RequestRejectedError as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return QueryConsumerOffsetResponseHeader.decode(response.ext_fields).offset

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit ``offset`` for the group; it may be larger or smaller than the current one.

        Returns after the broker has confirmed it. Raises RequestRejectedError if the broker refuses
        it, and NetworkError if the broker does not answer.
        """
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            bname=queue.broker_name,
        )
        await self._invoke_broker(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # -- messages

    async def _pull(self, queue: MessageQueue, order: PullOrder) -> PullResult:
        response = await self._pull_response(queue, order)
        return self._pulled(queue, order, response, self._numbers(queue, response))

    async def _pull_response(self, queue: MessageQueue, order: PullOrder) -> RemotingCommand:
        """Return the broker's response to a pull. Raises RequestRejectedError if its code has no
        ``PullStatus``.
        """
        instance = self._open()
        broker_id = self._broker_id(queue)
        address = instance.known_address(queue.broker_name, broker_id)
        if address is None:
            address = await instance.address(queue.topic, queue.broker_name, broker_id)
        timeout_ms = self._pulling.pull_timeout_ms + order.suspend_ms
        try:
            response = await instance.transport.invoke(
                address, self._pull_request(queue, order), timeout_ms
            )
        except NetworkError:
            self._pull_failed(instance, queue)
            raise
        if response.code not in _STATUS_OF_CODE:
            raise _refusal(response)
        return response

    def _pull_failed(self, instance: ClientInstance, queue: MessageQueue) -> None:
        """Send the next pull to the broker that the route then has."""
        instance.invalidate_route(queue.topic)
        self._suggested.pop(queue, None)

    def _pull_ahead(
        self, instance: ClientInstance, queue: MessageQueue, order: PullOrder
    ) -> Awaitable[RemotingCommand] | None:
        """Send a pull whose response may be awaited later, or never; None if it is not possible."""
        address = instance.known_address(queue.broker_name, self._broker_id(queue))
        if address is None:
            return None
        return instance.transport.invoke_ahead(
            address, self._pull_request(queue, order), self._pulling.pull_timeout_ms
        )

    def _broker_id(self, queue: MessageQueue) -> int:
        """Return the id of the broker from which to pull: the one that the last pull suggested."""
        return self._suggested.get(queue, MASTER_ID) if self._suggested else MASTER_ID

    def _pull_request(self, queue: MessageQueue, order: PullOrder) -> TemplatedRequest:
        key = queue.topic, queue.broker_name, order.expression, order.expression_type
        template = self._templates.get(key) or self._new_template(key)
        sys_flag = PULL_SUBSCRIPTION | (PULL_SUSPEND if order.suspend_ms else 0)
        values = queue.queue_id, order.offset, order.max_count, sys_flag, order.suspend_ms
        return TemplatedRequest(template, values, b"")

    def _new_template(self, key: tuple[str, str, str, str]) -> RequestTemplate:
        topic, broker_name, expression, expression_type = key
        header = PullMessageRequestHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=0,
            queue_offset=0,
            max_msg_nums=0,
            sys_flag=0,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=expression,
            sub_version=0,
            expression_type=expression_type,
            bname=broker_name,
        )
        while len(self._templates) >= TEMPLATES_MAX:
            del self._templates[next(iter(self._templates))]
        template = RequestTemplate(self._open().request(RequestCode.PULL_MESSAGE, header), _VARYING)
        self._templates[key] = template
        return template

    async def view_message(
        self, offset_msg_id: str, queue: MessageQueue | None = None
    ) -> MessageExt:
        """Return the message with an offset id (offsetMsgId).

        The request goes to the broker whose address is in the id, and the queue of the result then
        has no broker name. With ``queue`` it goes to the broker of that queue: a store that has
        moved to another address keeps the ids of its old one. Raises RequestRejectedError if the id
        is malformed or the broker has no such message.
        """
        try:
            host, physical_offset = parse_offset_msg_id(offset_msg_id)
        except ValueError as error:
            raise RequestRejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        header = ViewMessageRequestHeader(offset=physical_offset)
        if queue is not None:
            response = await self._invoke_broker(queue, RequestCode.VIEW_MESSAGE_BY_ID, header)
        else:
            response = await self._open().invoke(
                host_address(host), RequestCode.VIEW_MESSAGE_BY_ID, header
            )
        if response.code != ResponseCode.SUCCESS:
            raise _refusal(response)
        records, fault = decode_records(response.body)
        if len(records) != 1 or fault is not None:
            raise RemoteProtocolError(
                f"the response for {offset_msg_id} has {len(records)} messages, not one: {fault}"
            )
        stored = records[0]
        broker_name = queue.broker_name if queue is not None else ""
        return MessageExt(
            queue=MessageQueue(stored.topic, broker_name, stored.queue_id), stored=stored
        )

    async def query_by_key(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        *,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME_MS,
        unique: bool = False,
    ) -> list[MessageExt]:
        """Return the messages of ``topic`` that have ``key`` among their keys.

        With ``unique`` the key is the unique id of a message (UNIQ_KEY). ``begin_ms`` and
        ``end_ms`` limit the store times, in ms since 1970; each broker returns at most
        ``max_count`` messages, and so does the call. The request goes to all brokers of the topic;
        an error is raised only if none of them answers.
        """
        route = await self._open().route(topic)
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=max_count,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique,
        )
        names = sorted(broker.broker_name for broker in route.broker_datas)
        answers = await asyncio.gather(
            *(self._query_one(topic, name, header) for name in names), return_exceptions=True
        )
        found: list[MessageExt] = []
        faults: list[RmqError] = []
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, RmqError):
                logger.warning("looking up the key on broker %s failed: %s", name, answer)
                faults.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        if len(faults) == len(names) and faults:
            raise faults[0]
        return [each for each in found if _has_key(each, topic, key, unique)][:max_count]

    # -- helpers

    async def _query_one(
        self, topic: str, broker_name: str, header: QueryMessageRequestHeader
    ) -> list[MessageExt]:
        instance = self._open()
        address = await instance.address(topic, broker_name)
        response = await instance.invoke(address, RequestCode.QUERY_MESSAGE, header)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise _refusal(response)
        records, fault = decode_records(response.body)
        if fault is not None:
            raise RemoteProtocolError(f"a response of {address} has an invalid message: {fault}")
        return [
            MessageExt(
                queue=MessageQueue(record.topic, broker_name, record.queue_id), stored=record
            )
            for record in records
        ]

    def _numbers(self, queue: MessageQueue, response: RemotingCommand) -> tuple[int, int, int]:
        """Return the next, the smallest, and the largest offset of a pull, and keep the broker that
        it suggests for the next one.
        """
        broker_id, following, smallest, largest = _pull_numbers(response.ext_fields)
        if broker_id != MASTER_ID:
            self._suggested[queue] = broker_id
        elif self._suggested:
            self._suggested.pop(queue, None)
        return following, smallest, largest

    def _pulled(
        self,
        queue: MessageQueue,
        order: PullOrder,
        response: RemotingCommand,
        offsets: tuple[int, int, int],
    ) -> PullResult:
        next_begin_offset, min_offset, max_offset = offsets
        found, fault = received_records(response.body)
        if fault is not None:
            if not found.records:
                raise RemoteProtocolError(f"a pull of {queue} returned an invalid message: {fault}")
            logger.warning(
                "a pull of %s returned an invalid message; keeping the ones before it: %s",
                queue,
                fault,
            )
            next_begin_offset = found.queue_offsets[-1] + 1
        messages = messages_of(queue, found)
        if order.expression != SUBSCRIBE_ALL and order.expression_type == EXPRESSION_TAG:
            tags = exact_tags(order.expression)
            if tags is not None:
                messages = [each for each in messages if each.tags in tags]
        status = _STATUS_OF_CODE[response.code]
        return _pull_result(status, next_begin_offset, min_offset, max_offset, messages)

    async def _invoke_broker(
        self, queue: MessageQueue, code: RequestCode, header: CommandHeader
    ) -> RemotingCommand:
        """Return the response of the queue's master, or of another broker of that name if it is
        down.
        """
        instance = self._open()
        address = await instance.address(queue.topic, queue.broker_name)
        try:
            response = await instance.invoke(address, code, header)
        except NetworkError:
            instance.invalidate_route(queue.topic)
            raise
        if response.code != ResponseCode.SUCCESS:
            raise _refusal(response)
        return response


def exact_tags(expression: str) -> frozenset[str] | None:
    """Return the tags of a TAG expression, or None if it selects all messages.

    Raises RequestRejectedError with SUBSCRIPTION_PARSE_FAILED if the expression names no tag.
    """
    if not expression or expression == SUBSCRIBE_ALL:
        return None
    tags = frozenset(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise RequestRejectedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the expression {expression!r} names no tag"
        )
    return tags


def _has_key(message: MessageExt, topic: str, key: str, unique: bool) -> bool:
    # The index contains hashes, so messages with other keys of the same hash are returned too.
    if message.topic != topic:
        return False
    if unique:
        return message.properties.get(PROPERTY_UNIQ_KEY) == key
    return key in message.properties.get(PROPERTY_KEYS, "").split(" ")


def _pull_numbers(fields: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return the suggested broker id, and the next, the smallest, and the largest offset."""
    try:
        broker, following, smallest, largest = _PULL_TEXTS(fields)
        longest = max(len(broker), len(following), len(smallest), len(largest))
        if longest <= _SAFE_DIGITS and f"{broker}{following}{smallest}{largest}".isdecimal():
            return int(broker), int(following), int(smallest), int(largest)
    except (KeyError, ValueError):
        pass
    header = PullMessageResponseHeader.decode(fields)  # A rare number, or it raises.
    return (
        header.suggest_which_broker_id,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
    )


def _refusal(response: RemotingCommand) -> RequestRejectedError:
    return RequestRejectedError(response.code, response.remark or "no remark")
