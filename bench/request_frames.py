"""The requests that ``requests.py`` measures, and the messages that must be stored for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from attrs import define, field, frozen

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmqpy.remoting.bodies.queues import (
    LockBatchRequestBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from rmqpy.remoting.bodies.topics import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    body_crc32,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    EndTransactionRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    RegisterBrokerRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

UNIQUE_KEY: Final = "7F000001ABCD18B4AAC2#KEY-OF-TEST"
BORN_MS: Final = 1_111_111_111_111
"""``rmqload.c`` replaces both in each copy of a frame."""

SUBSCRIBED_MS: Final = 1_700_000_000_000
"""The version of tables and subscriptions, which clients and brokers repeat until they change."""

TOPIC: Final = "bench"
GROUP: Final = "bench-group"
QUEUES: Final = 4
FILTERED: Final = "bench-filter"
FILTERED_COUNT: Final = 40_000
"""The messages of topic ``bench-filter``, in one queue: tag t0..t99, a 0..199, b x or y."""

FILTER_OFFSETS: Final = range(0, FILTERED_COUNT - 4_000, 1_000)
FILLED: Final = 1_000
MANY_TOPICS: Final = 2_000
FIRST_TOPICS: Final = 200
SETTLE_SECONDS_MAX: Final = 60
DELAY_SECONDS: Final = 5
DELIVERED_SECONDS_MAX: Final = 300
REGISTERED_SECONDS: Final = 0.3
ENDS: Final = 40_000
"""The transactions that a round ends: enough that their CPU time is not a few ticks of 10 ms."""

NEW_TOPICS: Final = 300
PULL_COUNT: Final = 32
IN_FLIGHT: Final = 100
HAS_SUBSCRIPTION: Final = 4
PREPARED: Final = 4
"""The transaction bits of ``sysFlag`` of a half message."""
COMMIT: Final = 8
ROLLBACK: Final = 12
NONE_MATCHES: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY,)
LONG_AGO_MS: Final = 0
LONG_AHEAD_MS: Final = 1 << 42

_numbers = itertools.count()


@define(eq=False)
class Stored:
    """A server, and what its store contains."""

    broker_name: str
    address: str
    offsets: list[int] = field(factory=list)
    """Physical offsets of messages of topic ``bench``."""

    stored_ms: int = 0
    """A time between the storing of two messages of topic ``bench``."""

    registered: BlockingConnection | None = None
    """The connection of the broker that :func:`register` has registered."""

    newest: list[tuple[str, int]] = field(factory=list)
    """The queues (topic and id) that :func:`first_sends` fills last."""


@frozen
class Request:
    """A row. ``build`` returns the requests to repeat, given what the server has stored."""

    name: str
    build: Callable[[Stored], Sequence[RemotingCommand]]
    accept: tuple[int, ...] = ()
    """Codes of answers other than SUCCESS that count as success."""
    once: bool = False
    """Whether each request of ``build`` can be sent only once."""
    settle: Callable[[Stored], None] | None = None
    """Waits until the server has done the work that it does after its answers, which counts."""
    finish: Callable[[Stored], None] | None = None
    """Waits, after the last round, for work that would count for the next request."""


def fill(address: str, broker_name: str) -> Stored:
    """Create the topics and groups that the requests need, and store messages."""
    stored = Stored(broker_name, address)
    with BlockingConnection(address, timeout_s=60) as connection:
        topics = [new_topic(topic, QUEUES) for topic in (TOPIC, *many_topics())]
        for answer in pipelined(connection, [*topics, new_topic(FILTERED, 1), heartbeat(2)]):
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        for number in range(FILLED):
            if number == FILLED // 2:
                stored.stored_ms = int(time.time() * 1000)
            properties = f"KEYS\x01key{number}\x02UNIQ_KEY\x01{number:032X}\x02"
            answer = connection.call(send_request(TOPIC, number % QUEUES, [b"x" * 128], properties))
            stored.offsets.append(int(answer.ext_fields["msgId"][16:32], 16))
        requests = [
            send_request(
                FILTERED,
                0,
                [b"x" * 128],
                f"TAGS\x01t{number % 100}\x02a\x01{number % 200}\x02"
                f"b\x01{'xy'[number // 7 % 2]}\x02",
            )
            for number in range(FILTERED_COUNT)
        ]
        for answer in pipelined(connection, [*requests, update_offset()]):
            assert answer.code == ResponseCode.SUCCESS, answer.remark
    return stored


def update_offset() -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(consumer_group=GROUP, commit_offset=1, **_QUEUE)
    return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)


def pipelined(
    connection: BlockingConnection, requests: Sequence[RemotingCommand]
) -> Iterator[RemotingCommand]:
    """Yield the answers to ``requests``, of which at most ``IN_FLIGHT`` are in flight."""
    for first in range(0, len(requests), IN_FLIGHT):
        group = requests[first : first + IN_FLIGHT]
        connection.send(*group)
        for _ in group:
            yield connection.receive()


def many_topics() -> list[str]:
    return [f"bench-many-{number}" for number in range(MANY_TOPICS)]


def one(
    code: int, header: CommandHeader | None = None, body: bytes = b""
) -> Callable[[Stored], list[RemotingCommand]]:
    """Return a ``build`` of one request that is the same on every server."""
    return lambda _: [RemotingCommand.request(code, header, body)]


def send(
    topic: str = TOPIC,
    *,
    properties: str = "",
    size: int = 128,
    queue_id: int = 0,
    sys_flag: int = 0,
) -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group=GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_timestamp=BORN_MS,
        flag=0,
        properties=f"UNIQ_KEY\x01{UNIQUE_KEY}\x02WAIT\x01true\x02{properties}",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"x" * size)


def half(number: int = 0) -> RemotingCommand:
    return send(
        properties=f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02",
        queue_id=number % QUEUES,
        sys_flag=PREPARED,
    )


def sends_to_all_queues(stored: Stored) -> list[RemotingCommand]:
    return [send(topic, queue_id=queue_id) for queue_id in range(QUEUES) for topic in many_topics()]


def first_sends(stored: Stored) -> list[RemotingCommand]:
    """Create topics, and return a send to each of their queues."""
    topics = [f"bench-first-{next(_numbers)}" for _ in range(FIRST_TOPICS)]
    with BlockingConnection(stored.address, timeout_s=60) as connection:
        for answer in pipelined(connection, [new_topic(topic, 2 * QUEUES) for topic in topics]):
            assert answer.code == ResponseCode.SUCCESS, answer.remark
    queues = [(topic, number) for number in range(2 * QUEUES) for topic in topics]
    stored.newest = queues[-IN_FLIGHT:]
    return [send(topic, queue_id=number) for topic, number in queues]


def until_dispatched(stored: Stored) -> None:
    """Wait until the newest queues have a message; a server may create them after its answers."""
    end = time.monotonic() + SETTLE_SECONDS_MAX
    waiting = [
        RemotingCommand.request(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=number)
        )
        for topic, number in stored.newest
    ]
    with BlockingConnection(stored.address, timeout_s=60) as connection:
        while waiting:
            answers = list(pipelined(connection, waiting))
            waiting = [
                request
                for request, answer in zip(waiting, answers, strict=True)
                if answer.ext_fields["offset"] == "0"
            ]
            assert time.monotonic() < end, f"{stored.address}: {len(waiting)} queues are empty"
            time.sleep(0.01)


def until_delivered(stored: Stored) -> None:
    """Wait until no delayed message has been delivered to the queue of :func:`send` for longer than
    a message is delayed.
    """
    header = GetMaxOffsetRequestHeader(topic=TOPIC, queue_id=0)
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header)
    end = time.monotonic() + DELIVERED_SECONDS_MAX
    offset, changed = "", time.monotonic()
    with BlockingConnection(stored.address, timeout_s=60) as connection:
        while (now := time.monotonic()) < changed + DELAY_SECONDS + 2:
            found = connection.call(request).ext_fields["offset"]
            if found != offset:
                offset, changed = found, now
            assert now < end, f"delayed messages are still delivered: {found} in the queue"
            time.sleep(0.1)


def pulls(
    subscription: str, expression_type: str = "TAG"
) -> Callable[[Stored], list[RemotingCommand]]:
    return lambda _: [
        pull(FILTERED, offset, subscription, expression_type) for offset in FILTER_OFFSETS
    ]


def pull(
    topic: str, offset: int, subscription: str = "*", expression_type: str = "TAG"
) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=PULL_COUNT,
        sys_flag=HAS_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=subscription,
        sub_version=0,
        expression_type=expression_type,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def pull_at_the_end(_: Stored) -> list[RemotingCommand]:
    return [pull(FILTERED, FILTERED_COUNT)]


def search_offset(stored: Stored) -> list[RemotingCommand]:
    header = SearchOffsetRequestHeader(topic=TOPIC, queue_id=0, timestamp=stored.stored_ms)
    return [RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)]


def send_back(stored: Stored) -> list[RemotingCommand]:
    return [
        RemotingCommand.request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBackRequestHeader(
                offset=offset,
                group=GROUP,
                delay_level=3,
                origin_topic=TOPIC,
                max_reconsume_times=16,
            ),
        )
        for offset in stored.offsets
    ]


def view(stored: Stored) -> list[RemotingCommand]:
    return [
        RemotingCommand.request(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset)
        )
        for offset in stored.offsets
    ]


def query(unique: bool) -> Callable[[Stored], list[RemotingCommand]]:
    return lambda _: [
        RemotingCommand.request(
            RequestCode.QUERY_MESSAGE,
            QueryMessageRequestHeader(
                topic=TOPIC,
                key=f"{number:032X}" if unique else f"key{number}",
                max_num=32,
                begin_timestamp=LONG_AGO_MS,
                end_timestamp=LONG_AHEAD_MS,
                unique_key_query=unique,
            ),
        )
        for number in range(FILLED)
    ]


def heartbeat(subscriptions: int) -> RemotingCommand:
    topics = [TOPIC, *many_topics()][: subscriptions - 1]
    consumer = ConsumerData(
        group_name=GROUP,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string="*", sub_version=SUBSCRIBED_MS)
            for topic in (*topics, f"%RETRY%{GROUP}")
        ],
    )
    body = HeartbeatData("127.0.0.1@1", [ProducerData("CLIENT_INNER_PRODUCER")], [consumer])
    return RemotingCommand.request(RequestCode.HEART_BEAT, None, body.encode())


def lock(stored: Stored) -> list[RemotingCommand]:
    queues = [MessageQueue(TOPIC, stored.broker_name, number) for number in range(QUEUES)]
    body = LockBatchRequestBody(GROUP, "127.0.0.1@1", queues)
    return [RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, None, body.encode())]


def unlock(stored: Stored) -> list[RemotingCommand]:
    queues = [MessageQueue(TOPIC, stored.broker_name, number) for number in range(QUEUES)]
    body = UnlockBatchRequestBody(GROUP, "127.0.0.1@1", queues)
    return [RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, None, body.encode())]


def ends(what: int) -> Callable[[Stored], list[RemotingCommand]]:
    """Return a ``build`` that stores half messages and returns the requests that end them."""
    return lambda stored: _ends(stored, what)


def _ends(stored: Stored, what: int) -> list[RemotingCommand]:
    with BlockingConnection(stored.address, timeout_s=60) as connection:
        halves = [half(number) for number in range(ENDS)]
        return [
            RemotingCommand.request(
                RequestCode.END_TRANSACTION,
                EndTransactionRequestHeader(
                    producer_group=GROUP,
                    tran_state_table_offset=int(answer.ext_fields["queueOffset"]),
                    commit_log_offset=int(answer.ext_fields["msgId"][16:32], 16),
                    commit_or_rollback=what,
                    msg_id=UNIQUE_KEY,
                    transaction_id=UNIQUE_KEY,
                ),
            )
            for answer in pipelined(connection, halves)
        ]


def new_topics(_: Stored) -> list[RemotingCommand]:
    return [new_topic(f"bench-new-{next(_numbers)}", QUEUES) for _ in range(NEW_TOPICS)]


def new_topic(topic: str, queues: int) -> RemotingCommand:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    return RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def registrations(topics: int, *, changed: bool) -> Callable[[Stored], list[RemotingCommand]]:
    """Return a ``build`` of registrations whose versions differ if ``changed``."""
    return lambda _: [registration(topics, number) for number in range(50 if changed else 1)]


def registration(topics: int, version: int) -> RemotingCommand:
    table = {f"topic-{n}": TopicConfig(f"topic-{n}") for n in range(topics)}
    wrapper = TopicConfigSerializeWrapper(DataVersion(SUBSCRIBED_MS + version, version), table)
    body = RegisterBrokerBody(wrapper).encode()
    header = RegisterBrokerRequestHeader(
        broker_name=f"registered-{topics}",
        broker_addr="127.0.0.1:10911",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:10912",
        broker_id=0,
        compressed=False,
        body_crc32=body_crc32(body),
    )
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)


def register(stored: Stored, topics: int) -> None:
    """Register a broker, and keep its connection: name servers remove one that is closed. Java's
    can do so after the broker has registered again.
    """
    if stored.registered is not None:
        stored.registered.close()
    stored.registered = BlockingConnection(stored.address, timeout_s=60)
    code = -1
    while code != ResponseCode.SUCCESS:
        answer = stored.registered.call(registration(topics, 0))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        time.sleep(REGISTERED_SECONDS)
        code = stored.registered.call(route(0)).code


def route(number: int) -> RemotingCommand:
    return RemotingCommand.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=f"topic-{number}")
    )


def routes(topics: int) -> Callable[[Stored], list[RemotingCommand]]:
    def build(stored: Stored) -> list[RemotingCommand]:
        register(stored, topics)
        return [route(number) for number in range(0, topics, topics // 500)]

    return build


def topic_list(stored: Stored) -> list[RemotingCommand]:
    register(stored, 20_000)
    return [RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)]


_QUEUE: Final[dict[str, Any]] = {"topic": TOPIC, "queue_id": 0}

BROKER_REQUESTS: Final = (
    Request("send", lambda _: [send(queue_id=number) for number in range(QUEUES)]),
    Request("send-keys-tags", lambda _: [send(properties="KEYS\x01k\x02TAGS\x01t\x02")]),
    Request("send-64k", lambda _: [send(size=64 << 10)]),
    Request("send-1m", lambda _: [send(size=1 << 20)]),
    Request("send-delayed-2h", lambda _: [send(properties="DELAY\x0118\x02")]),
    Request(
        "send-delayed-5s", lambda _: [send(properties="DELAY\x012\x02")], finish=until_delivered
    ),
    Request("send-retry-topic", lambda _: [send(f"%RETRY%{GROUP}")]),
    Request("send-half", lambda _: [half(number) for number in range(QUEUES)]),
    Request("commit", ends(COMMIT), once=True),
    Request("rollback", ends(ROLLBACK), once=True),
    Request("send-back", send_back),
    Request("pull", lambda _: [pull(FILTERED, offset) for offset in FILTER_OFFSETS]),
    Request("pull-tag-1-of-100", pulls("t7")),
    Request("pull-tags-3-of-100", pulls("t1 || t8 || t60")),
    Request("pull-sql", pulls("a BETWEEN 10 AND 20 AND b='x'", "SQL92")),
    Request("pull-sql-none", pulls("c > 20 OR b = 'z'", "SQL92"), accept=NONE_MATCHES),
    Request("pull-nothing", pull_at_the_end, accept=(ResponseCode.PULL_NOT_FOUND,)),
    Request("search-offset", search_offset),
    Request("query-key", query(unique=False)),
    Request("query-unique-key", query(unique=True)),
    Request("view-by-id", view),
    Request("max-offset", one(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(**_QUEUE))),
    Request("min-offset", one(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(**_QUEUE))),
    Request("update-offset", lambda _: [update_offset()]),
    Request(
        "query-offset",
        one(
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(consumer_group=GROUP, **_QUEUE),
        ),
    ),
    Request("heartbeat-2", lambda _: [heartbeat(2)]),
    Request("heartbeat-50", lambda _: [heartbeat(50)]),
    Request("lock-4", lock),
    Request("unlock-4", unlock),
    Request(
        "consumer-list",
        one(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            GetConsumerListByGroupRequestHeader(consumer_group=GROUP),
        ),
        accept=(ResponseCode.SYSTEM_ERROR,),  # the group is known and has no member
    ),
    Request("create-topic", new_topics, once=True),
    Request("send-8000-queues-warm", sends_to_all_queues),
    Request("send-first-1600-queues", first_sends, once=True, settle=until_dispatched),
)

NAME_SERVER_REQUESTS: Final = (
    Request("register-1000", registrations(1_000, changed=False)),
    Request("register-1000-changed", registrations(1_000, changed=True)),
    Request("route-of-1000", routes(1_000)),
    Request("register-20000", registrations(20_000, changed=False)),
    Request("register-20000-changed", registrations(20_000, changed=True)),
    Request("route-of-20000", routes(20_000)),
    Request("topic-list-of-20000", topic_list),
)
