"""The runtime information of the broker: code 28.

Java's thread pools do not exist here. Their keys are answered with empty queues and the configured
capacities, because tools read them without checking that they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable, StoreAdmin
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.statistics import Statistics
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode
from rmqpy.model.files import FileSystem
from rmqpy.net.pending_replies import SendGate
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import CURRENT_VERSION, RemotingCommand

VERSION_NAME = "V4_9_7"
BUFFERS_WITHOUT_LIMIT = 2**31 - 1
"""remainTransientStoreBufferNumbs of a store without a pool of buffers."""
GIB = 1 << 30


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class RuntimeInfoProcessor:
    """The processor of the runtime information request."""

    identity: BrokerContext
    store: StoreAdmin
    statistics: Statistics
    gate: SendGate
    replication: ReplicationStatus
    files: FileSystem
    clock: Clock
    delays: Callable[[], Mapping[int, tuple[int, int]]]
    """Returns delay level to (offset delivered, end of its queue)."""
    booted_ms: int

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
        }

    def runtime_info(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(
            request, body=KVTable(dict(sorted(self.table().items()))).encode()
        )

    def table(self) -> dict[str, str]:
        """Return the runtime information as key and text."""
        return {
            **self._broker(),
            **self._counters(),
            **self.statistics.rates(),
            **self._pools(),
            **self._delays(),
            **self._store(),
            **self.replication.runtime_info(),
        }

    def _broker(self) -> dict[str, str]:
        return {
            "bootTimestamp": str(self.booted_ms),
            "runtime": _duration(self.clock.now_ms() - self.booted_ms),
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "startAcceptSendRequestTimeStamp": str(
                self.identity.broker_settings.start_accept_send_request_time_stamp
            ),
        }

    def _counters(self) -> dict[str, str]:
        statistics = self.statistics
        counters = statistics.counters
        average = counters.put_bytes / counters.put_messages if counters.put_messages else 0.0
        return {
            "putMessageEntireTimeMax": str(counters.put_entire_time_max_ms),
            "putMessageTimesTotal": str(counters.put_messages),
            "putMessageFailedTimes": str(counters.put_failed),
            "putMessageSizeTotal": str(counters.put_bytes),
            "putMessageDistributeTime": statistics.put_time_distribution(),
            "putMessageAverageSize": str(average),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": str(counters.get_entire_time_max_ms),
            "putLatency99": "0.00",
            "putLatency999": "0.00",
            "msgPutTotalYesterdayMorning": str(statistics.put_day.yesterday_morning),
            "msgPutTotalTodayMorning": str(statistics.put_day.today_morning),
            "msgPutTotalTodayNow": str(counters.put_messages),
            "msgGetTotalYesterdayMorning": str(statistics.get_day.yesterday_morning),
            "msgGetTotalTodayMorning": str(statistics.get_day.today_morning),
            "msgGetTotalTodayNow": str(counters.get_messages),
        }

    def _pools(self) -> dict[str, str]:
        broker = self.identity.broker_settings
        return {
            "sendThreadPoolQueueSize": str(self.gate.waiting),
            "sendThreadPoolQueueCapacity": str(broker.send_thread_pool_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": str(broker.pull_thread_pool_queue_capacity),
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": str(broker.query_thread_pool_queue_capacity),
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(
                broker.end_transaction_pool_queue_capacity
            ),
        }

    def _delays(self) -> dict[str, str]:
        return {
            f"scheduleMessageOffset_{level}": f"{delivered},{end}"
            for level, (delivered, end) in self.delays().items()
        }

    def _store(self) -> dict[str, str]:
        total, free = self.files.disk_usage(self.identity.store.store_path_root_dir)
        return {
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": str(BUFFERS_WITHOUT_LIMIT),
            "commitLogDirCapacity": (
                f"Total : {total / GIB:.1f} GiB, Free : {free / GIB:.1f} GiB."
            ),
            **self.store.runtime_info(),
        }


def _duration(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
