"""Consumer groups and the tables that a broker keeps about them under config/."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.remoting.body import REQUEST_BYTES_MAX, Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, eq=False, repr=False)
class SubscriptionGroupConfig(Body):
    """One consumer group on one broker; body of code 200."""

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
    """Answer of code 201 and config/subscriptionGroup.json."""

    data_version: DataVersion
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(factory=dict)


@lazy_define()
class ConsumerOffsetSerializeWrapper(Body):
    """Answer of code 43 and config/consumerOffset.json: ``topic@group`` to queue id to offset.

    ``data_version`` is of 5.x.
    """

    offset_table: dict[str, dict[int, Int64]] = field(factory=dict)
    data_version: DataVersion | None = None


@lazy_define()
class DelayOffsetSerializeWrapper(Body):
    """Answer of code 45 and config/delayOffset.json: delay level to offset in its queue.

    ``data_version`` is of 5.x.
    """

    offset_table: dict[int, Int64] = field(factory=dict)
    data_version: DataVersion | None = None


@lazy_define()
class LmqOffsetSerializeWrapper(Body):
    """config/lmqConsumerOffset.json: ``%LMQ%queue@group`` to offset."""

    lmq_offset_table: dict[str, Int64] = field(factory=dict)


@lazy_define()
class BloomFilterData(Body):
    bit_pos: tuple[int, ...] = ()
    bit_num: int = 0


@lazy_define()
class ConsumerFilterData(Body):
    """One SQL92 subscription; ``dead`` is derived in Java, and written."""

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
    """config/consumerFilter.json."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = field(factory=dict)
