"""The metrics of a broker as text for Prometheus: the names and labels of rocketmq-exporter, and a
few series of our own.

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
rmqpy_*                          broker; role, peer or slave for some
===============================  ===============================================================

All values are read from the tables for each request. Bound: ``SERIES_MAX`` lines; the lines left
out are counted in ``rmqpy_series_left_out``. The module imports aiohttp, and is itself imported
only if ``metricsListenAddress`` is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from aiohttp import web
from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import MessageReader
from rmqpy.broker.processors.admin.runtime_info import RuntimeInfoProcessor
from rmqpy.broker.state import broker_stats as items
from rmqpy.broker.state.broker_stats import ItemStatistics
from rmqpy.broker.state.clients import ClientTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    group_of_retry_topic,
    is_retry_topic,
)
from rmqpy.net.pending_replies import SendGate
from rmqpy.net.unsent import UnsentBytes
from rmqpy.store.files import lost_pages

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
"""Key of the runtime information to the name that follows ``rocketmq_brokeruntime_``."""
_TURNED_AWAY: Final = {
    "replicationStrangers": "rmqpy_replication_strangers",
    "dledgerRequestsTurnedAway": "rmqpy_dledger_turned_away",
}
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


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class Metrics:
    """The metrics of a broker, read from its tables."""

    identity: BrokerContext
    store: MessageReader
    topics: TopicTable
    offsets: ConsumerOffsetTable
    clients: ClientTable
    item_statistics: ItemStatistics
    information: RuntimeInfoProcessor
    gate: SendGate
    replication: ReplicationStatus
    unsent: UnsentBytes
    member_status: Callable[[], Mapping[str, object]] | None
    """Returns the status of a member of a DLedger group; None outside of a group."""

    def text(self) -> str:
        """Return the page: one ``# TYPE`` line per name, then its samples."""
        by_name: dict[str, list[str]] = {}
        left_out = 0
        for count, (name, labels, value) in enumerate(self._samples()):
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

    def _samples(self) -> Iterator[Sample]:
        runtime = self.information.table()
        yield from self._own(runtime)
        yield from self._runtime(runtime)
        yield from self._broker_rates()
        for topic in self.topics.topics:
            yield from self._topic(topic)
        yield from self._online()

    def _runtime(self, runtime: Mapping[str, str]) -> Iterator[Sample]:
        identity = self.identity
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

    def _broker_rates(self) -> Iterator[Sample]:
        identity = self.identity
        labels = {
            "cluster": identity.cluster,
            "brokerIP": identity.address,
            "broker": identity.name,
        }
        for name, item in (
            ("rocketmq_broker_tps", items.BROKER_PUT_NUMS),
            ("rocketmq_broker_qps", items.BROKER_GET_NUMS),
        ):
            yield name, labels, self._rate(item, identity.cluster)

    def _rate(self, name: str, key: str) -> float:
        """Return the rate per second of an item during the last minute."""
        item = self.item_statistics.find(name, key)
        minute = item.data().stats_minute if item is not None else None
        return minute.tps if minute is not None else 0.0

    def _topic(self, topic: str) -> Iterator[Sample]:
        labels = {"cluster": self.identity.cluster, "broker": self.identity.name, "topic": topic}
        queues = range(self.topics.topics[topic].write_queue_nums)
        ends = {queue: self.store.max_queue_offset(topic, queue) for queue in queues}
        whole = float(sum(ends.values()))
        if is_retry_topic(topic):
            yield "rocketmq_topic_retry_offset", labels, whole
        elif topic.startswith(DLQ_PREFIX):
            group = topic[len(DLQ_PREFIX) :]
            of_group = {"cluster": labels["cluster"], "broker": labels["broker"], "group": group}
            yield "rocketmq_topic_dlq_offset", of_group, whole
        elif whole:
            yield "rocketmq_producer_offset", labels, whole
            yield "rocketmq_producer_tps", labels, self._rate(items.TOPIC_PUT_NUMS, topic)
            size = self._rate(items.TOPIC_PUT_SIZE, topic)
            yield "rocketmq_producer_message_size", labels, size
        for group in self.offsets.groups_of(topic):
            yield from self._group(topic, group, ends)

    def _group(self, topic: str, group: str, ends: Mapping[int, int]) -> Iterator[Sample]:
        consumed = self.offsets.queues(group, topic)
        behind = sum(max(0, ends.get(queue, 0) - offset) for queue, offset in consumed.items())
        online = self.clients.consumer_group(group)
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
        identity = self.identity
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
            yield name, of_group, self._rate(item, key)

    def _online(self) -> Iterator[Sample]:
        retried = filter(is_retry_topic, self.topics.topics)
        for name in sorted({group_of_retry_topic(topic) for topic in retried}):
            group = self.clients.consumer_group(name)
            if group is not None:
                clients = ",".join(group.client_ids)
                labels = {"caddr": clients, "localaddr": self.identity.address, "group": name}
                yield "rocketmq_group_count", labels, float(len(group.members))
        for name, members in self.clients.producer_groups.items():
            labels = {
                "cluster": self.identity.cluster, "broker": self.identity.name, "group": name,
            }  # fmt: skip
            yield "rocketmq_producer_count", labels, float(len(members))

    def _own(self, runtime: Mapping[str, str]) -> Iterator[Sample]:
        """Yield rmqpy's own series: role, term, commit, lag, divided offset."""
        labels = {"broker": self.identity.name}
        role = "slave" if self.identity.is_slave else "master"
        status = self.member_status() if self.member_status is not None else {}
        if status:
            role = str(status["role"]).lower()
        yield "rmqpy_role", labels | {"role": role}, 1.0
        yield "rmqpy_replies_waiting", labels, float(self.gate.waiting)
        yield "rmqpy_unsent_bytes", labels, float(self.unsent.total)
        yield "rmqpy_unread_pauses", labels, float(self.unsent.pauses)
        yield "rmqpy_unread_disconnects", labels, float(self.unsent.disconnected)
        if "dividedCommitlogOffset" in runtime:
            yield "rmqpy_divided_offset", labels, float(runtime["dividedCommitlogOffset"])
        yield "rmqpy_hidden_messages", labels, float(runtime.get("hiddenMessages", 0))
        for key, name in _TURNED_AWAY.items():
            if key in runtime:
                yield name, labels, float(runtime[key])
        blocking = float(runtime.get("messagesBlockingLeave", 0))
        yield "rmqpy_messages_blocking_leave", labels, blocking
        yield "rmqpy_files_with_lost_pages", labels, float(len(lost_pages.known))
        yield "rmqpy_confirmed_offset", labels, float(runtime["commitLogMaxOffset"])
        for key in ("term", "committed", "end"):
            if key in status:
                name = f"rmqpy_dledger_{key}" + ("_index" if key != "term" else "")
                yield name, labels, float(str(status[key]))
        for peer, lag in _lags(status):
            yield "rmqpy_dledger_lag_entries", labels | {"peer": peer}, lag
        for slave, behind in self.replication.lags():
            yield "rmqpy_replication_lag_bytes", labels | {"slave": slave}, float(behind)


class MetricsPage:
    """The HTTP page of the metrics. It has no access control: any host that can connect may read
    it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._source = metrics
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> str:
        """Serve ``/metrics`` and return the address that is listened on. Raises OSError if the port
        is in use.
        """
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        listening, actual = self._runner.addresses[0][:2]
        return f"{listening}:{actual}"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = self._source.text().encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lags(status: Mapping[str, object]) -> Iterable[tuple[str, float]]:
    peers = status.get("peers", [])
    assert isinstance(peers, list)
    return [(str(peer["id"]), float(peer["lag"])) for peer in peers if "lag" in peer]
