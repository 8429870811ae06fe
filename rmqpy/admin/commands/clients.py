"""Commands for the clients of groups: their connections and their reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmqpy.admin.command import BROKER, GROUP, Command, CommandContext, option
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.names import RETRY_PREFIX, retry_topic
from rmqpy.remoting.bodies import Connection, ConsumerConnection, ConsumerRunningInfo
from rmqpy.remoting.command import version_text

BLOCKED_MS: Final = 60_000
"""The time in ms without consumption after which a queue is probably blocked."""

_CONSUMERS = OutputTable(
    [
        Column("#ClientId", -36),
        Column("#ClientAddr", -22),
        Column("#Language", -10),
        Column("#Version", 0),
    ],
    [" "],
)
_RUNNING = OutputTable(
    [
        Column("#Index", -10),
        Column("#ClientId", -40),
        Column("#Version", -20),
        Column("#ConsumerRunningInfoFile", 0),
    ],
    [" "],
)


async def consumer_connection(call: CommandContext) -> CommandResult:
    group = call.args.text("consumerGroup")
    connection = await connections(call, group, call.args.optional("brokerAddr"))
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
    return CommandResult(connection, "\n".join(lines))


async def producer_connection(call: CommandContext) -> CommandResult:
    group, topic = call.args.text("producerGroup"), call.args.text("topic")
    route = await call.admin.route(topic)
    address = next(each.broker_addrs[min(each.broker_addrs)] for each in route.broker_datas)
    connection = await call.admin.producer_connections(address, group)
    lines = [
        f"{number:04d}  {client.client_id:<32} {client.client_addr:<22} {client.language:<8}"
        f" {version_text(client.version)}"
        for number, client in enumerate(connection.connection_set, 1)
    ]
    return CommandResult(connection, "\n".join(lines))


async def producers(call: CommandContext) -> CommandResult:
    table = (await call.admin.producers(call.args.text("brokerAddr"))).data
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
    return CommandResult(table, "\n".join(lines))


async def consumer_status(call: CommandContext) -> CommandResult:
    group, broker = call.args.text("consumerGroup"), call.args.optional("brokerAddr")
    jstack = call.args.has("jstack")
    address = broker or await any_broker(call, group)
    if call.args.has("clientId"):
        info = await call.admin.running_info(address, group, call.args.text("clientId"), jstack)
        return CommandResult(info, running_text(info))
    connection = await connections(call, group, broker)
    infos: dict[str, ConsumerRunningInfo] = {}
    rows = []
    for number, client in enumerate(connection.connection_set, 1):
        info = await call.admin.running_info(address, group, client.client_id, jstack)
        infos[client.client_id] = info
        rows.append([number, client.client_id, version_text(client.version), "-"])
    lines = [_RUNNING.text(rows), "", ""]
    if differ(infos.values()):
        lines.append("WARN: Different subscription in the same group of consumer!!!")
        return CommandResult(infos, "\n".join(lines), says_no=True)
    lines += ["Same subscription in the same group of consumer", "", "Rebalance OK"]
    now_ms = call.admin.instance.clock.now_ms()
    for client_id, info in infos.items():
        lines += suspicions(client_id, info, now_ms)
    return CommandResult(infos, "\n".join(lines))


async def connections(call: CommandContext, group: str, broker: str | None) -> ConsumerConnection:
    return await call.admin.consumer_connections(broker or await any_broker(call, group), group)


async def any_broker(call: CommandContext, group: str) -> str:
    """Return the address of a broker to which the group's consumers are connected.

    Raise RequestRejectedError if no broker has the group's retry topic.
    """
    route = await call.admin.route(retry_topic(group))
    for broker in route.broker_datas:
        return broker.broker_addrs[min(broker.broker_addrs)]
    raise RequestRejectedError(ResponseCode.TOPIC_NOT_EXIST, f"no broker has {RETRY_PREFIX}{group}")


def running_text(info: ConsumerRunningInfo) -> str:
    """Return the text that Java's ConsumerRunningInfo formats."""
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
        f"{queue.topic:<32}  {queue.broker_name:<32}  {queue.queue_id:<4}"
        f"  {state.commit_offset:<20}"
        for queue, state in sorted(info.mq_table.items())
    ]
    lines += ["", "", "#Consumer MQ Detail#", f"{head}{'#ProcessQueueInfo':<20}"]
    lines += [
        f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}  ProcessQueueInfo"
        f" [commitOffset={state.commit_offset},"
        f" cachedMsgMinOffset={state.cached_msg_min_offset},"
        f" cachedMsgMaxOffset={state.cached_msg_max_offset},"
        f" cachedMsgCount={state.cached_msg_count},"
        f" cachedMsgSizeInMiB={state.cached_msg_size_in_mib}, locked={java_bool(state.locked)},"
        f" droped={java_bool(state.droped)},"
        f" lastConsumeTimestamp={java_time(state.last_consume_timestamp)}]"
        for queue, state in sorted(info.mq_table.items())
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


def suspicions(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> list[str]:
    ordered = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    lines = []
    for queue, state in sorted(info.mq_table.items()):
        if ordered and not state.locked:
            spent = now_ms - state.last_lock_timestamp
            lines.append(f"{client_id} {queue} can't lock for a while, {spent}ms")
        elif not ordered and state.cached_msg_count:
            spent = now_ms - state.last_consume_timestamp
            if spent > BLOCKED_MS:
                lines.append(
                    f"{client_id} {queue} can't consume for a while, maybe blocked, {spent}ms"
                )
    return lines


def differ(infos: Iterable[ConsumerRunningInfo]) -> bool:
    """Return whether members of a group subscribe to different topics, or to none."""
    found = {subscribed(info) for info in infos}
    return len(found) > 1 or found == {()}


def subscribed(info: ConsumerRunningInfo) -> tuple[tuple[str, str | None], ...]:
    """Return the (topic, expression) that a member subscribes to, sorted."""
    return tuple(sorted((each.topic, each.sub_string) for each in info.subscription_set))


def _client_row(client: Connection) -> Sequence[object]:
    return [
        client.client_id,
        client.client_addr,
        client.language,
        version_text(client.version),
    ]


COMMANDS = (
    Command(
        name="consumerConnection",
        help="list the clients of a consumer group",
        run=consumer_connection,
        options=(GROUP, BROKER),
    ),
    Command(
        name="producerConnection",
        help="list the clients of a producer group",
        run=producer_connection,
        options=(
            option("g", "producerGroup", "producer group name", required=True),
            option("t", "topic", "a topic that it sends to", required=True),
        ),
    ),
    Command(
        name="producer",
        help="list all producers of a broker",
        run=producers,
        options=(option("b", "brokerAddr", "the broker, as host:port", required=True),),
    ),
    Command(
        name="consumerStatus",
        help="show what the clients of a group report",
        run=consumer_status,
        options=(
            GROUP,
            option("i", "clientId", "one client"),
            BROKER,
            option("s", "jstack", "include the stacks of its threads (Java clients)", flag=True),
        ),
    ),
)
