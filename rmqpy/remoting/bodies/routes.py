"""Routes: which brokers hold a topic, and the cluster table."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.body import Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, eq=False, repr=False)
class QueueData(Body):
    """The queues of one topic on one broker name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@lazy_define()
class BrokerData(Body):
    """The addresses of one broker name by broker id; 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(factory=dict)


@define(slots=True, eq=False, repr=False)
class TopicRouteData(Body):
    """Answer of code 105. ``encode(strict=True)`` for callers of version 401 and above."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(factory=list)
    broker_datas: list[BrokerData] = field(factory=list)
    filter_server_table: dict[str, list[str]] = field(factory=dict)


@lazy_define()
class ClusterInfo(Body):
    """Answer of code 106."""

    broker_addr_table: dict[str, BrokerData] = field(factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(factory=dict)


@lazy_define()
class BrokerMemberGroup(Body):
    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(factory=dict)


@lazy_define()
class GetBrokerMemberGroupResponseBody(Body):
    """Answer of code 901 (5.x)."""

    broker_member_group: BrokerMemberGroup | None = None
