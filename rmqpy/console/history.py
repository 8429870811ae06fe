"""The rates of the last hour, in memory: a bounded row of samples for each series.

Counters of brokers start at zero after a restart. A counter that has shrunk therefore gives no
rate for that interval, and no negative one.

Invariants: at most ``SERIES_MAX`` series with at most ``SAMPLES_MAX`` samples each; what was not
sampled for an hour is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Final

from attrs import define, field

__all__ = ["HISTORY_MS", "RateHistory", "Sample", "rates_of"]

HISTORY_MS: Final = 3_600_000
SAMPLES_MAX: Final = 720
SERIES_MAX: Final = 4096

Sample = tuple[int, int]
"""Time in ms, and the value of a counter or a gauge."""


@define(slots=True)
class RateHistory:
    """The samples of each series, oldest first. The least recently sampled series goes first."""

    _series: OrderedDict[Hashable, deque[Sample]] = field(factory=OrderedDict)

    def add(self, key: Hashable, time_ms: int, value: int | None) -> None:
        """Keep a sample; None is no sample."""
        if value is None:
            return
        row = self._series.get(key)
        if row is None:
            row = self._series[key] = deque(maxlen=SAMPLES_MAX)
        row.append((time_ms, value))
        self._series.move_to_end(key)
        if len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)

    def forget_before(self, time_ms: int) -> None:
        """Forget all samples before this time."""
        for key in list(self._series):
            row = self._series[key]
            while row and row[0][0] < time_ms:
                row.popleft()
            if not row:
                del self._series[key]

    def samples(self, key: Hashable) -> list[Sample]:
        return list(self._series.get(key, ()))

    def rate(self, key: Hashable, window_ms: int) -> float | None:
        """Return the growth per second over ``window_ms``, or None without two samples."""
        row = self._series.get(key)
        if not row or len(row) < 2:
            return None
        last = row[-1]
        first = next(each for each in row if each[0] >= last[0] - window_ms)
        if first is last:
            first = row[-2]
        return _growth(first, last)

    def __len__(self) -> int:
        return len(self._series)


def rates_of(rows: Iterable[list[Sample]]) -> list[tuple[int, float]]:
    """Return (time in ms, growth per second) of the sum of counters, by the times of the samples.

    Samples of one poll have the same time.
    """
    total: dict[int, float] = {}
    for row in rows:
        for before, after in pairwise(row):
            growth = _growth(before, after)
            if growth is not None:
                total[after[0]] = total.get(after[0], 0.0) + growth
    return sorted(total.items())


def _growth(before: Sample, after: Sample) -> float | None:
    milliseconds, count = after[0] - before[0], after[1] - before[1]
    return None if milliseconds <= 0 or count < 0 else count * 1000 / milliseconds
