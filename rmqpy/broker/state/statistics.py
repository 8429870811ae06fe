"""Counters of the broker: puts, reads, rates over 10, 60 and 600 seconds, totals since midnight.

A timer calls :meth:`Statistics.sample` once a second; rates are differences of samples. Days change
at midnight UTC.

Invariants: counters only grow; at most ``SAMPLE_COUNT`` samples are kept.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final

from attrs import field

from rmqpy.model.values import define

SAMPLE_PERIOD_MS: Final = 1_000
RATE_WINDOWS_S: Final = (10, 60, 600)
SAMPLE_COUNT: Final = RATE_WINDOWS_S[-1] + 1

GROUP_SAMPLE_EVERY: Final = 10
GROUP_SAMPLE_COUNT: Final = 7
"""The samples of a consumer group, ten seconds apart: its rates cover one minute."""
GROUPS_LIMIT: Final = 20_000

DAY_MS: Final = 86_400_000

PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)


@define(slots=True, eq=False, repr=False)
class Counters:
    """The counts since the start of the broker."""

    put_messages: int = 0
    put_bytes: int = 0
    put_failed: int = 0
    put_entire_time_max_ms: int = 0
    get_found: int = 0
    get_miss: int = 0
    get_messages: int = 0
    get_entire_time_max_ms: int = 0


@define(slots=True, frozen=True)
class _Sample:
    at_ms: int
    put_messages: int
    get_found: int
    get_miss: int
    get_messages: int


@define(slots=True, eq=False, repr=False)
class _DayTotals:
    yesterday_morning: int = 0
    today_morning: int = 0


@define(slots=True, eq=False, repr=False)
class Statistics:
    """The counters and their samples. ``now_ms`` arguments are wall clock, ``at_ms`` monotonic."""

    counters: Counters = field(factory=Counters)
    put_day: _DayTotals = field(factory=_DayTotals)
    get_day: _DayTotals = field(factory=_DayTotals)
    messages_sent_back: dict[tuple[str, str], int] = field(factory=dict)
    """Messages sent back, by group and topic."""
    read_latency: dict[tuple[int, str, str], tuple[int, int]] = field(factory=dict)
    """By queue id, topic and group: ms, and number of reads that found something. Reads of the fast
    path, each below 1 ms, are not included.
    """
    _samples: deque[_Sample] = field(factory=lambda: deque(maxlen=SAMPLE_COUNT))
    _put_times: list[int] = field(factory=lambda: [0] * (len(PUT_TIME_BOUNDS_MS) + 1))
    _group_counts: dict[tuple[str, str], int] = field(factory=dict)
    _group_reads: dict[tuple[str, str], int] = field(factory=dict)
    _group_samples: deque[tuple[int, dict[tuple[str, str], int]]] = field(
        factory=lambda: deque(maxlen=GROUP_SAMPLE_COUNT)
    )
    _sample_number: int = 0
    _day: int = -1

    def messages_put(self, count: int, size: int, elapsed_ms: int) -> None:
        """Count ``count`` messages with ``size`` record bytes that were put
        into the log together.
        """
        counters = self.counters
        counters.put_messages += count
        counters.put_bytes += size
        if elapsed_ms > counters.put_entire_time_max_ms:
            counters.put_entire_time_max_ms = elapsed_ms
        self._put_times[_bucket(elapsed_ms)] += count

    def put_failed(self) -> None:
        """Count a put that was refused."""
        self.counters.put_failed += 1

    def messages_got(
        self, key: tuple[str, str], count: int, elapsed_ms: int, queue_id: int
    ) -> None:
        """Count one read of a queue that returned ``count`` messages; ``key``
        is group and topic.
        """
        counters = self.counters
        if elapsed_ms > counters.get_entire_time_max_ms:
            counters.get_entire_time_max_ms = elapsed_ms
        if not count:
            counters.get_miss += 1
            return
        counters.get_found += 1
        counters.get_messages += count
        self._count(key, 1, count)
        group, topic = key
        latency_key = (queue_id, topic, group)
        latency = self.read_latency
        if latency_key in latency or len(latency) < GROUPS_LIMIT:
            known_ms, reads = latency.get(latency_key, (0, 0))
            latency[latency_key] = (known_ms + elapsed_ms, reads + 1)

    def reads_found(self, key: tuple[str, str], reads: int, count: int) -> None:
        """Count reads of the fast path: each found something quickly, ``count``
        messages in total.
        """
        self.counters.get_found += reads
        self.counters.get_messages += count
        self._count(key, reads, count)

    def reads_missed(self, reads: int) -> None:
        """Count reads of the fast path that found nothing."""
        self.counters.get_miss += reads

    def _count(self, key: tuple[str, str], reads: int, count: int) -> None:
        counts = self._group_counts
        if key in counts or len(counts) < GROUPS_LIMIT:
            counts[key] = counts.get(key, 0) + count
            self._group_reads[key] = self._group_reads.get(key, 0) + reads

    def group_reads(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return (messages read, reads that found some) by (group, topic)."""
        reads = self._group_reads
        return {key: (count, reads[key]) for key, count in self._group_counts.items()}

    def sent_back(self, group: str, topic: str, count: int = 1) -> None:
        """Count messages of ``topic`` that consumers of a group could not consume."""
        key = (group, topic)
        counts = self.messages_sent_back
        if key in counts or len(counts) < GROUPS_LIMIT:
            counts[key] = counts.get(key, 0) + count

    def sample(self, at_ms: int, now_ms: int) -> None:
        """Keep a sample of the counters; called once a second."""
        counters = self.counters
        self._samples.append(
            _Sample(
                at_ms,
                counters.put_messages,
                counters.get_found,
                counters.get_miss,
                counters.get_messages,
            )
        )
        if self._sample_number % GROUP_SAMPLE_EVERY == 0:
            self._group_samples.append((at_ms, dict(self._group_counts)))
        self._sample_number += 1
        self._note_day(now_ms // DAY_MS)

    def group_rate(self, group: str, topic: str) -> float:
        """Return the messages per second that ``group`` read of ``topic``
        during the last minute.
        """
        if len(self._group_samples) < 2:
            return 0.0
        key = (group, topic)
        (first_ms, first), (last_ms, last) = self._group_samples[0], self._group_samples[-1]
        return (last.get(key, 0) - first.get(key, 0)) * 1000 / max(1, last_ms - first_ms)

    def forget_group(self, group: str) -> None:
        """Remove the rates of a deleted group."""
        for key in [key for key in self._group_counts if key[0] == group]:
            del self._group_counts[key], self._group_reads[key]
        for latency_key in [
            latency_key for latency_key in self.read_latency if latency_key[2] == group
        ]:
            del self.read_latency[latency_key]
        for key in [key for key in self.messages_sent_back if key[0] == group]:
            del self.messages_sent_back[key]

    def rates(self) -> dict[str, str]:
        """Return the five rate lines of the runtime information, each for 10,
        60 and 600 seconds.
        """
        return {
            "putTps": self._rate_line("put_messages"),
            "getFoundTps": self._rate_line("get_found"),
            "getMissTps": self._rate_line("get_miss"),
            "getTotalTps": self._rate_line("get_found", "get_miss"),
            "getTransferedTps": self._rate_line("get_messages"),
        }

    def put_time_distribution(self) -> str:
        """Return the distribution of put times as text."""
        bounds = PUT_TIME_BOUNDS_MS
        names = ["<=0ms"]
        names += [f"{low}~{high}ms" for low, high in pairwise(bounds)]
        names.append(f"{bounds[-1]}ms~")
        pairs = zip(names, self._put_times, strict=True)
        return " ".join(f"[{name}]:{count}" for name, count in pairs)

    def _rate_line(self, *names: str) -> str:
        return " ".join(str(self._rate(seconds, names)) for seconds in RATE_WINDOWS_S)

    def _rate(self, seconds: int, names: tuple[str, ...]) -> float:
        if len(self._samples) <= seconds:
            return 0.0
        last, first = self._samples[-1], self._samples[-1 - seconds]
        grown: int = sum(getattr(last, name) - getattr(first, name) for name in names)
        return grown * 1000 / max(1, last.at_ms - first.at_ms)

    def _note_day(self, day: int) -> None:
        if self._day == day:
            return
        if self._day >= 0:
            for totals, now in (
                (self.put_day, self.counters.put_messages),
                (self.get_day, self.counters.get_messages),
            ):
                totals.yesterday_morning = totals.today_morning
                totals.today_morning = now
        self._day = day


def _bucket(elapsed_ms: int) -> int:
    for number, bound in enumerate(PUT_TIME_BOUNDS_MS):
        if elapsed_ms <= bound:
            return number
    return len(PUT_TIME_BOUNDS_MS)
