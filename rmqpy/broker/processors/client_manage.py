"""Heartbeats and group membership: codes 34, 35, 38, 41, 42 and 46, and the notice 40 to the
members of a group.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from attrs import define, field

from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.filter.tags import FilterSyntaxError, is_tag_expression
from rmqpy.broker.state.clients import (
    Client,
    ClientTable,
    ConsumerGroup,
    StandIn,
    check_client_id,
)
from rmqpy.broker.state.consumer_filters import ConsumerFilterTable, compile_filter, filter_refusal
from rmqpy.broker.state.known_heartbeats import KnownHeartbeats
from rmqpy.broker.state.queue_locks import QueueLock, QueueLockTable
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    GetConsumerListByGroupRequestHeader,
    GetConsumerListByGroupResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
    UnregisterClientResponseHeader,
)

TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION = 2
KNOWN_LOCK_BYTES_MAX: Final = 4096
"""The maximum size of a request to lock or unlock queues that is remembered for its connection."""


@define(slots=True, eq=False, repr=False)
class _KnownLock:
    """The body of the last request to lock or unlock queues, which clients repeat every 20 s; the
    locks if all were granted, and the answer then.
    """

    body: bytes
    requested: LockBatchRequestBody
    is_checked: bool = False
    locks: Sequence[QueueLock] = ()
    all_granted: bytes = b""


@define(slots=True, frozen=True, eq=False, repr=False)
class HeartbeatProcessor:
    """The processor of heartbeats, membership queries and queue locks, which also notifies groups
    of changes.
    """

    clock: Clock
    clients: ClientTable
    topics: TopicTable
    groups: SubscriptionGroupTable
    locks: QueueLockTable
    filters: ConsumerFilterTable
    known: KnownHeartbeats
    _known_locks: MutableMapping[Channel, _KnownLock] = field(factory=WeakKeyDictionary, init=False)

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if self.known.renew(channel, request):
            return RemotingCommand.response_to(request)
        data = HeartbeatData.decode(request.body)
        check_client_id(data.client_id)
        for consumer in data.consumer_data_set:
            names.check_group(consumer.group_name)
            for subscription in consumer.subscription_data_set:
                names.check_topic(subscription.topic)
        for producer in data.producer_data_set:
            names.check_group(producer.group_name)
        for consumer in data.consumer_data_set:
            self._prepare_group(consumer)
            self.clients.register_consumer(consumer, channel, self._client(data, request))
            self.filters.register(consumer.group_name, consumer.subscription_data_set)
        for producer in data.producer_data_set:
            self.clients.register_producer(
                producer.group_name, channel, self._client(data, request)
            )
        if not isinstance(channel, StandIn):
            self.clients.drop_stand_in(data.client_id)
        self.known.remember(channel, request, data)
        return RemotingCommand.response_to(request)

    def unregister(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientRequestHeader.decode(request.ext_fields)
        if header.producer_group is not None:
            self.clients.unregister_producer(header.producer_group, channel)
        if header.consumer_group is not None:
            self.clients.unregister_consumer(header.consumer_group, channel)
        return RemotingCommand.response_to(request, header=UnregisterClientResponseHeader())

    def consumer_list(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
        group = self.clients.consumer_group(header.consumer_group)
        if group is None:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer of group {header.consumer_group} is online",
            )
        return RemotingCommand.response_to(
            request, header=GetConsumerListByGroupResponseHeader(), body=group.id_list
        )

    def lock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        known = self._known_lock(channel, request.body)
        requested = known.requested
        if not known.is_checked:
            _check_lock(requested)
            known.is_checked = True
        group, client_id, queues = requested.consumer_group, requested.client_id, requested.mq_set
        if not known.locks or not self.locks.renew(known.locks, client_id):
            granted = self.locks.lock(group, client_id, queues)
            body = LockBatchResponseBody(lock_ok_mq_set=granted).encode()
            if len(granted) < len(queues):
                known.locks = ()
                return RemotingCommand.response_to(request, body=body)
            known.locks, known.all_granted = self.locks.held(group, queues), body
        return RemotingCommand.response_to(request, body=known.all_granted)

    def _known_lock(self, channel: Channel, body: bytes) -> _KnownLock:
        known = self._known_locks.get(channel)
        if known is None or known.body != body:
            known = _KnownLock(body, LockBatchRequestBody.decode(body))
            if len(body) <= KNOWN_LOCK_BYTES_MAX:
                self._known_locks[channel] = known
        return known

    def unlock(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        requested = self._known_lock(channel, request.body).requested
        self.locks.unlock(requested.consumer_group, requested.client_id, requested.mq_set)
        return RemotingCommand.response_to(request)

    def check_client(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Check whether this broker understands the filter expression of a client."""
        subscription = CheckClientRequestBody.decode(request.body).subscription_data
        expression_type = subscription.expression_type
        if not is_tag_expression(expression_type):
            if not self.groups.identity.broker_settings.enable_property_filter:
                raise RequestRejectedError(
                    ResponseCode.SYSTEM_ERROR, filter_refusal(expression_type)
                )
            try:
                compile_filter(expression_type, subscription.sub_string)
            except FilterSyntaxError as fault:
                raise RequestRejectedError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(fault)
                ) from fault
        return RemotingCommand.response_to(request)

    def notify(self, group: ConsumerGroup) -> None:
        """Notify every member that the group has changed, unless the group or the broker has
        switched this off (``notifyConsumerIdsChangedEnable``).
        """
        if not group.members:
            self.filters.mark_dead(group.name)
        config = self.groups.get(group.name)
        wanted = config is None or config.notify_consumer_ids_changed_enable
        if not (wanted and self.groups.identity.broker_settings.notify_consumer_ids_changed_enable):
            return
        notice = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            NotifyConsumerIdsChangedRequestHeader(consumer_group=group.name),
        )
        notice.flag |= FLAG_ONEWAY
        frame = encode_command(notice)
        for channel in group.members:
            channel.write(frame)

    def _prepare_group(self, consumer: ConsumerData) -> None:
        config = self.groups.find_or_create(consumer.group_name)
        if config is not None:
            self.topics.create_for_group(
                names.retry_topic(consumer.group_name),
                config.retry_queue_nums,
                TOPIC_FLAG_HAS_UNIT_SUBSCRIPTION if consumer.unit_mode else 0,
            )

    def _client(self, data: HeartbeatData, request: RemotingCommand) -> Client:
        return Client(
            data.client_id,
            request.language,
            request.version,
            self.clock.monotonic_ms(),
            self.clock.now_ms(),
        )


def _check_lock(requested: LockBatchRequestBody) -> None:
    """Raise RequestRejectedError if a name is invalid or too long."""
    check_client_id(requested.client_id)
    names.check_group(requested.consumer_group)
    for queue in requested.mq_set:
        names.check_topic(queue.topic)
        _check_broker_name(queue.broker_name)


def _check_broker_name(name: str) -> None:
    """Raise RequestRejectedError if a broker name is too long: it is a key of the lock table, which
    must stay small. Dots are allowed, because the name is often a host name.
    """
    if len(name) > names.GROUP_LENGTH_MAX:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            f"a broker name of {len(name)} characters is longer than {names.GROUP_LENGTH_MAX}",
        )
