"""Queries of tools about topics, groups and clients: codes 202 to 204, 208, 300, 303, 314, 317,
321 and 328.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.state.clients import Client, ClientTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.statistics import Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.config.keys import host_and_port
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    Connection,
    ConsumeQueueData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    MessageQueue,
    OffsetWrapper,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStatsTable,
)
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand, language_name
from rmqpy.remoting.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

UNITS_MAX: Final = 1_000
"""The limit on the units in one answer to QUERY_CONSUME_QUEUE; Java has no limit."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class StatsQueryProcessor:
    """The processor of queries about topics, groups and clients."""

    identity: BrokerContext
    topics: TopicTable
    clients: ClientTable
    offsets: ConsumerOffsetTable
    statistics: Statistics
    queues: MessageReader
    groups: SubscriptionGroupTable
    clock: Clock

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_QUEUE: self.queue_units,
        }

    def queue_units(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with units of a consume queue. If the request names a consumer group, the answer
        also contains its subscription, or the remark that it is not online.
        """
        header = QueryConsumeQueueRequestHeader.decode(request.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        end = self.queues.max_queue_offset(topic, queue_id)
        if end <= 0:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!"
            )
        body = QueryConsumeQueueResponseBody(
            max_queue_index=end, min_queue_index=self.queues.min_queue_offset(topic, queue_id)
        )
        if header.consumer_group is not None:
            self._add_subscription(body, header.consumer_group, topic)
        if not body.min_queue_index <= header.index < end:
            return RemotingCommand.response_to(
                request, remark=f"Index {header.index} of {queue_id}@{topic} is not exist!"
            )
        count = max(0, min(header.count, UNITS_MAX))
        body.queue_data = [
            ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=tags_code)
            for offset, size, tags_code in self.queues.queue_units(
                topic, queue_id, header.index, count
            )
        ]
        return RemotingCommand.response_to(request, body=body.encode())

    def _add_subscription(
        self, body: QueryConsumeQueueResponseBody, group: str, topic: str
    ) -> None:
        online = self.clients.consumer_group(group)
        body.subscription_data = online.subscriptions.get(topic) if online is not None else None
        if body.subscription_data is None:
            body.filter_data = f"{group}@{topic} is not online!"
        else:
            body.filter_data = "null"

    def topic_stats(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = GetTopicStatsInfoRequestHeader.decode(request.ext_fields).topic
        config = self.topics.get(topic)
        if config is None:
            raise RequestRejectedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        table = {
            self._queue(topic, queue_id): self._topic_offset(topic, queue_id)
            for queue_id in range(queue_nums)
        }
        return RemotingCommand.response_to(request, body=TopicStatsTable(table).encode())

    def consume_stats(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetConsumeStatsRequestHeader.decode(request.ext_fields)
        group = header.consumer_group
        stats = ConsumeStats()
        for topic in [header.topic] if header.topic else self.offsets.topics_of(group):
            config = self.topics.get(topic)
            if config is None or not self._subscribes(group, topic):
                continue
            stats.consume_tps += self.statistics.group_rate(group, topic)
            self._add_positions(stats, group, config)
        return RemotingCommand.response_to(request, body=stats.encode())

    def broker_consume_stats(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with a ConsumeStats per topic for every group that has offsets on this broker."""
        ordered_only = GetConsumeStatsInBrokerHeader.decode(request.ext_fields).is_order
        stats = ConsumeStatsList(broker_addr=self.identity.address)
        for group in self.groups.groups:
            of_group = []
            for topic in self.offsets.topics_of(group):
                config = self.topics.get(topic)
                if config is None or (ordered_only and not config.order):
                    continue
                if not self._subscribes(group, topic):
                    continue
                one = ConsumeStats(consume_tps=self.statistics.group_rate(group, topic))
                self._add_positions(one, group, config)
                of_group.append(one)
                stats.total_diff += sum(
                    each.broker_offset - each.consumer_offset for each in one.offset_table.values()
                )
            stats.consume_stats_list.append({group: of_group})
        return RemotingCommand.response_to(request, body=stats.encode())

    def time_spans(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with the store times of the first, last and last consumed
        message of each queue.
        """
        header = QueryConsumeTimeSpanRequestHeader.decode(request.ext_fields)
        config = self.topics.get(header.topic)
        if config is None:
            raise RequestRejectedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist"
            )
        spans = [
            self._time_span(header.group, header.topic, queue_id)
            for queue_id in range(config.write_queue_nums)
        ]
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return RemotingCommand.response_to(request, body=body.encode())

    def _time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        queues = self.queues
        begin = queues.min_queue_offset(topic, queue_id)
        end = queues.max_queue_offset(topic, queue_id)
        consumed = self.offsets.get(group, topic, queue_id)
        first_ms = queues.store_timestamp_at(topic, queue_id, begin)
        span = QueueTimeSpan(
            self._queue(topic, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=queues.store_timestamp_at(topic, queue_id, end - 1),
            consume_time_stamp=first_ms,
        )
        if consumed > 0:
            span.consume_time_stamp = queues.store_timestamp_at(topic, queue_id, consumed - 1)
        if consumed < end:
            next_ms = queues.store_timestamp_at(topic, queue_id, max(consumed, begin))
            span.delay_time = self.clock.now_ms() - next_ms
        span.min_time_stamp_str = _java_date(span.min_time_stamp)
        span.max_time_stamp_str = _java_date(span.max_time_stamp)
        span.consume_time_stamp_str = _java_date(span.consume_time_stamp)
        return span

    def groups_of_topic(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = QueryTopicConsumeByWhoRequestHeader.decode(request.ext_fields).topic
        groups = {*self.clients.consumers_of(topic), *self.offsets.groups_of(topic)}
        return RemotingCommand.response_to(request, body=GroupList(sorted(groups)).encode())

    def consumer_connections(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        name = GetConsumerConnectionListRequestHeader.decode(request.ext_fields).consumer_group
        group = self.clients.consumer_group(name)
        if group is None:
            raise RequestRejectedError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = ConsumerConnection(
            connection_set=[_connection(*member) for member in group.members.items()],
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return RemotingCommand.response_to(request, body=body.encode())

    def producer_connections(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        group = GetProducerConnectionListRequestHeader.decode(request.ext_fields).producer_group
        members = self.clients.producers(group)
        if not members:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist"
            )
        body = ProducerConnection([_connection(*member) for member in members.items()])
        return RemotingCommand.response_to(request, body=body.encode())

    def all_producers(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        data = {
            group: [_producer(*member) for member in members.items()]
            for group, members in self.clients.producer_groups.items()
        }
        return RemotingCommand.response_to(request, body=ProducerTableInfo(data).encode())

    def clone_offsets(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Copy the offsets of one group to another, for one topic or for all topics that the group
        has read.
        """
        header = CloneGroupOffsetRequestHeader.decode(request.ext_fields)
        source, target = header.src_group, header.dest_group
        named_topic = (header.topic or "").strip()
        for topic in [named_topic] if named_topic else self.offsets.topics_of(source):
            if topic in self.topics and (header.offline or self._subscribes(source, topic)):
                for queue_id, offset in list(self.offsets.queues(source, topic).items()):
                    self.offsets.commit(target, topic, queue_id, offset)
        return RemotingCommand.response_to(request)

    def _subscribes(self, group: str, topic: str) -> bool:
        """Return whether a group still reads a topic: if online, it must subscribe to it."""
        online = self.clients.consumer_group(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    def _add_positions(self, stats: ConsumeStats, group: str, config: TopicConfig) -> None:
        topic = config.topic_name
        for queue_id in range(config.read_queue_nums):
            consumed = max(0, self.offsets.get(group, topic, queue_id))
            timestamp_ms = 0
            if consumed > 0:
                timestamp_ms = self.queues.store_timestamp_at(topic, queue_id, consumed - 1)
            stats.offset_table[self._queue(topic, queue_id)] = OffsetWrapper(
                broker_offset=self.queues.max_queue_offset(topic, queue_id),
                consumer_offset=consumed,
                last_timestamp=max(0, timestamp_ms),
            )

    def _topic_offset(self, topic: str, queue_id: int) -> TopicOffset:
        end = self.queues.max_queue_offset(topic, queue_id)
        timestamp_ms = self.queues.store_timestamp_at(topic, queue_id, end - 1) if end else 0
        return TopicOffset(
            min_offset=max(0, self.queues.min_queue_offset(topic, queue_id)),
            max_offset=end,
            last_update_timestamp=max(0, timestamp_ms),
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.identity.name, queue_id)


def _connection(channel: Channel, client: Client) -> Connection:
    return Connection(
        client_id=client.client_id,
        client_addr=host_and_port(*channel.peer),
        language=language_name(client.language),
        version=client.version,
    )


def _producer(channel: Channel, client: Client) -> ProducerInfo:
    return ProducerInfo(
        client_id=client.client_id,
        remote_ip=f"/{host_and_port(*channel.peer)}",
        language=language_name(client.language),
        version=client.version,
        last_update_timestamp=client.updated_wall_ms,
    )


def _java_date(timestamp_ms: int) -> str:
    """Format a time as ``yyyy-MM-dd#HH:mm:ss:SSS`` in local time."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"
