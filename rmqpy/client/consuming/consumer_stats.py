"""The rates at which a consumer pulls and consumes, by topic, as ``consumerStatus`` shows them
(Java: ConsumerStatsManager). Pure.

Totals are kept per topic and sampled every ten seconds; rates are computed over the samples of the
last minute. Invariant: at most ``TOPICS_MAX`` topics and seven samples each are kept.
"""

from __future__ import annotations

from collections import deque

from attrs import define, evolve, field

from rmqpy.remoting.bodies import ConsumeStatus

SAMPLE_MS = 10_000
SAMPLES = 7
TOPICS_MAX = 10_000


@define(slots=True)
class _StatTotals:
    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    calls: int = 0
    consume_ms: int = 0
    consumed: int = 0
    failed: int = 0


@define(slots=True)
class _TopicStats:
    totals: _StatTotals = field(factory=_StatTotals)
    samples: deque[tuple[int, _StatTotals]] = field(factory=lambda: deque(maxlen=SAMPLES))


class ConsumerStats:
    """The totals and samples of all topics; ``sample`` must be called every ``SAMPLE_MS``."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicStats] = {}

    def pulled(self, topic: str, count: int, spent_ms: int) -> None:
        """Count one pull of ``count`` messages."""
        totals = self._totals_of(topic)
        totals.pulls += 1
        totals.pulled += count
        totals.pull_ms += spent_ms

    def consumed(self, topic: str, calls: int, count: int, failed: int, spent_ms: int) -> None:
        """Count listener calls of ``count`` messages, of which ``failed`` are delivered again."""
        totals = self._totals_of(topic)
        totals.calls += calls
        totals.consumed += count - failed
        totals.failed += failed
        totals.consume_ms += spent_ms

    def sample(self, now_ms: int) -> None:
        """Record a sample of the totals of all topics."""
        for topic in self._topics.values():
            topic.samples.append((now_ms, evolve(topic.totals)))

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """Return the rates per second, mean times in ms, and failures of the last minute."""
        known = self._topics.get(topic)
        if known is None or not known.samples:
            return ConsumeStatus()
        start_ms, begin = known.samples[0]
        end = known.totals
        seconds = max(now_ms - start_ms, 1) / 1000
        return ConsumeStatus(
            pull_rt=(end.pull_ms - begin.pull_ms) / max(end.pulls - begin.pulls, 1),
            pull_tps=(end.pulled - begin.pulled) / seconds,
            consume_rt=(end.consume_ms - begin.consume_ms) / max(end.calls - begin.calls, 1),
            consume_ok_tps=(end.consumed - begin.consumed) / seconds,
            consume_failed_tps=(end.failed - begin.failed) / seconds,
            consume_failed_msgs=end.failed - begin.failed,
        )

    def _totals_of(self, topic: str) -> _StatTotals:
        known = self._topics.get(topic)
        if known is None:
            if len(self._topics) >= TOPICS_MAX:
                del self._topics[next(iter(self._topics))]
            known = self._topics[topic] = _TopicStats()
        return known.totals
