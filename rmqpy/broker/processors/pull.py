"""Pulling: codes 11 and 361.

Checks in order; the first that fails determines the answer:

=== ===================================================================== ====
1   broker without R                                                        16
2   group unknown and not to be created                                     26
3   group may not consume                                                   16
4   topic unknown                                                           17
5   topic without R                                                         16
6   queue id not in the topic                                                1
7   expression of the request unreadable                                    23
8   group not online, topic not subscribed                                  24
9   group broadcasts and may not                                            16
10  subscription of the broker older than the request's                     25
11  no filter registered for an SQL92 expression, or an older one       27, 28
12  SQL92 expression while ``enablePropertyFilter`` is off                   1
=== ===================================================================== ====

The result of the store determines the code (``_CODES``). A pull that found nothing new may wait,
once (:mod:`rmqpy.broker.services.pull_hold`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.message_copy import encode_java_properties
from rmqpy.broker.base.store_api import HandlerTable, Matcher, MessageReader
from rmqpy.broker.filter.tags import is_tag_expression, matcher_of, matcher_of_expression
from rmqpy.broker.processors.slow_consumers import SlowConsumerGuard
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.services.pull_hold import HeldPullRequest, PullRequestHold
from rmqpy.broker.state.clients import ClientTable
from rmqpy.broker.state.consumer_filters import (
    ConsumerFilterTable,
    compile_filter,
    filter_refusal,
    record_filter,
)
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.statistics import Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.codec.properties import PROPERTY_DELAY, PROPERTY_KEYS, PROPERTY_TAGS
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.codes import GetMessageStatus, PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import (
    BORN_HOST_V6,
    PERM_READ,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    STORE_HOST_V6,
)
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.values import define
from rmqpy.remoting.bodies import MessageQueue, OffsetMovedEvent, SubscriptionGroupConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqpy.store.reader import RecordFilter
from rmqpy.store.results import GetMessageResult

_CODES: Final[dict[GetMessageStatus, ResponseCode]] = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

_EMPTY: Final = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
"""Results for a queue that has never held a message: the consumer starts at 0,
and no offset has moved.
"""


@define(slots=True, frozen=True)
class OffsetMoved:
    """A consumer's request for an offset that the queue does not have."""

    group: str
    topic: str
    queue_id: int
    requested: int
    new: int


@define(slots=True, frozen=True)
class PullFilter:
    """The filters of a reader: by the tags code of a unit, and by the record; None selects
    everything.
    """

    matcher: Matcher | None = None
    record_filter: RecordFilter | None = None


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class PullProcessor:
    """The processor of pulls; the module describes its checks."""

    identity: BrokerContext
    topics: TopicTable
    groups: SubscriptionGroupTable
    clients: ClientTable
    offsets: ConsumerOffsetTable
    filters: ConsumerFilterTable
    queues: MessageReader
    hold: PullRequestHold
    slow_readers: SlowConsumerGuard
    statistics: Statistics
    clock: Clock
    events: OffsetMovedEvents

    def handlers(self) -> HandlerTable:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def resume(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a pull that has waited (the second pass)."""
        return self.pull(channel, request, first=False)

    def pull(
        self, channel: Channel, request: RemotingCommand, first: bool = True
    ) -> RemotingCommand | None:
        """Answer a pull, or hold it and return None. Only the first pass may commit an offset or
        hold the pull.
        """
        header = PullMessageRequestHeader.decode(request.ext_fields)
        group = self._check(header)
        selection = self._selection(header, group)
        began_ms = self.clock.monotonic_ms()
        result = self.queues.get_message(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            selection.matcher,
            selection.record_filter,
        )
        self.statistics.messages_got(
            (header.consumer_group, header.topic),
            len(result.messages),
            self.clock.monotonic_ms() - began_ms,
            header.queue_id,
        )
        if self.identity.broker_settings.disable_consume_if_consumer_read_slowly:
            self.slow_readers.record_lag(
                header.consumer_group, header.topic, header.queue_id, result.behind_bytes
            )
        code = _CODES[result.status]
        if result.status in _EMPTY and header.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if first and header.sys_flag & PULL_COMMIT_OFFSET and not self.identity.is_slave:
            self.offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        suggestion = self._suggestion(result, group)
        # Code 20 with an offset after the messages found would make the consumer skip them.
        if code == ResponseCode.PULL_OFFSET_MOVED:
            code, suggestion = self._moved(header, result, suggestion)
        elif code == ResponseCode.PULL_NOT_FOUND and first and header.sys_flag & PULL_SUSPEND:
            if self._suspend(channel, request, header, selection):
                return None
        return RemotingCommand.response_to(
            request,
            code,
            result.status.value,
            PullMessageResponseHeader(
                suggest_which_broker_id=suggestion,
                next_begin_offset=result.next_begin_offset,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
            ),
            b"".join(result.messages) if code == ResponseCode.SUCCESS else b"",
        )

    # Checks

    def _check(self, header: PullMessageRequestHeader) -> SubscriptionGroupConfig:
        if not self.identity.is_readable:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"the broker {self.identity.host} may not be read"
                + (f": {self.identity.diverged}" if self.identity.diverged else ""),
            )
        group = self.groups.find_or_create(header.consumer_group)
        if group is None:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group {header.consumer_group} does not exist; create it first",
            )
        if not group.consume_enable:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"subscription group {header.consumer_group} may not consume",
            )
        topic = self.topics.get(header.topic)
        if topic is None:
            raise RequestRejectedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {header.topic} does not exist; create it first",
            )
        if not topic.perm & PERM_READ:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId {header.queue_id} is illegal: topic {header.topic} has "
                f"{topic.read_queue_nums} queues to read",
            )
        return group

    def _selection(
        self, header: PullMessageRequestHeader, config: SubscriptionGroupConfig
    ) -> PullFilter:
        if header.sys_flag & PULL_SUBSCRIPTION:
            return self._selection_of_request(header)
        group = self.clients.consumer_group(header.consumer_group)
        if group is None:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no consumer of group {header.consumer_group} is online",
            )
        if group.is_broadcast and not config.consume_broadcast_enable:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"subscription group {header.consumer_group} may not consume by broadcast",
            )
        subscription = group.subscription(header.topic)
        if subscription is None:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {header.consumer_group} does not subscribe to topic {header.topic}",
            )
        if subscription.sub_version < header.sub_version:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if is_tag_expression(subscription.expression_type):
            return PullFilter(matcher_of(subscription), self._wanted_retries(header))
        return self._registered(header, subscription.expression_type)

    def _selection_of_request(self, header: PullMessageRequestHeader) -> PullFilter:
        """Return the filter of the expression in the request itself."""
        try:
            if is_tag_expression(header.expression_type):
                return PullFilter(matcher_of_expression(header.subscription))
            expression = compile_filter(header.expression_type, header.subscription)
        except ValueError as error:
            raise RequestRejectedError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the subscription cannot be read: {error}",
            ) from error
        self._check_property_filter(header.expression_type)
        return PullFilter(record_filter=record_filter(expression))

    def _registered(
        self, header: PullMessageRequestHeader, expression_type: str | None
    ) -> PullFilter:
        """Return the filter that the last heartbeat registered."""
        found = self.filters.get(header.consumer_group, header.topic)
        if found is None:
            raise RequestRejectedError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.client_version < header.sub_version:
            raise RequestRejectedError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._check_property_filter(expression_type)
        return PullFilter(record_filter=record_filter(found.expression))

    def _wanted_retries(self, header: PullMessageRequestHeader) -> RecordFilter | None:
        if not self.identity.broker_settings.filter_support_retry:
            return None
        is_retry = names.is_retry_topic(header.topic)
        return self.filters.for_retries(header.consumer_group) if is_retry else None

    def _check_property_filter(self, expression_type: str | None) -> None:
        if not self.identity.broker_settings.enable_property_filter:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, filter_refusal(expression_type))

    def _wants(self, wanted: RecordFilter | None) -> Callable[[int], bool] | None:
        if wanted is None:
            return None

        def wants(physical_offset: int) -> bool:
            record = self.queues.message_at(physical_offset)
            return record is not None and wanted.matches(record)

        return wants

    # Outcome

    def _suspend(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: PullMessageRequestHeader,
        selection: PullFilter,
    ) -> bool:
        broker = self.identity.broker_settings
        wait_ms = (
            header.suspend_timeout_millis
            if broker.long_polling_enable
            else broker.short_polling_time_mills
        )
        pull = HeldPullRequest(
            channel,
            request,
            header.queue_offset,
            selection.matcher,
            self.clock.monotonic_ms() + wait_ms,
            self._wants(selection.record_filter),
        )
        return self.hold.hold(header.topic, header.queue_id, pull)

    def _suggestion(self, result: GetMessageResult, group: SubscriptionGroupConfig) -> int:
        if not self.identity.broker_settings.slave_read_enable:
            return MASTER_ID
        if result.suggest_pulling_from_slave:
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _moved(
        self, header: PullMessageRequestHeader, result: GetMessageResult, suggestion: int
    ) -> tuple[ResponseCode, int]:
        identity = self.identity
        if identity.is_slave and not identity.store.offset_check_in_slave:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, MASTER_ID
        self.events.write(
            OffsetMoved(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.queue_offset,
                result.next_begin_offset,
            )
        )
        return ResponseCode.PULL_OFFSET_MOVED, suggestion


IPV6_BYTES = 16

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, eq=False, repr=False)
class OffsetMovedEvents:
    """The writer of events about consumers that requested an offset which the queue does not
    have.
    """

    identity: BrokerContext
    messages: InternalMessageWriter
    clock: Clock

    def write(self, moved: OffsetMoved) -> None:
        body = OffsetMovedEvent(
            consumer_group=moved.group,
            message_queue=MessageQueue(moved.topic, self.identity.name, moved.queue_id),
            offset_request=moved.requested,
            offset_new=moved.new,
        ).encode()
        host = self.identity.store_host
        draft = OutgoingMessage(
            topic=names.OFFSET_MOVED_EVENT_TOPIC.encode(),
            queue_id=0,
            body=body,
            properties=encode_java_properties(
                {PROPERTY_TAGS: moved.group, PROPERTY_KEYS: moved.group, PROPERTY_DELAY: "0"}
            ),
            sys_flag=BORN_HOST_V6 | STORE_HOST_V6 if len(host[0]) == IPV6_BYTES else 0,
            born_timestamp_ms=self.clock.now_ms(),
            born_host=host,
            store_host=host,
            wait_store_ok=False,
        )

        def done(status: PutMessageStatus) -> None:
            if status is not PutMessageStatus.PUT_OK:
                logger.warning("the event %s was not stored: %s", moved, status.value)

        if self.messages.has_room:
            self.messages.submit([draft], done)
