"""Commands about groups and clients: settings, connections, progress, state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmqpy.admin.command import BROKER, CLUSTER, GROUP, Call, Command, masters, option
from rmqpy.admin.outcome import Column, Outcome, Table, java_bool, java_time
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import Refusal, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import (
    RETRY_PREFIX,
    dlq_topic,
    group_of_retry_topic,
    is_retry_topic,
    retry_topic,
)
from rmqpy.remoting.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
)
from rmqpy.remoting.command import version_text

BLOCKED_MS: Final = 60_000
"""A queue with messages that nobody has consumed for so long is probably blocked."""

_PROGRESS: Final = [
    Column("#Topic", -64),
    Column("#Broker Name", -32),
    Column("#QID", -4),
    Column("#Broker Offset", -20),
    Column("#Consumer Offset", -20),
]
_BEHIND = [Column("#Diff", -20), Column("#LastTime", 0)]
_PROGRESS_TABLE = Table([*_PROGRESS, *_BEHIND])
_PROGRESS_WITH_CLIENT = Table(
    [*_PROGRESS, Column("#Client IP", -20), *_BEHIND], ["  ", "  ", "  ", "  ", "  ", " ", "  "]
)
_GROUPS = Table(
    [
        Column("#Group", -64),
        Column("#Count", -6),
        Column("#Version", -24),
        Column("#Type", -5),
        Column("#Model", -14),
        Column("#TPS", -7),
        Column("#Diff Total", 0),
    ],
    ["  ", "  ", " ", "  "],
)
_CONSUMERS = Table(
    [
        Column("#ClientId", -36),
        Column("#ClientAddr", -22),
        Column("#Language", -10),
        Column("#Version", 0),
    ],
    [" "],
)
_RUNNING = Table(
    [
        Column("#Index", -10),
        Column("#ClientId", -40),
        Column("#Version", -20),
        Column("#ConsumerRunningInfoFile", 0),
    ],
    [" "],
)


async def update_group(call: Call) -> Outcome:
    given = call.given
    group = SubscriptionGroupConfig(
        given.text("groupName"),
        consume_enable=given.truth("consumeEnable", True),
        consume_from_min_enable=given.truth("consumeFromMinEnable", False),
        consume_broadcast_enable=given.truth("consumeBroadcastEnable", False),
        retry_queue_nums=given.number("retryQueueNums", 1),
        retry_max_times=given.number("retryMaxTimes", 16),
        broker_id=given.number("brokerId", MASTER_ID),
        which_broker_when_consume_slowly=given.number("whichBrokerWhenConsumeSlowly", 1),
        notify_consumer_ids_changed_enable=given.truth("notifyConsumerIdsChanged", True),
    )
    addresses = await masters(call)
    for address in addresses:
        await call.admin.update_group(address, group)
    lines = [f"create subscription group to {address} success." for address in addresses]
    lines.append(group_text(group))
    return Outcome({"brokers": addresses, "group": group}, "\n".join(lines))


async def delete_group(call: Call) -> Outcome:
    given, admin = call.given, call.admin
    group, cluster = given.text("groupName"), given.optional("clusterName")
    addresses = await masters(call)
    lines = []
    for address in addresses:
        await admin.delete_group(address, group, given.truth("removeOffset", False))
        where = f" in cluster [{cluster}]" if cluster is not None else ""
        lines.append(
            f"delete subscription group [{group}] from broker [{address}]{where} success."
        )
    if cluster is not None:
        for topic in (retry_topic(group), dlq_topic(group)):
            for address in addresses:
                await admin.delete_topic(address, topic)
            await admin.forget_topic(topic, None)
            lines.append(f"delete topic [{topic}] from cluster [{cluster}] success.")
            lines.append(f"delete topic [{topic}] from NameServer success.")
    return Outcome({"brokers": addresses, "group": group}, "\n".join(lines))


async def get_consumer_config(call: Call) -> Outcome:
    name = call.given.text("groupName")
    info = await call.admin.cluster_info()
    found, lines = {}, []
    for cluster in sorted(info.cluster_addr_table):
        for broker in sorted(info.cluster_addr_table[cluster]):
            addresses = info.broker_addr_table[broker].broker_addrs
            if MASTER_ID not in addresses:
                continue
            table = (await call.admin.all_groups(addresses[MASTER_ID])).subscription_group_table
            if name in table:
                found[broker] = table[name]
                line = "=" * 29
                lines += [f"{line}{cluster}:{broker}{line}", _fields(table[name]), ""]
    return Outcome(found, "\n".join(lines), says_no=not found)


async def consumer_connection(call: Call) -> Outcome:
    group = call.given.text("consumerGroup")
    connection = await _connections(call, group, call.given.optional("brokerAddr"))
    rows = [_client_row(client) for client in connection.connection_set]
    lines = [_CONSUMERS.text(rows), "", "Below is subscription:", f"{'#Topic':<20} #SubExpression"]
    lines += [
        f"{each.topic:<20} {each.sub_string}" for each in connection.subscription_table.values()
    ]
    lines += [
        "",
        f"ConsumeType: {connection.consume_type}",
        f"MessageModel: {connection.message_model}",
        f"ConsumeFromWhere: {connection.consume_from_where}",
    ]
    return Outcome(connection, "\n".join(lines))


async def producer_connection(call: Call) -> Outcome:
    group, topic = call.given.text("producerGroup"), call.given.text("topic")
    route = await call.admin.route(topic)
    address = next(each.broker_addrs[min(each.broker_addrs)] for each in route.broker_datas)
    connection = await call.admin.producer_connections(address, group)
    lines = [
        f"{number:04d}  {client.client_id:<32} {client.client_addr:<22} {client.language:<8}"
        f" {version_text(client.version)}"
        for number, client in enumerate(connection.connection_set, 1)
    ]
    return Outcome(connection, "\n".join(lines))


async def producers(call: Call) -> Outcome:
    table = (await call.admin.producers(call.given.text("brokerAddr"))).data
    lines = []
    for group, members in sorted(table.items()):
        for each in members:
            lines.append(
                f"producer group ({group}) instance : clientId={each.client_id},"
                f"remoteIP={each.remote_ip}, language={each.language}, version={each.version},"
                f" lastUpdateTimestamp={each.last_update_timestamp}"
            )
        if not members:
            lines.append(f"producer group ({group}) instances are empty")
    return Outcome(table, "\n".join(lines))


async def consumer_progress(call: Call) -> Outcome:
    if not call.given.has("groupName"):
        return await _all_progress(call)
    group = call.given.text("groupName")
    stats = await consume_stats(call, group)
    owners = await _owners(call, group) if call.given.truth("showClientIP", False) else None
    rows = []
    total = 0
    for queue, offset in sorted(stats.offset_table.items()):
        behind = offset.broker_offset - offset.consumer_offset
        total += behind
        row: list[object] = [
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset.broker_offset,
            offset.consumer_offset,
        ]
        if owners is not None:
            row.append(owners.get(queue, "N/A"))
        rows.append([*row, behind, _last_time(offset)])
    table = _PROGRESS_TABLE if owners is None else _PROGRESS_WITH_CLIENT
    text = f"{table.text(rows)}\n\nConsume TPS: {stats.consume_tps:.2f}\nDiff Total: {total}"
    return Outcome(stats, text)


async def _all_progress(call: Call) -> Outcome:
    data, rows = [], []
    for topic in await call.admin.topics():
        if not is_retry_topic(topic):
            continue
        group = group_of_retry_topic(topic)
        try:
            stats = await consume_stats(call, group)
        except RmqError:
            stats = ConsumeStats()
        try:
            connection = await _connections(call, group, None)
        except RmqError:
            connection = ConsumerConnection()
        behind = _behind(stats)
        clients = connection.connection_set
        version = version_text(min(each.version for each in clients)) if clients else "OFFLINE"
        kind = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH"}.get(
            connection.consume_type or "", ""
        )
        model = connection.message_model or ""
        rows.append(
            [group, len(clients), version, kind, model, int(stats.consume_tps), behind]
        )
        data.append({"group": group, "clients": clients, "behind": behind})
    return Outcome(data, _GROUPS.text(rows))


async def consume_stats(call: Call, group: str, topic: str | None = None) -> ConsumeStats:
    """Of all brokers that have the group's retry topic, as one."""
    route = await call.admin.route(retry_topic(group))
    whole = ConsumeStats()
    for broker in route.broker_datas:
        part = await call.admin.consume_stats(
            broker.broker_addrs[min(broker.broker_addrs)], group, topic
        )
        whole.offset_table.update(part.offset_table)
        whole.consume_tps += part.consume_tps
    if not whole.offset_table:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"Not found the consumer group consume stats, because return offset table is empty,"
            f" maybe the consumer {group} not consume any message",
        )
    return whole


async def consumer_status(call: Call) -> Outcome:
    group, broker = call.given.text("consumerGroup"), call.given.optional("brokerAddr")
    jstack = call.given.has("jstack")
    address = broker or await _any_broker(call, group)
    if call.given.has("clientId"):
        info = await call.admin.running_info(address, group, call.given.text("clientId"), jstack)
        return Outcome(info, running_text(info))
    connection = await _connections(call, group, broker)
    infos: dict[str, ConsumerRunningInfo] = {}
    rows = []
    for number, client in enumerate(connection.connection_set, 1):
        info = await call.admin.running_info(address, group, client.client_id, jstack)
        infos[client.client_id] = info
        rows.append([number, client.client_id, version_text(client.version), "-"])
    lines = [_RUNNING.text(rows), "", ""]
    if _differ(infos.values()):
        lines.append("WARN: Different subscription in the same group of consumer!!!")
        return Outcome(infos, "\n".join(lines), says_no=True)
    lines += ["Same subscription in the same group of consumer", "", "Rebalance OK"]
    now_ms = call.admin.instance.clock.now_ms()
    for client_id, info in infos.items():
        lines += _suspicions(client_id, info, now_ms)
    return Outcome(infos, "\n".join(lines))


async def _connections(call: Call, group: str, broker: str | None) -> ConsumerConnection:
    return await call.admin.consumer_connections(broker or await _any_broker(call, group), group)


async def _any_broker(call: Call, group: str) -> str:
    """A broker that the group's consumers know."""
    route = await call.admin.route(retry_topic(group))
    for broker in route.broker_datas:
        return broker.broker_addrs[min(broker.broker_addrs)]
    raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"no broker has {RETRY_PREFIX}{group}")


async def _owners(call: Call, group: str) -> dict[MessageQueue, str]:
    """Queue to the address of the client that holds it; what cannot be asked is left out."""
    found = {}
    try:
        address = await _any_broker(call, group)
        for client in (await _connections(call, group, None)).connection_set:
            info = await call.admin.running_info(address, group, client.client_id)
            for queue in info.mq_table:
                found[queue] = client.client_id.partition("@")[0]
    except RmqError as fault:
        call.show(f"clients of {group}: {fault}")
    return found


async def consumer_suspicions(call: Call, group: str) -> list[str]:
    """What seems to be wrong with a group: messages that wait, different subscriptions, queues that
    are not consumed. Nothing where it is offline and has no messages waiting.
    """
    lines = []
    try:
        behind = _behind(await consume_stats(call, group))
    except Refusal:
        behind = 0  # it has never consumed
    if behind > 0:
        lines.append(f"undone messages: {behind}")
    try:
        connection = await _connections(call, group, None)
    except Refusal as refusal:
        if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return [*lines, "nobody consumes them"] if lines else []
    address = await _any_broker(call, group)
    infos = {
        client.client_id: await call.admin.running_info(address, group, client.client_id)
        for client in connection.connection_set
    }
    if _differ(infos.values()):
        lines.append("different subscriptions in the same group")
    now_ms = call.admin.instance.clock.now_ms()
    for client_id, info in infos.items():
        lines += _suspicions(client_id, info, now_ms)
    return lines


def group_text(group: SubscriptionGroupConfig) -> str:
    """As Java's SubscriptionGroupConfig prints itself."""
    pairs = ", ".join(f"{name}={value}" for name, value in _group_fields(group))
    return f"SubscriptionGroupConfig [{pairs}]"


def running_text(info: ConsumerRunningInfo) -> str:
    """As Java's ConsumerRunningInfo formats itself."""
    lines = ["#Consumer Properties#"]
    lines += [f"{key:<40}: {value}" for key, value in info.properties.items()]
    lines += ["", "", "#Consumer Subscription#"]
    lines += [
        f"{number:03d} Topic: {each.topic:<40} ClassFilter: {java_bool(each.class_filter_mode):<8}"
        f" SubExpression: {each.sub_string}"
        for number, each in enumerate(info.subscription_set, 1)
    ]
    head = f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  "
    lines += ["", "", "#Consumer Offset#", f"{head}{'#Consumer Offset':<20}"]
    lines += [
        f"{queue.topic:<32}  {queue.broker_name:<32}  {queue.queue_id:<4}  {held.commit_offset:<20}"
        for queue, held in sorted(info.mq_table.items())
    ]
    lines += ["", "", "#Consumer MQ Detail#", f"{head}{'#ProcessQueueInfo':<20}"]
    lines += [
        f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}  ProcessQueueInfo"
        f" [commitOffset={held.commit_offset},"
        f" cachedMsgMinOffset={held.cached_msg_min_offset},"
        f" cachedMsgMaxOffset={held.cached_msg_max_offset},"
        f" cachedMsgCount={held.cached_msg_count},"
        f" cachedMsgSizeInMiB={held.cached_msg_size_in_mib}, locked={java_bool(held.locked)},"
        f" droped={java_bool(held.droped)},"
        f" lastConsumeTimestamp={java_time(held.last_consume_timestamp)}]"
        for queue, held in sorted(info.mq_table.items())
    ]
    lines += [
        "",
        "",
        "#Consumer RT&TPS#",
        f"{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} {'#Consume RT':>14}"
        f" {'#ConsumeOK TPS':>14} {'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}",
    ]
    lines += [
        f"{topic:<32}  {each.pull_rt:14.2f} {each.pull_tps:14.2f} {each.consume_rt:14.2f}"
        f" {each.consume_ok_tps:14.2f} {each.consume_failed_tps:18.2f}"
        f" {each.consume_failed_msgs:25d}"
        for topic, each in sorted(info.status_table.items())
    ]
    if info.jstack is not None:
        lines += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(lines)


def _suspicions(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> list[str]:
    ordered = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    lines = []
    for queue, held in sorted(info.mq_table.items()):
        if ordered and not held.locked:
            spent = now_ms - held.last_lock_timestamp
            lines.append(f"{client_id} {queue} can't lock for a while, {spent}ms")
        elif not ordered and held.cached_msg_count:
            spent = now_ms - held.last_consume_timestamp
            if spent > BLOCKED_MS:
                lines.append(
                    f"{client_id} {queue} can't consume for a while, maybe blocked, {spent}ms"
                )
    return lines


def _differ(infos: Iterable[ConsumerRunningInfo]) -> bool:
    """Whether the members of a group do not all subscribe to the same, or to nothing."""
    found = {_subscribed(info) for info in infos}
    return len(found) > 1 or found == {()}


def _subscribed(info: ConsumerRunningInfo) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted((each.topic, each.sub_string) for each in info.subscription_set))


def _behind(stats: ConsumeStats) -> int:
    return sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())


def _last_time(offset: OffsetWrapper) -> str:
    return java_time(offset.last_timestamp, millis=False) if offset.last_timestamp else "N/A"


def _client_row(client: Connection) -> Sequence[object]:
    return [
        client.client_id,
        client.client_addr,
        client.language,
        version_text(client.version),
    ]


def _fields(group: SubscriptionGroupConfig) -> str:
    return "\n".join(f"{name:<40}=  {value}" for name, value in _group_fields(group))


def _group_fields(group: SubscriptionGroupConfig) -> list[tuple[str, str]]:
    """In the order of Java's class."""
    return [
        ("groupName", group.group_name),
        ("consumeEnable", java_bool(group.consume_enable)),
        ("consumeFromMinEnable", java_bool(group.consume_from_min_enable)),
        ("consumeBroadcastEnable", java_bool(group.consume_broadcast_enable)),
        ("retryQueueNums", str(group.retry_queue_nums)),
        ("retryMaxTimes", str(group.retry_max_times)),
        ("brokerId", str(group.broker_id)),
        ("whichBrokerWhenConsumeSlowly", str(group.which_broker_when_consume_slowly)),
        ("notifyConsumerIdsChangedEnable", java_bool(group.notify_consumer_ids_changed_enable)),
    ]


_GROUP_NAME = option("g", "groupName", "consumer group name", required=True)

COMMANDS = (
    Command(
        name="updateSubGroup",
        help="create a consumer group, or change it",
        run=update_group,
        options=(
            BROKER,
            CLUSTER,
            _GROUP_NAME,
            option("s", "consumeEnable", "true or false: may consume"),
            option("m", "consumeFromMinEnable", "true or false: from the first offset"),
            option("d", "consumeBroadcastEnable", "true or false: may broadcast"),
            option("q", "retryQueueNums", "queues of the retry topic, default 1"),
            option("r", "retryMaxTimes", "retries before a dead letter, default 16"),
            option("i", "brokerId", "consume from which broker id"),
            option("w", "whichBrokerWhenConsumeSlowly", "from which id when far behind"),
            option("a", "notifyConsumerIdsChanged", "true or false: tell members of changes"),
        ),
    ),
    Command(
        name="deleteSubGroup",
        help="delete a consumer group",
        run=delete_group,
        options=(
            BROKER,
            CLUSTER,
            _GROUP_NAME,
            option("r", "removeOffset", "true or false: its offsets too"),
        ),
    ),
    Command(
        name="getConsumerConfig",
        help="a group's settings on every broker",
        run=get_consumer_config,
        options=(_GROUP_NAME,),
    ),
    Command(
        name="consumerConnection",
        help="the clients of a consumer group",
        run=consumer_connection,
        options=(GROUP, BROKER),
    ),
    Command(
        name="producerConnection",
        help="the clients of a producer group",
        run=producer_connection,
        options=(
            option("g", "producerGroup", "producer group name", required=True),
            option("t", "topic", "a topic that it sends to", required=True),
        ),
    ),
    Command(
        name="producer",
        help="all producers of a broker",
        run=producers,
        options=(option("b", "brokerAddr", "which broker, as host:port", required=True),),
    ),
    Command(
        name="consumerProgress",
        help="how far groups have come",
        run=consumer_progress,
        options=(
            option("g", "groupName", "one consumer group; all without it"),
            option("s", "showClientIP", "true or false: who holds each queue"),
        ),
    ),
    Command(
        name="consumerStatus",
        help="what the clients of a group say of themselves",
        run=consumer_status,
        options=(
            GROUP,
            option("i", "clientId", "one client"),
            BROKER,
            option("s", "jstack", "with the stacks of its threads (Java clients)", flag=True),
        ),
    ),
)
