"""Statistics by topic, queue and group, for tools: VIEW_BROKER_STATS_DATA (315).

==================  ====================  ==========================================================
name                key                   counted from
==================  ====================  ==========================================================
TOPIC_PUT_NUMS      topic                 the ends of the consume queues
TOPIC_PUT_SIZE      topic                 the sizes in their new units
QUEUE_PUT_NUMS      topic@queueId         as for topics
QUEUE_PUT_SIZE      topic@queueId
GROUP_GET_NUMS      topic@group           reads that found something
GROUP_GET_SIZE      topic@group           messages read x the mean size of the topic's messages
GROUP_GET_LATENCY   queueId@topic@group   ms of the reads that the fast path left to Python
SNDBCK_PUT_NUMS     topic@group           messages that consumers sent back
BROKER_PUT_NUMS     cluster               messages put
BROKER_GET_NUMS     cluster               messages read
==================  ====================  ==========================================================

Nothing is counted per message: every ``SECONDS_PERIOD_MS`` the figures are derived from data that
exists anyway. An item starts with its first message after the start of the broker. Each item keeps
three series of samples (``_SERIES``); a series reports the difference between its last and its
first sample.

Bounds: ``ITEMS_MAX`` items; ``STEP_UNITS`` units of a queue in a step of a round, which runs in
slices (:class:`rmqpy.broker.base.scheduling.Sliced`).
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import Final

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import Sliced
from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.broker.state.statistics import Statistics
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.steps import Steps
from rmqpy.remoting.bodies import BrokerStatsData, BrokerStatsItem
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import ViewBrokerStatsDataRequestHeader

SECONDS_PERIOD_MS: Final = 10_000
MINUTES_PERIOD_MS: Final = 600_000
HOURS_PERIOD_MS: Final = 3_600_000
_SERIES: Final = ((SECONDS_PERIOD_MS, 7), (MINUTES_PERIOD_MS, 7), (HOURS_PERIOD_MS, 25))
"""The interval of the samples in ms and the number kept, for a minute, an hour and a day."""

ITEMS_MAX: Final = 50_000
STEP_UNITS: Final = 8_192

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

logger = logging.getLogger(__name__)

_Sample = tuple[int, int, int]
"""Time in ms, value, and number of additions."""


@define(slots=True, eq=False, repr=False)
class Item:
    """One counter and its samples."""

    value: int = 0
    times: int = 0
    _series: list[deque[_Sample]] = field(
        factory=lambda: [deque(maxlen=limit) for _, limit in _SERIES]
    )

    def add(self, value: int, times: int) -> None:
        self.value += value
        self.times += times

    def sample(self, index: int, now_ms: int) -> None:
        samples = self._series[index]
        if not samples:
            samples.append((now_ms - _SERIES[index][0], 0, 0))
        samples.append((now_ms, self.value, self.times))

    def data(self) -> BrokerStatsData:
        return BrokerStatsData(*(_difference(samples) for samples in self._series))


def _difference(samples: deque[_Sample]) -> BrokerStatsItem:
    if not samples:
        return BrokerStatsItem()
    (first_ms, first, first_times), (last_ms, last, last_times) = samples[0], samples[-1]
    grown, times = last - first, last_times - first_times
    return BrokerStatsItem(
        sum=grown,
        tps=grown * 1000 / max(1, last_ms - first_ms),
        avgpt=grown / times if times > 0 else 0.0,
    )


@define(slots=True, eq=False, repr=False)
class ItemStatistics:
    """The counters by name and key, and the timer that updates them."""

    identity: BrokerContext
    reader: MessageReader
    statistics: Statistics
    scheduler: Scheduler
    _items: dict[tuple[str, str], Item] = field(factory=dict, init=False)
    _in_order: list[Item] = field(factory=list, init=False)
    """All items. A copy of them for each round would cost more than the round."""
    _ends: defaultdict[str, dict[int, int]] = field(factory=lambda: defaultdict(dict), init=False)
    """Topic and queue id to the queue offset up to which the units of the queue are counted. One
    dict of 200,000 queues would take 10 ms each time that it grows.
    """
    _counted: dict[tuple[str, str], tuple[int, int]] = field(factory=dict, init=False)
    """Item to the value and times of its source when it was last read."""
    _rounds: int = field(default=0, init=False)
    _timer: Timer | None = field(default=None, init=False)
    _round: Sliced[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start counting; existing messages do not count."""
        self._begin(self._skip_existing())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            self._round.cancel()
            self._round = None

    def find(self, name: str, key: str) -> Item | None:
        return self._items.get((name, key))

    def handlers(self) -> HandlerTable:
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = ViewBrokerStatsDataRequestHeader.decode(request.ext_fields)
        item = self.find(header.stats_name, header.stats_key)
        if item is None:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        return RemotingCommand.response_to(request, body=item.data().encode())

    def add(self, name: str, key: str, value: int, times: int) -> None:
        """Add to an item, which is created unless ``ITEMS_MAX`` items exist."""
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= ITEMS_MAX:
                return
            item = self._items[name, key] = Item()
            self._in_order.append(item)
        item.add(value, times)

    def _plan(self) -> None:
        self._timer = self.scheduler.call_later(SECONDS_PERIOD_MS, self._run)

    def _run(self) -> None:
        """Begin a round."""
        self._timer = None
        self._begin(self._count())

    def _begin(self, steps: Steps[None]) -> None:
        self._round = Sliced(self.scheduler, steps, self._counted_all)
        self._round.run()

    def _skip_existing(self) -> Steps[None]:
        for topic, queue_id in self.reader.queue_names():
            self._ends[topic][queue_id] = self.reader.max_queue_offset(topic, queue_id)
            yield

    def _counted_all(self, _none: None, error: BaseException | None) -> None:
        if error is not None:
            logger.error("counting for statistics failed", exc_info=error)
        self._round = None
        self._plan()

    def _count(self) -> Steps[None]:
        """Count what is new in every queue, then what was read, and take the samples."""
        for topic, queue_id in self.reader.queue_names():
            end = self.reader.max_queue_offset(topic, queue_id)
            known = self._ends[topic].setdefault(queue_id, 0)
            if end < known:
                self._ends[topic][queue_id] = end
            elif end > known:
                yield from self._count_units(topic, queue_id, known)
            yield
        yield from self._count_reads()
        yield from self._sample()

    def _count_units(self, topic: str, queue_id: int, first: int) -> Steps[None]:
        queue = f"{topic}@{queue_id}"
        while True:
            first = max(first, self.reader.min_queue_offset(topic, queue_id))
            count, size = self.reader.queue_bytes(topic, queue_id, first, STEP_UNITS)
            if not count:
                return
            first += count
            self._ends[topic][queue_id] = first
            self.add(TOPIC_PUT_NUMS, topic, count, count)
            self.add(TOPIC_PUT_SIZE, topic, size, count)
            self.add(QUEUE_PUT_NUMS, queue, count, count)
            self.add(QUEUE_PUT_SIZE, queue, size, count)
            yield

    def _count_reads(self) -> Steps[None]:
        statistics, cluster = self.statistics, self.identity.cluster
        counters = statistics.counters
        self._add_growth(BROKER_PUT_NUMS, cluster, counters.put_messages, counters.put_messages)
        self._add_growth(BROKER_GET_NUMS, cluster, counters.get_messages, counters.get_found)
        for (group, topic), (messages, reads) in statistics.group_reads().items():
            key = f"{topic}@{group}"
            grown = self._add_growth(GROUP_GET_NUMS, key, messages, reads)
            if grown:
                size = round(grown * self._mean_size(topic))
                self.add(GROUP_GET_SIZE, key, size, grown)
            yield
        for (queue_id, topic, group), latency in list(statistics.read_latency.items()):
            self._add_growth(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}", *latency)
            yield
        for (group, topic), messages in list(statistics.messages_sent_back.items()):
            self._add_growth(SNDBCK_PUT_NUMS, f"{topic}@{group}", messages, messages)
            yield

    def _add_growth(self, name: str, key: str, value: int, times: int) -> int:
        """Add the growth of a source since it was last read, and return it."""
        former, former_times = self._counted.get((name, key), (0, 0))
        if times > former_times:
            self.add(name, key, value - former, times - former_times)
            self._counted[name, key] = (value, times)
        return value - former

    def _mean_size(self, topic: str) -> float:
        size = self.find(TOPIC_PUT_SIZE, topic)
        return size.value / size.times if size is not None and size.times else 0.0

    def _sample(self) -> Steps[None]:
        self._rounds += 1
        now_ms = self.scheduler.now_ms()
        for index, (period_ms, _) in enumerate(_SERIES):
            if self._rounds % (period_ms // SECONDS_PERIOD_MS) == 0:
                for number in range(len(self._in_order)):
                    self._in_order[number].sample(index, now_ms)
                    yield
