"""Routes (the brokers that have a topic) and the cluster table."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.body import Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, eq=False, repr=False)
class QueueData(Body):
    """The queues of a topic on the brokers of one name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@lazy_define()
class BrokerData(Body):
    """The addresses of the brokers of one name, by broker id; 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(factory=dict)
    enable_acting_master: bool | None = None
    """Only in routes for clients of 5.x; no broker of 4.9 acts as a master."""


@define(slots=True, eq=False, repr=False)
class TopicRouteData(Body):
    """The response body of GET_ROUTEINFO_BY_TOPIC (105).

    A client of version 401 or above receives ``encode(strict=True)``.
    """

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(factory=list)
    broker_datas: list[BrokerData] = field(factory=list)
    filter_server_table: dict[str, list[str]] = field(factory=dict)


@lazy_define()
class ClusterInfo(Body):
    """The response body of GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: dict[str, BrokerData] = field(factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(factory=dict)


@lazy_define()
class BrokerMemberGroup(Body):
    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str] = field(factory=dict)


@lazy_define()
class GetBrokerMemberGroupResponseBody(Body):
    """The response body of request 901 (5.x, GET_BROKER_MEMBER_GROUP)."""

    broker_member_group: BrokerMemberGroup | None = None
