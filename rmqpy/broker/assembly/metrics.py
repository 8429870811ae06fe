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

All values are read from the tables for each request, in small steps between which the broker
serves its clients. Bound: after ``SERIES_MAX`` lines no further topic is examined;
``rmqpy_series_left_out`` is the number of lines that the others may have. The module is imported
only if ``metricsListenAddress`` is set.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field

from rmqpy.broker.assembly.resource_limits import ResourceLimits
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

SLICE_S: Final = 0.002
PAUSE_S: Final = 0.004
"""A page is made in slices of the first, in seconds, with a pause of the second between them."""
LINES_OF_TOPIC: Final = 3
LINES_OF_GROUP: Final = 5
"""The largest numbers of lines for a topic, and for a group that consumes it."""

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


@define(slots=True, eq=False, repr=False)
class MetricsText:
    """The lines of a page, by name."""

    count: int = 0
    left_out: int = 0
    _by_name: dict[str, list[str]] = field(factory=dict, init=False)

    def add(self, samples: Iterable[Sample]) -> None:
        for name, labels, value in samples:
            if self.count >= SERIES_MAX:
                self.left_out += 1
                continue
            self.count += 1
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._by_name.setdefault(name, []).append(f"{name}{{{pairs}}} {value:g}")

    def text(self) -> str:
        """Return the page: one ``# TYPE`` line per name, then its samples."""
        lines = []
        for name, samples in self._by_name.items():
            lines += [f"# TYPE {name} gauge", *samples]
        lines += ["# TYPE rmqpy_series_left_out gauge", f"rmqpy_series_left_out {self.left_out}"]
        return "\n".join(lines) + "\n"


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
    limits: ResourceLimits
    member_status: Callable[[], Mapping[str, object]]
    """Returns the status of a member of a DLedger group; empty outside of a group."""

    def text(self) -> str:
        """Return the page."""
        page = MetricsText()
        for _ in self.steps(page):
            pass
        return page.text()

    def steps(self, page: MetricsText) -> Iterator[None]:
        """Fill ``page`` in small steps. Tables may change between them."""
        runtime = self.information.table()
        for few in (self._own(runtime), self._runtime(runtime), self._broker_rates()):
            page.add(few)
        for some in self._online():
            page.add((some,))
            yield
        groups: dict[str, list[str]] = {}
        for topic, group in self.offsets.pairs():
            groups.setdefault(topic, []).append(group)
            yield
        for topic in list(self.topics.topics):
            if page.count < SERIES_MAX:
                page.add(self._topic(topic, groups.get(topic, ())))
            else:
                page.left_out += LINES_OF_TOPIC + LINES_OF_GROUP * len(groups.get(topic, ()))
            yield

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

    def _topic(self, topic: str, groups: Sequence[str]) -> Iterator[Sample]:
        config = self.topics.topics.get(topic)
        if config is None:
            return
        labels = {"cluster": self.identity.cluster, "broker": self.identity.name, "topic": topic}
        queues = range(config.write_queue_nums)
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
        for group in groups:
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
        retried = [topic for topic in self.topics.topics if is_retry_topic(topic)]
        for name in sorted({group_of_retry_topic(topic) for topic in retried}):
            group = self.clients.consumer_group(name)
            if group is not None:
                clients = ",".join(group.client_ids)
                labels = {"caddr": clients, "localaddr": self.identity.address, "group": name}
                yield "rocketmq_group_count", labels, float(len(group.members))
        for name, members in list(self.clients.producer_groups.items()):
            labels = {
                "cluster": self.identity.cluster, "broker": self.identity.name, "group": name,
            }  # fmt: skip
            yield "rocketmq_producer_count", labels, float(len(members))

    def _own(self, runtime: Mapping[str, str]) -> Iterator[Sample]:
        """Yield rmqpy's own series: role, term, commit, lag, divided offset."""
        labels = {"broker": self.identity.name}
        role = "slave" if self.identity.is_slave else "master"
        status = self.member_status()
        if status:
            role = str(status["role"]).lower()
        yield "rmqpy_role", labels | {"role": role}, 1.0
        yield "rmqpy_replies_waiting", labels, float(self.gate.waiting)
        yield "rmqpy_unsent_bytes", labels, float(self.unsent.total)
        yield "rmqpy_unread_pauses", labels, float(self.unsent.pauses)
        yield "rmqpy_unread_disconnects", labels, float(self.unsent.disconnected)
        for limit in self.limits.found:
            named = labels | {"limit": limit.name}
            yield "rmqpy_limit_used", named, float(limit.used)
            yield "rmqpy_limit", named, float(limit.maximum)
        for change in ("switch", "leave"):
            if f"{change}Phase" in runtime:
                named = labels | {"change": change}
                yield "rmqpy_change", named | {"phase": runtime[f"{change}Phase"]}, 1.0
                if f"{change}PauseMs" in runtime:
                    yield "rmqpy_change_pause_ms", named, float(runtime[f"{change}PauseMs"])
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
        if "fault" in status:
            yield "rmqpy_dledger_fault", labels, float(status["fault"] is not None)
        for peer, lag in _lags(status):
            yield "rmqpy_dledger_lag_entries", labels | {"peer": peer}, lag
        for slave, behind in self.replication.lags():
            yield "rmqpy_replication_lag_bytes", labels | {"slave": slave}, float(behind)


class MetricsPage:
    """The page of the metrics, made once for all requests that arrive meanwhile."""

    def __init__(self, metrics: Metrics) -> None:
        self._source = metrics
        self._making: asyncio.Task[bytes] | None = None

    async def body(self) -> bytes:
        """Return the page."""
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)  # requests that arrive meanwhile get the same

    def close(self) -> None:
        """Make no more pages."""
        if self._making is not None:
            self._making.cancel()

    async def _make(self) -> bytes:
        page, loop = MetricsText(), asyncio.get_running_loop()
        begun = loop.time()
        for _ in self._source.steps(page):
            if loop.time() - begun >= SLICE_S:
                await asyncio.sleep(PAUSE_S)
                begun = loop.time()
        return page.text().encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lags(status: Mapping[str, object]) -> Iterable[tuple[str, float]]:
    peers = status.get("peers", [])
    assert isinstance(peers, list)
    return [(str(peer["id"]), float(peer["lag"])) for peer in peers if "lag" in peer]
