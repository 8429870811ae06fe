"""Commands for topics: creation, deletion, permissions, routes, positions, and consumers."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from rmqpy.admin.command import (
    BROKER,
    CLUSTER,
    TOPIC,
    Command,
    CommandContext,
    UsageError,
    masters,
    option,
)
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.client.consuming.rebalance import allocate_averagely
from rmqpy.client.core.routes import subscribe_queues
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import is_dlq_topic, is_retry_topic
from rmqpy.remoting.bodies import SINGLE_TAG, MessageQueue, TopicConfig, TopicRouteData
from rmqpy.remoting.fastjson import dumps

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""The name servers' namespace for ordered topics."""

UNIT_FLAG, UNIT_SUB_FLAG = 1, 2

_ROUTE = OutputTable(
    [
        Column("#ClusterName", -45),
        Column("#BrokerName", -32),
        Column("#BrokerAddrs", -50),
        Column("#ReadQueue", -10),
        Column("#WriteQueue", -11),
        Column("#Perm", -5),
    ],
    [" "],
)
_STATUS = OutputTable(
    [
        Column("#Broker Name", -32),
        Column("#QID", -4),
        Column("#Min Offset", -20),
        Column("#Max Offset", -20),
        Column("#Last Updated", 0),
    ],
    ["  ", "  ", "  ", "    "],
)
_LIST_TITLES = OutputTable(
    [Column("#Cluster Name", -20), Column("#Topic", -48), Column("#Consumer Group", -48)]
)
_LIST_ROWS = OutputTable(
    [Column("#Cluster Name", -20), Column("#Topic", -64), Column("#Consumer Group", -64)]
)


async def update_topic(call: CommandContext) -> CommandResult:
    args, admin = call.args, call.admin
    topic = TopicConfig(
        args.text("topic"),
        read_queue_nums=args.number("readQueueNums", 8),
        write_queue_nums=args.number("writeQueueNums", 8),
        perm=args.number("perm", PERM_READ | PERM_WRITE),
        topic_filter_type=SINGLE_TAG,
        topic_sys_flag=_unit_flags(call),
        order=args.boolean("order", False),
    )
    lines = []
    addresses = await masters(call)
    for address in addresses:
        await admin.update_topic(address, topic)
        lines.append(f"create topic to {address} success.")
    if topic.order:
        lines.append(await _order(call, topic, addresses))
    lines.append(topic_text(topic))
    return CommandResult({"brokers": addresses, "topic": topic}, "\n".join(lines))


async def _order(call: CommandContext, topic: TopicConfig, addresses: list[str]) -> str:
    """Register the brokers of an ordered topic with the name servers."""
    info = await call.admin.cluster_info()
    names = sorted(
        name
        for name, broker in info.broker_addr_table.items()
        if broker.broker_addrs.get(MASTER_ID) in addresses
    )
    text = ";".join(f"{name}:{topic.write_queue_nums}" for name in names)
    await call.admin.put_kv(ORDER_NAMESPACE, topic.topic_name, text)
    where = "broker" if call.args.has("brokerAddr") else "cluster"
    return f"set {where} orderConf. isOrder={java_bool(topic.order)}, orderConf=[{text}]"


async def delete_topic(call: CommandContext) -> CommandResult:
    topic, cluster = call.args.text("topic"), call.args.text("clusterName")
    addresses = await call.admin.masters(cluster)
    for address in addresses:
        await call.admin.delete_topic(address, topic)
    await call.admin.forget_topic(topic, None)
    lines = [
        f"delete topic [{topic}] from cluster [{cluster}] success.",
        f"delete topic [{topic}] from NameServer success.",
    ]
    return CommandResult({"topic": topic, "brokers": addresses}, "\n".join(lines))


async def update_topic_perm(call: CommandContext) -> CommandResult:
    topic, perm = call.args.text("topic"), call.args.number("perm", -1)
    route = await call.admin.route(topic)
    if not route.queue_datas:
        raise UsageError(f"the topic {topic} has no queues")
    addresses = await masters(call)
    names = {
        broker.broker_addrs.get(MASTER_ID): broker.broker_name for broker in route.broker_datas
    }
    lines, changed = [], []
    for queues in route.queue_datas:
        address = next((each for each in addresses if names.get(each) == queues.broker_name), None)
        if address is None:
            continue
        if queues.perm == perm:
            lines.append("new perm equals to the old one!")
            continue
        config = TopicConfig(
            topic,
            read_queue_nums=queues.read_queue_nums,
            write_queue_nums=queues.write_queue_nums,
            perm=perm,
            topic_sys_flag=queues.topic_sys_flag,
        )
        await call.admin.update_topic(address, config)
        changed.append(address)
        lines.append(f"update topic perm from {queues.perm} to {perm} in {address} success.")
        lines.append(f"{topic_text(config)}.")
    if not lines:
        raise UsageError("updateTopicPerm error broker not exit or broker is not master!.")
    return CommandResult({"topic": topic, "perm": perm, "brokers": changed}, "\n".join(lines))


async def topic_route(call: CommandContext) -> CommandResult:
    route = await call.admin.route(call.args.text("topic"))
    if not call.args.has("list"):
        return CommandResult(route, dumps(route.to_json(), pretty=True).decode())
    return CommandResult(route, _route_list(route))


def _route_list(route: TopicRouteData) -> str:
    queues = {data.broker_name: data for data in route.queue_datas}
    rows: list[list[object]] = []
    reads = writes = 0
    for broker in sorted(route.broker_datas, key=lambda each: each.broker_name):
        data = queues.get(broker.broker_name)
        if data is None:
            continue
        reads += data.read_queue_nums
        writes += data.write_queue_nums
        addresses = ", ".join(f"{key}={value}" for key, value in broker.broker_addrs.items())
        rows.append(
            [
                broker.cluster,
                broker.broker_name,
                f"{{{addresses}}}",
                data.read_queue_nums,
                data.write_queue_nums,
                data.perm,
            ]
        )
    line = "-" * 158
    total = _ROUTE.line(["Total:", len(rows), "", reads, writes, ""])
    return "\n".join([_ROUTE.text(rows), line, total])


async def topic_status(call: CommandContext) -> CommandResult:
    topic = call.args.text("topic")
    found = {}
    for broker in (await call.admin.route(topic)).broker_datas:
        address = broker.broker_addrs.get(MASTER_ID)
        if address is not None:
            found.update((await call.admin.topic_stats(address, topic)).offset_table)
    rows = [
        [
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            java_time(offset.last_update_timestamp) if offset.last_update_timestamp > 0 else "",
        ]
        for queue, offset in sorted(found.items())
    ]
    return CommandResult(found, _STATUS.text(rows))


async def topic_clusters(call: CommandContext) -> CommandResult:
    route = await call.admin.route(call.args.text("topic"))
    info = await call.admin.cluster_info()
    names = {broker.broker_name for broker in route.broker_datas}
    clusters = sorted(
        cluster for cluster, brokers in info.cluster_addr_table.items() if names & set(brokers)
    )
    return CommandResult(clusters, "\n".join(clusters))


async def topic_list(call: CommandContext) -> CommandResult:
    topics = await call.admin.topics()
    if not call.args.has("clusterModel"):
        return CommandResult(topics, "\n".join(topics))
    clusters = (await call.admin.cluster_info()).cluster_addr_table
    lines = [_LIST_TITLES.line([column.title for column in _LIST_TITLES.columns])]
    found = []
    for topic in topics:
        if is_retry_topic(topic) or is_dlq_topic(topic):
            continue
        try:
            route = await call.admin.route(topic)
        except RequestRejectedError:
            continue  # The topic was deleted since.
        names = {broker.broker_name for broker in route.broker_datas}
        cluster = next((each for each in sorted(clusters) if names & set(clusters[each])), "")
        groups = await groups_of(call, topic, route)
        found.append({"cluster": cluster, "topic": topic, "groups": groups})
        lines += [_LIST_ROWS.line([cluster, topic, group]) for group in groups or [""]]
    return CommandResult(found, "\n".join(lines))


async def groups_of(call: CommandContext, topic: str, route: TopicRouteData) -> list[str]:
    """Return the groups that consume ``topic`` according to its first broker with a master."""
    for broker in route.broker_datas:
        address = broker.broker_addrs.get(MASTER_ID)
        if address is not None:
            return await call.admin.consumers_of(address, topic)
    return []


async def allocate_queues(call: CommandContext) -> CommandResult:
    """Show the queues that the default strategy would assign to clients at these addresses."""
    topic = call.args.text("topic")
    clients = [part for part in call.args.text("ipList").split(",") if part]
    queues = subscribe_queues(topic, await call.admin.route(topic))
    shares: dict[str, list[MessageQueue]] = {
        client: allocate_averagely(client, queues, clients) for client in clients
    }
    shown = {client: [queue.to_json() for queue in share] for client, share in shares.items()}
    return CommandResult(shares, dumps({"result": shown}).decode())


async def update_order_conf(call: CommandContext) -> CommandResult:
    topic, method = call.args.text("topic"), call.args.text("method")
    if method == "get":
        text = await call.admin.kv(ORDER_NAMESPACE, topic)
        shown = f"get orderConf success. topic=[{topic}], orderConf=[{text or 'null'}] "
        return CommandResult({"topic": topic, "orderConf": text}, shown)
    if method == "put":
        text = call.args.optional("orderConf")
        if not text:
            raise UsageError("please set orderConf with option -v.")
        await call.admin.put_kv(ORDER_NAMESPACE, topic, text)
        shown = f"update orderConf success. topic=[{topic}], orderConf=[{text}]"
        return CommandResult({"topic": topic, "orderConf": text}, shown)
    if method == "delete":
        await call.admin.delete_kv(ORDER_NAMESPACE, topic)
        return CommandResult({"topic": topic}, f"delete orderConf success. topic=[{topic}]")
    raise UsageError(f"--method {method}: expected put, get or delete")


def topic_text(topic: TopicConfig) -> str:
    """Return the text of Java's TopicConfig.toString."""
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums},"
        f" writeQueueNums={topic.write_queue_nums}, perm={perm_text(topic.perm)},"
        f" topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag},"
        f" order={java_bool(topic.order)}]"
    )


def perm_text(perm: int) -> str:
    """Return the permissions in the form of Java's PermName, such as ``RW-``."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def _unit_flags(call: CommandContext) -> int:
    unit, has_sub = call.args.boolean("unit", False), call.args.boolean("hasUnitSub", False)
    return (UNIT_FLAG if unit else 0) | (UNIT_SUB_FLAG if has_sub else 0)


COMMANDS = (
    Command(
        name="updateTopic",
        help="create or change a topic",
        run=update_topic,
        options=(
            BROKER,
            CLUSTER,
            TOPIC,
            option("r", "readQueueNums", "queues to read from, default 8"),
            option("w", "writeQueueNums", "queues to write to, default 8"),
            option("p", "perm", "2 write, 4 read, 6 both; default 6"),
            option("o", "order", "true or false: ordered, registered with the name servers"),
            option("u", "unit", "true or false: a topic of a unit"),
            option("s", "hasUnitSub", "true or false: has unit subscriptions"),
        ),
    ),
    Command(
        name="deleteTopic",
        help="delete a topic from brokers and name servers",
        run=delete_topic,
        options=(TOPIC, evolve(CLUSTER, required=True)),
    ),
    Command(
        name="updateTopicPerm",
        help="change the read and write permissions of a topic",
        run=update_topic_perm,
        options=(
            BROKER,
            CLUSTER,
            TOPIC,
            option("p", "perm", "2 write, 4 read, 6 both", required=True),
        ),
    ),
    Command(
        name="topicRoute",
        help="show the route of a topic",
        run=topic_route,
        options=(TOPIC, option("l", "list", "print a table", flag=True)),
    ),
    Command(
        name="topicStatus",
        help="show the positions of a topic's queues",
        run=topic_status,
        options=(TOPIC,),
    ),
    Command(
        name="topicClusterList",
        help="list the clusters of a topic",
        run=topic_clusters,
        options=(TOPIC,),
    ),
    Command(
        name="topicList",
        help="list all topics",
        run=topic_list,
        options=(option("c", "clusterModel", "include cluster and consumer groups", flag=True),),
    ),
    Command(
        name="allocateMQ",
        help="show how the default strategy allocates a topic's queues",
        run=allocate_queues,
        options=(TOPIC, option("i", "ipList", "client ids, separated by ,", required=True)),
    ),
    Command(
        name="updateOrderConf",
        help="manage the ordered topics of the name servers",
        run=update_order_conf,
        options=(
            TOPIC,
            option("v", "orderConf", "brokerName1:num;brokerName2:num"),
            option("m", "method", "put, get or delete", required=True),
        ),
    ),
)
