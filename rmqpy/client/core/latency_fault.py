"""Which brokers a producer leaves alone for a while (Java MQFaultStrategy, used with
``sendLatencyFaultEnable``).

A send that was slow, or failed, keeps its broker out of the rotation:

=================  ====  ====  ====  ====  ====  ====  ======
latency ms from      50   100   550  1000  2000  3000   15000
avoided for s         0     0    30    60   120   180     600
=================  ====  ====  ====  ====  ====  ====  ======

A failure counts as ``FAILURE_MS`` of latency. When no broker is free the better half of the avoided
ones is used in turn: those that are free soonest, then the faster ones.

Invariant: only brokers that were sent to are remembered, and those that the routes have lost are
forgotten when they would be chosen.
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
"""Latency from which, and for how long, in ms; longest first."""


@define(slots=True, frozen=True)
class _Fault:
    latency_ms: int
    free_ms: int


@define(slots=True)
class LatencyFaultTolerance:
    """See the module's text. Times are those of a monotonic clock."""

    _faults: dict[str, _Fault] = field(factory=dict, init=False)
    _turn: int = field(default=0, init=False)

    def update_latency(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """What a send to ``broker`` took; ``FAILURE_MS`` when it failed."""
        self._faults[broker] = _Fault(latency_ms, now_ms + not_available_duration_ms(latency_ms))

    def is_available(self, broker: str, now_ms: int) -> bool:
        fault = self._faults.get(broker)
        return fault is None or fault.free_ms <= now_ms

    def choose(
        self, queues: Sequence[MessageQueue], rotation: int, now_ms: int
    ) -> tuple[MessageQueue, int]:
        """The next queue of a free broker, else of the least bad one; and the next rotation."""
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
        for gone in self._faults.keys() - known:
            del self._faults[gone]
        faults = self._faults
        order = sorted(faults, key=lambda name: (faults[name].free_ms, faults[name].latency_ms))
        better = order[: max(1, len(order) // 2)]
        self._turn += 1
        return better[self._turn % len(better)]


def not_available_duration_ms(latency_ms: int) -> int:
    """Milliseconds for which a broker is avoided after a send that took so long."""
    return next((avoided for least, avoided in AVOIDED if latency_ms >= least), 0)
