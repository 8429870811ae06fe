"""What goes wrong in a simulated cluster, when its plan says so: crashes, partitions, pauses,
clocks that jump, disks that fail, fill up or rot, leaders that are asked to hand over, hours that
pass. Each is an event that plans its next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from attrs import define

from simulator.broker_host import BrokerHost
from simulator.network import SimulatedNetwork
from simulator.plan import SimulationPlan
from simulator.virtual_time import Timeline

CHANGES_TO_LIVE = 40
"""A torn crash comes within so many changes of the disk."""

NAME_SERVER_MS = 20_000
"""A name server is restarted about so often."""

CLOCK_JUMPS_MS = (-3_600_000, -5000, 5000, 3_600_000)


class FaultTarget(Protocol):
    """What misfortunes happen to."""

    timeline: Timeline
    wires: SimulatedNetwork
    hosts: dict[str, BrokerHost]

    def start(self, host: BrokerHost) -> None: ...

    def crash(self, host: BrokerHost, *, power: bool) -> None: ...

    def log(self, text: str) -> None: ...

    def leader(self) -> BrokerHost | None: ...

    def hand_over(self, leader: BrokerHost, successor: BrokerHost) -> None: ...

    def flip_a_bit(self) -> None: ...

    def advance_hours(self) -> None: ...

    def restart_name_server(self) -> None: ...


@define(slots=True, eq=False, repr=False)
class Nemesis:
    """``begin`` lets them happen, ``heal`` makes an end of them."""

    cluster: FaultTarget
    plan: SimulationPlan
    rng: random.Random
    _running: bool = False

    def begin(self) -> None:
        self._running = True
        plan = self.plan
        for interval_ms, action in (
            (plan.crash_interval_ms, self._crash),
            (plan.partition_interval_ms, self._part),
            (plan.pause_interval_ms, self._pause),
            (plan.clock_interval_ms, self._jump),
            (plan.disk_interval_ms, self._break_disk),
            (plan.flip_interval_ms, self.cluster.flip_a_bit),
            (plan.transfer_interval_ms, self._hand_over),
            (plan.hours_interval_ms, self.cluster.advance_hours),
            (plan.name_servers and NAME_SERVER_MS, self.cluster.restart_name_server),
        ):
            if interval_ms:
                self._repeat(interval_ms, action)

    def heal(self) -> None:
        self._running = False
        for host in self.cluster.hosts.values():
            host.disk.dies_in = -1

    def start_later(self, host: BrokerHost) -> None:
        """Start what is down, after a while; at once when misfortunes are over."""
        life = host.starts

        def start() -> None:
            if host.life is None and host.starts == life:
                self.cluster.start(host)

        self._after(self.plan.down_ms if self._running else 1, start)

    def _after(self, average_ms: int, action: Callable[[], None]) -> None:
        self.cluster.timeline.at(1 + int(self.rng.expovariate(1 / average_ms)), action)

    def _repeat(self, interval_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if self._running:
                action()
                self._repeat(interval_ms, action)

        self._after(interval_ms, again)

    def _any(self) -> BrokerHost:
        return self.rng.choice(list(self.cluster.hosts.values()))

    def _victim(self) -> BrokerHost:
        """Anybody, the leader more often."""
        leader = self.cluster.leader()
        return leader if leader is not None and self.rng.random() < 0.4 else self._any()

    def _crash(self) -> None:
        host = self._victim()
        if host.life is None:
            return
        if self.rng.random() < self.plan.tear:
            host.disk.dies_in = self.rng.randrange(CHANGES_TO_LIVE)
        else:
            self.cluster.crash(host, power=self.plan.power)
            self.start_later(host)

    def _hand_over(self) -> None:
        leader, successor = self.cluster.leader(), self._any()
        if leader is not None and successor is not leader:
            self.cluster.hand_over(leader, successor)

    def _part(self) -> None:
        names, blocked = list(self.cluster.hosts), self.cluster.wires.blocked
        clients = [] if self.rng.random() < 0.5 else ["producer", "reader"]
        if self.rng.random() < 0.3:
            clients += (f"ns{number}" for number in range(self.plan.name_servers))
        blocked.clear()
        kind = self.rng.randrange(6)
        self.rng.shuffle(names)
        first, rest = names[0], names[1:] + clients
        if kind == 0:
            blocked |= {(first, other) for other in rest} | {(other, first) for other in rest}
        elif kind == 1:
            blocked |= {(first, other) for other in rest}
        elif kind == 2:
            blocked |= {(other, first) for other in rest}
        elif kind == 3:  # a bridge: two sides that meet in one member only
            half = 1 + len(names) // 2
            for a in names[1:half]:
                for b in names[half:]:
                    blocked |= {(a, b), (b, a)}
        elif kind == 4:  # a minority of several
            few = names[: (len(names) - 1) // 2]
            for a in few:
                for b in names:
                    if b not in few:
                        blocked |= {(a, b), (b, a)}
        if blocked:
            self.cluster.log(f"blocked: {' '.join(sorted(f'{a}>{b}' for a, b in blocked))}")

    def _pause(self) -> None:
        host = self._victim()
        if host.life is not None:
            pause_ms = 1 + self.rng.randrange(2 * self.plan.pause_ms)
            host.life.paused_until_ms = self.cluster.timeline.now_ms + pause_ms
            self.cluster.log(f"{host.name} pauses for {pause_ms} ms")

    def _jump(self) -> None:
        host = self._any()
        host.skew_ms += self.rng.choice(CLOCK_JUMPS_MS)
        if host.life is not None:
            host.life.skew_ms = host.skew_ms
        self.cluster.log(f"the clock of {host.name} jumps to {host.skew_ms:+} ms")

    def _break_disk(self) -> None:
        host = self._any()
        if self.rng.random() < 0.5:
            host.disk.full = True
        else:
            host.disk.failing = True
        self.cluster.log(f"the disk of {host.name} {'is full' if host.disk.full else 'fails'}")
        self._after(3000, lambda: self._mend_disk(host))

    def _mend_disk(self, host: BrokerHost) -> None:
        host.disk.heal()
        running = host.running
        if running is not None and running.store.health.failure is not None:
            self.cluster.crash(host, power=False)
        if host.life is None:
            self.start_later(host)
