"""Commands that export a cluster into JSON files: metadata, settings, figures."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from attrs import evolve

from rmqpy.admin.command import BROKER, CLUSTER, Command, CommandContext, UsageError, option
from rmqpy.admin.output import CommandResult
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import INITIAL_GROUPS, is_dlq_topic, is_retry_topic, is_system_group
from rmqpy.model.near_names import did_you_mean
from rmqpy.remoting.bodies import BrokerStatsData, SubscriptionGroupConfig, TopicConfig
from rmqpy.remoting.command import CURRENT_VERSION, LANGUAGES, version_text

FOLDER = "rocketmq/export"
"""The default folder, as in mqadmin; it is below the system's temporary folder."""

_SHOWN_SETTINGS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)


async def export_metadata(call: CommandContext) -> CommandResult:
    args, admin = call.args, call.admin
    if args.has("brokerAddr"):
        addresses = [args.text("brokerAddr")]
    elif args.has("clusterName"):
        addresses = await admin.masters(args.text("clusterName"))
    else:
        raise UsageError("give either -b BROKER (host:port) or -c CLUSTER")
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for address in addresses:
        for name, topic in (await _user_topics(call, address)).items():
            known = topics.get(name)
            if known is not None:
                topic = evolve(
                    topic,
                    read_queue_nums=known.read_queue_nums + topic.read_queue_nums,
                    write_queue_nums=known.write_queue_nums + topic.write_queue_nums,
                )
            topics[name] = topic
        for name, group in (await _user_groups(call, address)).items():
            before = groups[name].retry_queue_nums if name in groups else 0
            groups[name] = evolve(group, retry_queue_nums=before + group.retry_queue_nums)
    result: dict[str, Any] = {"exportTime": admin.instance.clock.now_ms()}
    name = "metadata"
    if args.has("topic") or not args.has("subscriptionGroup"):
        result["topicConfigTable"] = {key: each.to_json() for key, each in topics.items()}
        name = "topic" if args.has("topic") else name
    if args.has("subscriptionGroup") or not args.has("topic"):
        result["subscriptionGroupTable"] = {key: each.to_json() for key, each in groups.items()}
        name = "subscriptionGroup" if args.has("subscriptionGroup") else name
    return _written(call, f"{name}.json", result)


async def export_configs(call: CommandContext) -> CommandResult:
    settings, slaves = {}, 0
    members = await call.admin.members(call.args.text("clusterName"))
    for master, others in members.items():
        slaves += len(others)
        every = await call.admin.broker_config(master)
        settings[every.get("brokerName", master)] = {
            key: every[key] for key in _SHOWN_SETTINGS if key in every
        }
    scale = {
        "namesrvSize": len(call.admin.name_servers),
        "masterBrokerSize": len(members),
        "slaveBrokerSize": slaves,
    }
    return _written(call, "configs.json", {"brokerConfigs": settings, "clusterScale": scale})


async def export_metrics(call: CommandContext) -> CommandResult:
    info = await call.admin.cluster_info()
    cluster = call.args.text("clusterName")
    reports = {}
    for name in sorted(info.cluster_addr_table.get(cluster, [])):
        address = info.broker_addr_table[name].broker_addrs.get(MASTER_ID)
        if address is not None:
            reports[name] = await _report(call, address)
    if not reports:
        hint = did_you_mean(cluster, info.cluster_addr_table)
        raise UsageError(f"the cluster {cluster} has no master{hint}")
    rates = [each["runtimeQuota"]["tps"] for each in reports.values()]
    counts = [each["runtimeQuota"]["oneDayNum"] for each in reports.values()]
    totals = {
        "totalTps": {
            f"total{key[0].upper()}{key[1:]}": sum(each[key] for each in rates) for key in rates[0]
        },
        "totalOneDayNum": {key: sum(each[key] for each in counts) for key in counts[0]},
    }
    return _written(call, "metrics.json", {"evaluateReport": reports, "totalData": totals})


async def _report(call: CommandContext, address: str) -> dict[str, Any]:
    runtime = await call.admin.runtime_info(address)
    settings = await call.admin.broker_config(address)
    groups = await _user_groups(call, address)
    topics = await _user_topics(call, address)
    half = await _put_stats(call, address, "RMQ_SYS_TRANS_HALF_TOPIC")
    delayed = await _put_stats(call, address, "SCHEDULE_TOPIC_XXXX")

    def day(name: str) -> int:
        return int(runtime.get(f"{name}TodayMorning", 0)) - int(
            runtime.get(f"{name}YesterdayMorning", 0)
        )

    return {
        "runtimeEnv": {
            "cpuNum": settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {
                key: runtime.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")
            },
            "tps": {
                "normalInTps": _first(runtime.get("putTps")),
                "normalOutTps": _first(runtime.get("getTransferedTps")),
                "transInTps": _tps(half),
                "scheduleInTps": _tps(delayed),
            },
            "oneDayNum": {
                "normalOneDayInNum": day("msgPutTotal"),
                "normalOneDayOutNum": day("msgGetTotal"),
                "transOneDayInNum": _sum(half),
                "scheduleOneDayInNum": _sum(delayed),
            },
            "messageAverageSize": runtime.get("putMessageAverageSize"),
            "topicSize": len(topics),
            "groupSize": len(groups),
        },
        "runtimeVersion": {
            "rocketmqVersion": version_text(CURRENT_VERSION),
            "clientInfo": await _clients(call, address, list(groups)),
        },
    }


async def _clients(call: CommandContext, address: str, groups: list[str]) -> list[str]:
    found = set()
    for group in groups:
        try:
            connections = await call.admin.consumer_connections(address, group)
        except RmqError:
            continue  # No client is online.
        for client in connections.connection_set:
            language = client.language or LANGUAGES[0]
            found.add(f"{language}%{version_text(client.version)}")
    return sorted(found)


async def _put_stats(call: CommandContext, address: str, topic: str) -> BrokerStatsData | None:
    try:
        return await call.admin.broker_stats(address, "TOPIC_PUT_NUMS", topic)
    except RmqError:
        return None  # No message was put.


async def _user_topics(call: CommandContext, address: str) -> dict[str, TopicConfig]:
    system = set(await call.admin.system_topics(address))
    special = call.args.has("specialTopic")
    table = (await call.admin.all_topics(address)).topic_config_table
    return {
        name: topic
        for name, topic in table.items()
        if name not in system and (special or not (is_retry_topic(name) or is_dlq_topic(name)))
    }


async def _user_groups(call: CommandContext, address: str) -> dict[str, SubscriptionGroupConfig]:
    table = (await call.admin.all_groups(address)).subscription_group_table
    return {
        name: group
        for name, group in table.items()
        if not is_system_group(name) and name not in INITIAL_GROUPS
    }


def _first(text: str | None) -> float:
    return float(text.split()[0]) if text else 0.0


def _tps(stats: BrokerStatsData | None) -> float:
    return stats.stats_minute.tps if stats is not None and stats.stats_minute is not None else 0.0


def _sum(stats: BrokerStatsData | None) -> int:
    if stats is None:
        return 0
    spans = (stats.stats_day, stats.stats_hour, stats.stats_minute)
    return next((each.sum for each in spans if each is not None and each.sum), 0)


def _written(call: CommandContext, name: str, result: dict[str, Any]) -> CommandResult:
    args = call.args.optional("filePath")
    folder = Path(args) if args else Path(tempfile.gettempdir()) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(result, indent="\t", ensure_ascii=False) + "\n")
    return CommandResult({"path": str(path), "content": result}, f"export {path} success")


_FILE = option("f", "filePath", f"folder, default {FOLDER} in the temporary folder")
_WHOLE_CLUSTER = evolve(CLUSTER, required=True)

COMMANDS = (
    Command(
        name="exportMetadata",
        help="export topics and groups of a broker or a cluster",
        run=export_metadata,
        options=(
            CLUSTER,
            BROKER,
            _FILE,
            option("t", "topic", "topics only", flag=True),
            option("g", "subscriptionGroup", "groups only", flag=True),
            option("s", "specialTopic", "include retry topics and dead letter topics", flag=True),
        ),
    ),
    Command(
        name="exportConfigs",
        help="export the settings of a cluster's masters",
        run=export_configs,
        options=(_WHOLE_CLUSTER, _FILE),
    ),
    Command(
        name="exportMetrics",
        help="export figures of a cluster's masters",
        run=export_metrics,
        options=(_WHOLE_CLUSTER, _FILE),
    ),
)
