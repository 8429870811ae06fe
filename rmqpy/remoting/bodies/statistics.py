"""Response bodies of administration: offsets, rates, contents of queues, and access control."""

from __future__ import annotations

from attrs import field

from rmqpy.remoting.bodies.clients import SubscriptionData
from rmqpy.remoting.bodies.queues import MessageQueue
from rmqpy.remoting.body import Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@lazy_define()
class TopicOffset(Body):
    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


@lazy_define()
class TopicStatsTable(Body):
    """The response body of GET_TOPIC_STATS_INFO (202)."""

    offset_table: dict[MessageQueue, TopicOffset] = field(factory=dict)


@lazy_define()
class OffsetWrapper(Body):
    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


@lazy_define()
class ConsumeStats(Body):
    """The response body of GET_CONSUME_STATS (208)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(factory=dict)
    consume_tps: float = 0.0


@lazy_define()
class ConsumeStatsList(Body):
    """The response body of GET_BROKER_CONSUME_STATS (317).

    Each item of ``consume_stats_list`` is a map with a single group.
    """

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(factory=list)
    broker_addr: str | None = None
    total_diff: Int64 = 0


@lazy_define()
class QueueTimeSpan(Body):
    """The time span of a queue, in ms. The ``…_str`` members are in the broker's local time."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


@lazy_define()
class QueryConsumeTimeSpanBody(Body):
    """The response body of QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = field(factory=list)


@lazy_define()
class QueryCorrectionOffsetBody(Body):
    """The response body of QUERY_CORRECTION_OFFSET (308): queue id to offset."""

    correction_offsets: dict[int, Int64] = field(factory=dict)


@lazy_define()
class BrokerStatsItem(Body):
    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


@lazy_define()
class BrokerStatsData(Body):
    """The response body of VIEW_BROKER_STATS_DATA (315)."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


@lazy_define()
class ConsumeQueueData(Body):
    """A consume queue unit. ``physic_offset`` is the physical offset of its message."""

    physic_offset: Int64 = 0
    physic_size: int = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@lazy_define()
class QueryConsumeQueueResponseBody(Body):
    """The response body of QUERY_CONSUME_QUEUE (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


@lazy_define()
class PlainAccessConfig(Body):
    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


@lazy_define()
class AclConfig(Body):
    """The response body of GET_BROKER_CLUSTER_ACL_CONFIG (54)."""

    global_white_addrs: list[str] | None = None
    plain_access_configs: list[PlainAccessConfig] | None = None
