"""What the broker counts, as text for Prometheus: names and labels of rocketmq-exporter, and a few
series of our own.

===============================  ===============================================================
name                             labels
===============================  ===============================================================
rocketmq_brokeruntime_*          cluster, brokerIP, brokerHost, des, boottime, broker_version
rocketmq_broker_tps, _qps        cluster, brokerIP, broker
rocketmq_producer_*              cluster, broker, topic
rocketmq_consumer_*,             cluster, broker, topic, group
rocketmq_send_back_nums
rocketmq_group_diff, _retrydiff, group, topic, countOfOnlineConsumers, msgModel
_dlqdiff
rocketmq_group_count             caddr, localaddr, group
rmqpy_*                          broker; role, peer or slave where there are several
===============================  ===============================================================

Everything is read off the tables when it is asked for. Bound: ``SERIES_MAX`` lines; what does not
fit is counted in ``rmqpy_series_left_out``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from rmqpy.broker.state import broker_stats as items
from rmqpy.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    group_of_retry_topic,
    is_retry_topic,
)

if TYPE_CHECKING:
    from rmqpy.broker.assembly.server import BrokerServer

SERIES_MAX: Final = 100_000
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels, value."""

_RUNTIME: Final[Mapping[str, str]] = {
    "msgPutTotalTodayNow": "msg_put_total_today_now",
    "msgGetTotalTodayNow": "msg_gettotal_today_now",
    "msgPutTotalYesterdayMorning": "msg_puttotal_yesterdaymorning",
    "msgGetTotalYesterdayMorning": "msg_gettotal_yesterdaymorning",
    "msgPutTotalTodayMorning": "msg_puttotal_todaymorning",
    "msgGetTotalTodayMorning": "msg_gettotal_todaymorning",
    "dispatchBehindBytes": "dispatch_behind_bytes",
    "putMessageSizeTotal": "put_message_size_total",
    "putMessageAverageSize": "put_message_average_size",
    "remainTransientStoreBufferNumbs": "remain_transientstore_buffer_numbs",
    "earliestMessageTimeStamp": "earliest_message_timestamp",
    "putMessageEntireTimeMax": "putmessage_entire_time_max",
    "startAcceptSendRequestTimeStamp": "start_accept_sendrequest_time",
    "putMessageTimesTotal": "putmessage_times_total",
    "getMessageEntireTimeMax": "getmessage_entire_time_max",
    "pageCacheLockTimeMills": "pagecache_lock_time_mills",
    "commitLogDiskRatio": "commitlog_disk_ratio",
    "consumeQueueDiskRatio": "consumequeue_disk_ratio",
    "dispatchMaxBuffer": "dispatch_maxbuffer",
    "sendThreadPoolQueueSize": "send_threadpool_queue_size",
    "sendThreadPoolQueueCapacity": "send_threadpoolqueue_capacity",
    "pullThreadPoolQueueSize": "pull_threadpoolqueue_size",
    "pullThreadPoolQueueCapacity": "pull_threadpoolqueue_capacity",
    "queryThreadPoolQueueSize": "query_threadpoolqueue_size",
    "queryThreadPoolQueueCapacity": "query_threadpool_queue_capacity",
    "sendThreadPoolQueueHeadWaitTimeMills": "send_threadpoolqueue_headwait_timemills",
    "pullThreadPoolQueueHeadWaitTimeMills": "pull_threadpoolqueue_headwait_timemills",
    "queryThreadPoolQueueHeadWaitTimeMills": "query_threadpoolqueue_headwait_timemills",
    "commitLogMaxOffset": "commitlog_maxoffset",
    "commitLogMinOffset": "commitlog_minoffset",
}
"""Key of the runtime information to what stands behind ``rocketmq_brokeruntime_``."""
_RATES: Final = ("getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps", "putTps")
_WINDOWS: Final = ("10", "60", "600")
_PUT_TIMES: Final = (
    "0ms",
    "0to10ms",
    "10to50ms",
    "50to100ms",
    "100to200ms",
    "200to500ms",
    "500to1s",
    "1to2s",
) + ("2to3s", "3to4s", "4to5s", "5to10s", "10stomore")


def metrics_text(broker: BrokerServer) -> str:
    """The page: one ``# TYPE`` line a name, then its samples."""
    by_name: dict[str, list[str]] = {}
    left_out = 0
    for count, (name, labels, value) in enumerate(_samples(broker)):
        if count >= SERIES_MAX:
            left_out += 1
            continue
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        by_name.setdefault(name, []).append(f"{name}{{{pairs}}} {value:g}")
    lines = []
    for name, samples in by_name.items():
        lines += [f"# TYPE {name} gauge", *samples]
    lines += ["# TYPE rmqpy_series_left_out gauge", f"rmqpy_series_left_out {left_out}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(broker: BrokerServer) -> Iterator[Sample]:
    runtime = broker.information.table()
    yield from _own(broker, runtime)
    yield from _runtime(broker, runtime)
    yield from _broker_rates(broker)
    for topic in broker.topics.topics:
        yield from _topic(broker, topic)
    yield from _online(broker)


def _runtime(broker: BrokerServer, runtime: Mapping[str, str]) -> Iterator[Sample]:
    identity = broker.identity
    labels = {
        "cluster": identity.cluster,
        "brokerIP": identity.address,
        "brokerHost": identity.name,
        "des": runtime["brokerVersionDesc"],
        "boottime": runtime["bootTimestamp"],
        "broker_version": runtime["brokerVersion"],
    }
    prefix = "rocketmq_brokeruntime_"
    for key, name in _RUNTIME.items():
        yield prefix + name, labels, float(runtime[key])
    for key in _RATES:
        for window, rate in zip(_WINDOWS, runtime[key].split(), strict=True):
            yield f"{prefix}{key.lower().replace('tps', '_tps')}{window}", labels, float(rate)
    counts = re.findall(r"\]:(\d+)", runtime["putMessageDistributeTime"])
    for name, count in zip(_PUT_TIMES, counts, strict=True):
        yield f"{prefix}pmdt_{name}", labels, float(count)


def _broker_rates(broker: BrokerServer) -> Iterator[Sample]:
    identity = broker.identity
    labels = {"cluster": identity.cluster, "brokerIP": identity.address, "broker": identity.name}
    for name, item in (
        ("rocketmq_broker_tps", items.BROKER_PUT_NUMS),
        ("rocketmq_broker_qps", items.BROKER_GET_NUMS),
    ):
        yield name, labels, _rate(broker, item, identity.cluster)


def _rate(broker: BrokerServer, name: str, key: str) -> float:
    """Of the last minute."""
    item = broker.item_statistics.find(name, key)
    minute = item.data().stats_minute if item is not None else None
    return minute.tps if minute is not None else 0.0


def _topic(broker: BrokerServer, topic: str) -> Iterator[Sample]:
    labels = {"cluster": broker.identity.cluster, "broker": broker.identity.name, "topic": topic}
    queues = range(broker.topics.topics[topic].write_queue_nums)
    ends = {queue: broker.store.reader.max_queue_offset(topic, queue) for queue in queues}
    whole = float(sum(ends.values()))
    if is_retry_topic(topic):
        yield "rocketmq_topic_retry_offset", labels, whole
    elif topic.startswith(DLQ_PREFIX):
        group = topic[len(DLQ_PREFIX) :]
        of_group = {"cluster": labels["cluster"], "broker": labels["broker"], "group": group}
        yield "rocketmq_topic_dlq_offset", of_group, whole
    elif whole:
        yield "rocketmq_producer_offset", labels, whole
        yield "rocketmq_producer_tps", labels, _rate(broker, items.TOPIC_PUT_NUMS, topic)
        size = _rate(broker, items.TOPIC_PUT_SIZE, topic)
        yield "rocketmq_producer_message_size", labels, size
    for group in broker.offsets.groups_of(topic):
        yield from _group(broker, topic, group, ends)


def _group(
    broker: BrokerServer, topic: str, group: str, ends: Mapping[int, int]
) -> Iterator[Sample]:
    consumed = broker.offsets.queues(group, topic)
    behind = sum(max(0, ends.get(queue, 0) - offset) for queue, offset in consumed.items())
    online = broker.clients.consumer_group(group)
    labels = {
        "group": group,
        "topic": topic,
        "countOfOnlineConsumers": str(len(online.members) if online is not None else 0),
        "msgModel": "1" if online is not None and online.is_broadcast else "0",
    }
    name = "rocketmq_group_diff"
    if topic.startswith(RETRY_PREFIX):
        name = "rocketmq_group_retrydiff"
    elif topic.startswith(DLQ_PREFIX):
        name = "rocketmq_group_dlqdiff"
    yield name, labels, float(behind)
    identity = broker.identity
    of_group = {
        "cluster": identity.cluster, "broker": identity.name, "topic": topic, "group": group,
    }  # fmt: skip
    key = f"{topic}@{group}"
    yield "rocketmq_consumer_offset", of_group, float(sum(consumed.values()))
    for name, item in (
        ("rocketmq_consumer_tps", items.GROUP_GET_NUMS),
        ("rocketmq_consumer_message_size", items.GROUP_GET_SIZE),
        ("rocketmq_send_back_nums", items.SNDBCK_PUT_NUMS),
    ):
        yield name, of_group, _rate(broker, item, key)


def _online(broker: BrokerServer) -> Iterator[Sample]:
    retried = filter(is_retry_topic, broker.topics.topics)
    for name in sorted({group_of_retry_topic(topic) for topic in retried}):
        group = broker.clients.consumer_group(name)
        if group is not None:
            clients = ",".join(group.client_ids)
            labels = {"caddr": clients, "localaddr": broker.identity.address, "group": name}
            yield "rocketmq_group_count", labels, float(len(group.members))
    for name, members in broker.clients.producer_groups.items():
        labels = {
            "cluster": broker.identity.cluster, "broker": broker.identity.name, "group": name,
        }  # fmt: skip
        yield "rocketmq_producer_count", labels, float(len(members))


def _own(broker: BrokerServer, runtime: Mapping[str, str]) -> Iterator[Sample]:
    """Role, term, commit, lag, divided offset."""
    labels = {"broker": broker.identity.name}
    role = "slave" if broker.identity.is_slave else "master"
    status = broker.member_status() if broker.member_status is not None else {}
    if status:
        role = str(status["role"]).lower()
    yield "rmqpy_role", labels | {"role": role}, 1.0
    yield "rmqpy_replies_waiting", labels, float(broker.gate.waiting)
    if "dividedCommitlogOffset" in runtime:
        yield "rmqpy_divided_offset", labels, float(runtime["dividedCommitlogOffset"])
    yield "rmqpy_confirmed_offset", labels, float(runtime["commitLogMaxOffset"])
    for key in ("term", "committed", "end"):
        if key in status:
            name = f"rmqpy_dledger_{key}" + ("_index" if key != "term" else "")
            yield name, labels, float(str(status[key]))
    for peer, lag in _lags(status):
        yield "rmqpy_dledger_lag_entries", labels | {"peer": peer}, lag
    for slave, behind in broker.replication.lags():
        yield "rmqpy_replication_lag_bytes", labels | {"slave": slave}, float(behind)


def _lags(status: Mapping[str, object]) -> Iterable[tuple[str, float]]:
    peers = status.get("peers", [])
    assert isinstance(peers, list)
    return [(str(peer["id"]), float(peer["lag"])) for peer in peers if "lag" in peer]
