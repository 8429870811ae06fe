"""The brokers that a producer avoids for a while (Java: MQFaultStrategy, LatencyFaultToleranceImpl;
used with ``sendLatencyFaultEnable``).

A send that was slow or failed keeps its broker out of the rotation:

=================  ====  ====  ====  ====  ====  ====  ======
latency ms from      50   100   550  1000  2000  3000   15000
avoided for s         0     0    30    60   120   180     600
=================  ====  ====  ====  ====  ====  ====  ======

A failure counts as ``FAILURE_MS`` of latency. When every broker is avoided, the better half of them
is used in turn: those that become available soonest, then the faster ones.

Invariant: only brokers to which a message was sent are recorded, and brokers that are no longer in
the routes are removed before they are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field

from rmqpy.remoting.bodies import MessageQueue

FAILURE_MS: Final = 30_000
AVOIDED: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)
"""(latency from which, time for which the broker is avoided), in ms; longest first."""


@define(slots=True, frozen=True)
class _Fault:
    latency_ms: int
    free_ms: int


@define(slots=True)
class LatencyFaultTolerance:
    """The latencies of sends by broker, and the choice of a queue. Times are of a monotonic
    clock.
    """

    _faults: dict[str, _Fault] = field(factory=dict, init=False)
    _turn: int = field(default=0, init=False)

    def update_latency(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """Record that a send to ``broker`` took ``latency_ms``; ``FAILURE_MS`` if it failed."""
        self._faults[broker] = _Fault(latency_ms, now_ms + not_available_duration_ms(latency_ms))

    def is_available(self, broker: str, now_ms: int) -> bool:
        """Return whether ``broker`` is not avoided at ``now_ms``."""
        fault = self._faults.get(broker)
        return fault is None or fault.free_ms <= now_ms

    def choose(
        self, queues: Sequence[MessageQueue], rotation: int, now_ms: int
    ) -> tuple[MessageQueue, int]:
        """Return the next queue of an available broker, or of the least bad one, and the rotation
        for the next call.
        """
        assert queues, "no queue to choose from"
        for step in range(len(queues)):
            queue = queues[(rotation + step) % len(queues)]
            if self.is_available(queue.broker_name, now_ms):
                return queue, rotation + step + 1
        broker = self._least_bad({queue.broker_name for queue in queues})
        for step in range(len(queues)):
            queue = queues[(rotation + step) % len(queues)]
            if queue.broker_name == broker:
                return queue, rotation + step + 1
        raise AssertionError("a broker without a queue was chosen")

    def _least_bad(self, known: set[str]) -> str:
        for unknown in self._faults.keys() - known:
            del self._faults[unknown]
        faults = self._faults
        order = sorted(faults, key=lambda name: (faults[name].free_ms, faults[name].latency_ms))
        better = order[: max(1, len(order) // 2)]
        self._turn += 1
        return better[self._turn % len(better)]


def not_available_duration_ms(latency_ms: int) -> int:
    """Return for how long a broker is avoided after a send that took ``latency_ms``, in ms."""
    return next((avoided for least, avoided in AVOIDED if latency_ms >= least), 0)
