"""Commands for brokers: runtime figures, settings, and cleaning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from rmqpy.admin.command import (
    BROKER,
    CLUSTER,
    Command,
    CommandContext,
    UsageError,
    masters,
    option,
)
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_time
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import ClusterInfo

HOUR_MS = 3_600_000
CONSUME_STATS_TIMEOUT_MS = 50_000

_CONSUME_STATS = OutputTable(
    [
        Column("#Topic", -64),
        Column("#Group", -64),
        Column("#Broker Name", -32),
        Column("#QID", -4),
        Column("#Broker Offset", -20),
        Column("#Consumer Offset", -20),
        Column("#Diff", -20),
        Column("#LastTime", 0),
    ]
)
_CLUSTER = OutputTable(
    [
        Column("#Cluster Name", -16),
        Column("#Broker Name", -22),
        Column("#BID", -4),
        Column("#Addr", -22),
        Column("#Version", -16),
        Column("#InTPS(LOAD)", 19),
        Column("#OutTPS(LOAD)", 19),
        Column("#PCWait(ms)", 10),
        Column("#Hour", 5),
        Column("#SPACE", 6),
    ],
    ["  ", "  ", "  ", " "],
)
_CLUSTER_MORE = OutputTable(
    [
        Column("#Cluster Name", -16),
        Column("#Broker Name", -32),
        Column("#InTotalYest", 14),
        Column("#OutTotalYest", 14),
        Column("#InTotalToday", 14),
        Column("#OutTotalToday", 14),
    ],
    ["  ", " "],
)


async def broker_status(call: CommandContext) -> CommandResult:
    broker, cluster = call.args.optional("brokerAddr"), call.args.optional("clusterName")
    if (broker is None) == (cluster is None):
        raise UsageError("give either -b BROKER (host:port) or -c CLUSTER")
    if broker is not None:
        info = await call.admin.runtime_info(broker)
        lines = [f"{key:<32}: {info[key]}" for key in sorted(info)]
        return CommandResult({broker: info}, "\n".join(lines))
    assert cluster is not None
    found = {}
    lines = []
    for master, slaves in (await call.admin.members(cluster)).items():
        for address in [master, *slaves]:
            info = found[address] = await call.admin.runtime_info(address)
            lines += [f"{address:<24} {key:<32}: {info[key]}" for key in sorted(info)]
    return CommandResult(found, "\n".join(lines))


async def get_broker_config(call: CommandContext) -> CommandResult:
    broker, cluster = call.args.optional("brokerAddr"), call.args.optional("clusterName")
    if (broker is None) == (cluster is None):
        raise UsageError("give either -b BROKER (host:port) or -c CLUSTER")
    titles = {}
    if broker is not None:
        titles[broker] = f"============{broker}============"
    else:
        assert cluster is not None
        for master, slaves in (await call.admin.members(cluster)).items():
            titles[master] = f"============Master: {master}============"
            for slave in slaves:
                titles[slave] = f"============My Master: {master}=====Slave: {slave}============"
    found, lines = {}, []
    for address, title in titles.items():
        found[address] = await call.admin.broker_config(address)
        lines += [title, settings_text(found[address]), ""]
    return CommandResult(found, "\n".join(lines))


async def update_broker_config(call: CommandContext) -> CommandResult:
    key, value = call.args.text("key"), call.args.text("value")
    addresses = await masters(call)
    lines = []
    for address in addresses:
        await call.admin.update_broker_config(address, {key: value})
        lines.append(f"update broker config success, {address}")
    return CommandResult({"brokers": addresses, "key": key, "value": value}, "\n".join(lines))


def _on_all(method: str) -> Callable[[CommandContext], Awaitable[CommandResult]]:
    """Return a command that calls ``method`` for the broker of ``-b`` or the masters of ``-c``.

    Without these options it calls ``method`` for every master.
    """

    async def run(call: CommandContext) -> CommandResult:
        if call.args.has("brokerAddr") or call.args.has("clusterName"):
            addresses = await masters(call)
        else:
            info = await call.admin.cluster_info()
            addresses = [
                address
                for cluster in sorted(info.cluster_addr_table)
                for address in await call.admin.masters(cluster)
            ]
        for address in addresses:
            await getattr(call.admin, method)(address)
        return CommandResult({"brokers": addresses}, "success")

    return run


async def broker_consume_stats(call: CommandContext) -> CommandResult:
    args = call.args
    stats = await call.admin.broker_consume_stats(
        args.text("brokerAddr"),
        args.boolean("order", False),
        args.number("timeoutMillis", CONSUME_STATS_TIMEOUT_MS),
    )
    least = args.number("level", 0)
    rows = []
    for groups in stats.consume_stats_list:
        for group, several in groups.items():
            for one in several:
                for queue, offset in sorted(one.offset_table.items()):
                    lag = offset.broker_offset - offset.consumer_offset
                    if lag >= least and offset.last_timestamp > 0:
                        rows.append(
                            [
                                queue.topic,
                                group,
                                queue.broker_name,
                                queue.queue_id,
                                offset.broker_offset,
                                offset.consumer_offset,
                                lag,
                                java_time(offset.last_timestamp, millis=False),
                            ]
                        )
    text = f"{_CONSUME_STATS.text(rows)}\n\nDiff Total: {stats.total_diff}"
    return CommandResult(stats, text)


async def cluster_list(call: CommandContext) -> CommandResult:
    info = await call.admin.cluster_info()
    runtime = {}
    for _, _, _, address in _brokers(info):
        try:
            runtime[address] = await call.admin.runtime_info(address)
        except RmqError as fault:  # The other brokers are shown although this one is down.
            runtime[address] = {}
            call.show(f"{address}: {fault}")
    data = [
        {
            "cluster": cluster,
            "broker": name,
            "id": number,
            "address": address,
            "runtime": runtime[address],
        }
        for cluster, name, number, address in _brokers(info)
    ]
    if call.args.has("moreStats"):
        rows = [
            [cluster, name, *_totals(runtime[address])]
            for cluster, name, _, address in _brokers(info)
        ]
        return CommandResult(data, _CLUSTER_MORE.text(rows))
    now_ms = call.admin.instance.clock.now_ms()
    rows = [
        [cluster, name, number, address, *_load(runtime[address], now_ms)]
        for cluster, name, number, address in _brokers(info)
    ]
    return CommandResult(data, _CLUSTER.text(rows))


def _brokers(info: ClusterInfo) -> list[tuple[str, str, int, str]]:
    """Return (cluster, broker name, id, address) of all brokers, sorted."""
    return [
        (cluster, name, number, address)
        for cluster in sorted(info.cluster_addr_table)
        for name in sorted(info.cluster_addr_table[cluster])
        if name in info.broker_addr_table
        for number, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


def _load(runtime: Mapping[str, str], now_ms: int) -> list[str]:
    incoming, outgoing = _first(runtime, "putTps"), _first(runtime, "getTransferedTps")
    sends = f"{runtime.get('sendThreadPoolQueueSize', '')}"
    sends += f",{runtime.get('sendThreadPoolQueueHeadWaitTimeMills', '')}ms"
    pulls = f"{runtime.get('pullThreadPoolQueueSize', '')}"
    pulls += f",{runtime.get('pullThreadPoolQueueHeadWaitTimeMills', '')}ms"
    earliest = runtime.get("earliestMessageTimeStamp")
    hours = (now_ms - int(earliest)) / HOUR_MS if earliest else 0.0
    space = float(runtime.get("commitLogDiskRatio") or 0)
    return [
        runtime.get("brokerVersionDesc", ""),
        f"{incoming:9.2f}({sends})",
        f"{outgoing:9.2f}({pulls})",
        runtime.get("pageCacheLockTimeMills", ""),
        f"{hours:.2f}",
        f"{space:.4f}",
    ]


def _totals(runtime: Mapping[str, str]) -> list[int]:
    def between(later: str, earlier: str) -> int:
        return int(runtime.get(later, 0)) - int(runtime.get(earlier, 0))

    return [
        between("msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
        between("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
        between("msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        between("msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
    ]


def _first(runtime: Mapping[str, str], key: str) -> float:
    words = runtime.get(key, "").split()
    return float(words[0]) if words else 0.0


def settings_text(settings: Mapping[str, str]) -> str:
    """Return one line per setting, as getBrokerConfig prints them."""
    return "\n".join(f"{key:<50}=  {value}" for key, value in settings.items())


COMMANDS = (
    Command(
        name="brokerStatus",
        help="show runtime figures of brokers",
        run=broker_status,
        options=(BROKER, CLUSTER),
    ),
    Command(
        name="getBrokerConfig",
        help="show the settings of brokers",
        run=get_broker_config,
        options=(BROKER, CLUSTER),
    ),
    Command(
        name="updateBrokerConfig",
        help="change one setting of a running broker",
        run=update_broker_config,
        options=(
            BROKER,
            CLUSTER,
            option("k", "key", "key of the setting", required=True),
            option("v", "value", "its new value", required=True),
        ),
    ),
    Command(
        name="cleanExpiredCQ",
        help="delete consume queue files of expired messages",
        run=_on_all("clean_expired_queues"),
        options=(BROKER, option("c", "clusterName", "all masters of this cluster")),
    ),
    Command(
        name="cleanUnusedTopic",
        help="delete consume queues of deleted topics",
        run=_on_all("clean_unused_topics"),
        options=(BROKER, CLUSTER),
    ),
    Command(
        name="deleteExpiredCommitLog",
        help="delete expired commit log files now",
        run=_on_all("delete_expired_log"),
        options=(BROKER, CLUSTER),
    ),
    Command(
        name="brokerConsumeStats",
        help="show how far each group of a broker has consumed",
        run=broker_consume_stats,
        options=(
            option("b", "brokerAddr", "the broker, as host:port", required=True),
            option("t", "timeoutMillis", "time for the answer, default 50000"),
            option("l", "level", "show only queues that lag by at least this number of messages"),
            option("o", "order", "true or false: ordered topics only"),
        ),
    ),
    Command(
        name="clusterList",
        help="list all clusters with their brokers",
        run=cluster_list,
        options=(
            option("m", "moreStats", "show the totals of today and yesterday", flag=True),
            option("i", "interval", "seconds between repetitions"),
        ),
    ),
)
