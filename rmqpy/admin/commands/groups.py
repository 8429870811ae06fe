"""Commands for consumer groups: their settings and their progress."""

from __future__ import annotations

from typing import Final

from rmqpy.admin.command import BROKER, CLUSTER, Command, CommandContext, masters, option
from rmqpy.admin.commands.clients import any_broker, connections
from rmqpy.admin.group_offsets import consume_stats
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import (
    dlq_topic,
    group_of_retry_topic,
    is_retry_topic,
    retry_topic,
)
from rmqpy.remoting.bodies import (
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroupConfig,
)
from rmqpy.remoting.command import version_text

_PROGRESS: Final = [
    Column("#Topic", -64),
    Column("#Broker Name", -32),
    Column("#QID", -4),
    Column("#Broker Offset", -20),
    Column("#Consumer Offset", -20),
]
_LAG = [Column("#Diff", -20), Column("#LastTime", 0)]
_PROGRESS_TABLE = OutputTable([*_PROGRESS, *_LAG])
_PROGRESS_WITH_CLIENT = OutputTable(
    [*_PROGRESS, Column("#Client IP", -20), *_LAG], ["  ", "  ", "  ", "  ", "  ", " ", "  "]
)
_GROUPS = OutputTable(
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


async def update_group(call: CommandContext) -> CommandResult:
    args = call.args
    group = SubscriptionGroupConfig(
        args.text("groupName"),
        consume_enable=args.boolean("consumeEnable", True),
        consume_from_min_enable=args.boolean("consumeFromMinEnable", False),
        consume_broadcast_enable=args.boolean("consumeBroadcastEnable", False),
        retry_queue_nums=args.number("retryQueueNums", 1),
        retry_max_times=args.number("retryMaxTimes", 16),
        broker_id=args.number("brokerId", MASTER_ID),
        which_broker_when_consume_slowly=args.number("whichBrokerWhenConsumeSlowly", 1),
        notify_consumer_ids_changed_enable=args.boolean("notifyConsumerIdsChanged", True),
    )
    addresses = await masters(call)
    for address in addresses:
        await call.admin.update_group(address, group)
    lines = [f"create subscription group to {address} success." for address in addresses]
    lines.append(group_text(group))
    return CommandResult({"brokers": addresses, "group": group}, "\n".join(lines))


async def delete_group(call: CommandContext) -> CommandResult:
    args, admin = call.args, call.admin
    group, cluster = args.text("groupName"), args.optional("clusterName")
    addresses = await masters(call)
    lines = []
    for address in addresses:
        await admin.delete_group(address, group, args.boolean("removeOffset", False))
        where = f" in cluster [{cluster}]" if cluster is not None else ""
        lines.append(f"delete subscription group [{group}] from broker [{address}]{where} success.")
    if cluster is not None:
        for topic in (retry_topic(group), dlq_topic(group)):
            for address in addresses:
                await admin.delete_topic(address, topic)
            await admin.forget_topic(topic, None)
            lines.append(f"delete topic [{topic}] from cluster [{cluster}] success.")
            lines.append(f"delete topic [{topic}] from NameServer success.")
    return CommandResult({"brokers": addresses, "group": group}, "\n".join(lines))


async def get_consumer_config(call: CommandContext) -> CommandResult:
    name = call.args.text("groupName")
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
    return CommandResult(found, "\n".join(lines), says_no=not found)


async def consumer_progress(call: CommandContext) -> CommandResult:
    if not call.args.has("groupName"):
        return await _all_progress(call)
    group = call.args.text("groupName")
    stats = await consume_stats(call.admin, group)
    owners = await _owners(call, group) if call.args.boolean("showClientIP", False) else None
    rows = []
    total = 0
    for queue, offset in sorted(stats.offset_table.items()):
        lag = offset.broker_offset - offset.consumer_offset
        total += lag
        row: list[object] = [
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            offset.broker_offset,
            offset.consumer_offset,
        ]
        if owners is not None:
            row.append(owners.get(queue, "N/A"))
        rows.append([*row, lag, _last_time(offset)])
    table = _PROGRESS_TABLE if owners is None else _PROGRESS_WITH_CLIENT
    text = f"{table.text(rows)}\n\nConsume TPS: {stats.consume_tps:.2f}\nDiff Total: {total}"
    return CommandResult(stats, text)


async def _all_progress(call: CommandContext) -> CommandResult:
    data, rows = [], []
    for topic in await call.admin.topics():
        if not is_retry_topic(topic):
            continue
        group = group_of_retry_topic(topic)
        try:
            stats = await consume_stats(call.admin, group)
        except RmqError:
            stats = ConsumeStats()
        try:
            connection = await connections(call, group, None)
        except RmqError:
            connection = ConsumerConnection()
        lag = behind_of(stats)
        clients = connection.connection_set
        version = version_text(min(each.version for each in clients)) if clients else "OFFLINE"
        kind = {"CONSUME_ACTIVELY": "PULL", "CONSUME_PASSIVELY": "PUSH"}.get(
            connection.consume_type or "", ""
        )
        model = connection.message_model or ""
        rows.append([group, len(clients), version, kind, model, int(stats.consume_tps), lag])
        data.append({"group": group, "clients": clients, "behind": lag})
    return CommandResult(data, _GROUPS.text(rows))


async def _owners(call: CommandContext, group: str) -> dict[MessageQueue, str]:
    """Return the client address of each queue, without the queues of clients that do not answer."""
    found = {}
    try:
        address = await any_broker(call, group)
        for client in (await connections(call, group, None)).connection_set:
            info = await call.admin.running_info(address, group, client.client_id)
            for queue in info.mq_table:
                found[queue] = client.client_id.partition("@")[0]
    except RmqError as fault:
        call.show(f"clients of {group}: {fault}")
    return found


def group_text(group: SubscriptionGroupConfig) -> str:
    """Return the text of Java's SubscriptionGroupConfig.toString."""
    pairs = ", ".join(f"{name}={value}" for name, value in _group_fields(group))
    return f"SubscriptionGroupConfig [{pairs}]"


def behind_of(stats: ConsumeStats) -> int:
    return sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())


def _last_time(offset: OffsetWrapper) -> str:
    return java_time(offset.last_timestamp, millis=False) if offset.last_timestamp else "N/A"


def _fields(group: SubscriptionGroupConfig) -> str:
    return "\n".join(f"{name:<40}=  {value}" for name, value in _group_fields(group))


def _group_fields(group: SubscriptionGroupConfig) -> list[tuple[str, str]]:
    """Return the fields in the order of Java's class."""
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
        help="create or change a consumer group",
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
            option("i", "brokerId", "broker id to consume from"),
            option(
                "w",
                "whichBrokerWhenConsumeSlowly",
                "broker id to read from when the group lags far",
            ),
            option("a", "notifyConsumerIdsChanged", "true or false: notify members of changes"),
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
            option("r", "removeOffset", "true or false: also delete its offsets"),
        ),
    ),
    Command(
        name="getConsumerConfig",
        help="show a group's settings on every broker",
        run=get_consumer_config,
        options=(_GROUP_NAME,),
    ),
    Command(
        name="consumerProgress",
        help="show how far groups have consumed",
        run=consumer_progress,
        options=(
            option("g", "groupName", "one consumer group, default all"),
            option("s", "showClientIP", "true or false: show the client of each queue"),
        ),
    ),
)
