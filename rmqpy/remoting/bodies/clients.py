"""Bodies about clients: heartbeats, subscriptions, connections, and the state of consumers."""

from __future__ import annotations

from attrs import field

from rmqpy.remoting.bodies.queues import MessageQueue
from rmqpy.remoting.body import REQUEST_BYTES_MAX, Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define, named

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"


@lazy_define()
class SubscriptionData(Body):
    """A group's subscription to a topic. ``code_set`` contains the Java hashes of the tags."""

    topic: str
    sub_string: str | None = None
    tags_set: list[str] = field(factory=list)
    code_set: list[int] = field(factory=list)
    sub_version: Int64 = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False


@lazy_define()
class ProducerData(Body):
    group_name: str


@lazy_define()
class ConsumerData(Body):
    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] = field(factory=list)
    unit_mode: bool = False


@lazy_define()
class HeartbeatData(Body):
    """The request body of HEART_BEAT (34). Only 5.x clients send the last two fields."""

    BYTES_MAX = REQUEST_BYTES_MAX

    client_id: str = field(metadata=named("clientID"))
    producer_data_set: list[ProducerData] = field(factory=list)
    consumer_data_set: list[ConsumerData] = field(factory=list)
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = field(default=None, metadata=named("isWithoutSub"))


@lazy_define()
class CheckClientRequestBody(Body):
    """The request body of CHECK_CLIENT_CONFIG (46)."""

    BYTES_MAX = REQUEST_BYTES_MAX

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


@lazy_define()
class GetConsumerListByGroupResponseBody(Body):
    """The response body of GET_CONSUMER_LIST_BY_GROUP (38)."""

    consumer_id_list: list[str] = field(factory=list)


@lazy_define()
class Connection(Body):
    client_id: str
    client_addr: str
    language: str | None = None
    version: int = 0


@lazy_define()
class ConsumerConnection(Body):
    """The response body of GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[Connection] = field(factory=list)
    subscription_table: dict[str, SubscriptionData] = field(factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@lazy_define()
class ProducerConnection(Body):
    """The response body of GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: list[Connection] = field(factory=list)


@lazy_define()
class ProducerInfo(Body):
    """A connected producer. ``remote_ip`` is ``/ip:port``."""

    client_id: str
    remote_ip: str = field(metadata=named("remoteIP"))
    language: str | None = None
    version: int = 0
    last_update_timestamp: Int64 = 0


@lazy_define()
class ProducerTableInfo(Body):
    """The response body of GET_ALL_PRODUCER_INFO (328): producers by group."""

    data: dict[str, list[ProducerInfo]] = field(factory=dict)


@lazy_define()
class GroupList(Body):
    """The response body of QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: list[str] = field(factory=list)


@lazy_define()
class ProcessQueueInfo(Body):
    """The state of one queue in a consumer: its cached messages, its lock, and its last pull."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata=named("cachedMsgSizeInMiB"))
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


@lazy_define()
class ConsumeStatus(Body):
    """The rates of one topic in a consumer."""

    pull_rt: float = field(default=0.0, metadata=named("pullRT"))
    pull_tps: float = field(default=0.0, metadata=named("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=named("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=named("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=named("consumeFailedTPS"))
    consume_failed_msgs: Int64 = 0


@lazy_define()
class ConsumerRunningInfo(Body):
    """The response body of GET_CONSUMER_RUNNING_INFO (307)."""

    properties: dict[str, str] = field(factory=dict)
    subscription_set: list[SubscriptionData] = field(factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(factory=dict)
    status_table: dict[str, ConsumeStatus] = field(factory=dict)
    jstack: str | None = None


@lazy_define()
class ConsumeMessageDirectlyResult(Body):
    """The response body of CONSUME_MESSAGE_DIRECTLY (309).

    ``consume_result`` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL.
    """

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0
