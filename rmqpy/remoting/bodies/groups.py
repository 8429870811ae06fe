"""Consumer groups, and the tables about them that a broker stores under config/."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.remoting.body import REQUEST_BYTES_MAX, Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, eq=False, repr=False)
class SubscriptionGroupConfig(Body):
    """A consumer group on a broker, and the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""

    BYTES_MAX = REQUEST_BYTES_MAX

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True


@lazy_define()
class SubscriptionGroupWrapper(Body):
    """The response body of GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), and
    config/subscriptionGroup.json.
    """

    data_version: DataVersion
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(factory=dict)


@lazy_define()
class ConsumerOffsetSerializeWrapper(Body):
    """The response body of GET_ALL_CONSUMER_OFFSET (43), and config/consumerOffset.json.

    ``offset_table`` maps ``topic@group`` to queue id to offset. Only 5.x writes ``data_version``.
    """

    offset_table: dict[str, dict[int, Int64]] = field(factory=dict)
    data_version: DataVersion | None = None


@lazy_define()
class DelayOffsetSerializeWrapper(Body):
    """The response body of GET_ALL_DELAY_OFFSET (45), and config/delayOffset.json.

    ``offset_table`` maps a delay level to the offset in its queue. Only 5.x writes
    ``data_version``.
    """

    offset_table: dict[int, Int64] = field(factory=dict)
    data_version: DataVersion | None = None


@lazy_define()
class LmqOffsetSerializeWrapper(Body):
    """The content of config/lmqConsumerOffset.json: ``%LMQ%queue@group`` to offset."""

    lmq_offset_table: dict[str, Int64] = field(factory=dict)


@lazy_define()
class BloomFilterData(Body):
    bit_pos: tuple[int, ...] = ()
    bit_num: int = 0


@lazy_define()
class ConsumerFilterData(Body):
    """A SQL92 subscription. Java derives ``dead`` from the other fields and writes it."""

    consumer_group: str
    topic: str
    expression: str | None = None
    expression_type: str | None = None
    born_time: Int64 = 0
    dead_time: Int64 = 0
    dead: bool = False
    bloom_filter_data: BloomFilterData | None = None
    client_version: Int64 = 0


@lazy_define()
class FilterDataMapByTopic(Body):
    topic: str
    group_filter_data: dict[str, ConsumerFilterData] = field(factory=dict)


@lazy_define()
class ConsumerFilterWrapper(Body):
    """The content of config/consumerFilter.json."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(factory=dict)
