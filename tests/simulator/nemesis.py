"""The nemesis, which injects the faults of a plan into a simulated cluster.

Faults are crashes, partitions, pauses, clocks that jump, disks that fail, fill up or flip bits,
requests to transfer leadership, and files that expire. Each fault is an event that schedules the
next one of its kind. During a truce a quorum and the clients are spared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol

from attrs import define

from simulator.host import HostT
from simulator.network import SimulatedNetwork
from simulator.plan import SimulationPlan
from simulator.progress import POLL_MS, ProgressChecker
from simulator.virtual_time import Timeline

CHANGES_BEFORE_CRASH = 40
"""The number of disk changes within which a crash in the middle of an event happens."""

RECOVERED_WITHIN_MS = 30_000
"""The time from a loss of power, of all machines without syncs, until the members are equal."""

FULL_WITHIN_MS = 1000
"""The time from the start of a truce until the disk of the leader is full."""

STOPS = 0.2
"""The share of the crashes that are orderly shutdowns instead."""

NAME_SERVER_MS = 20_000
"""The average interval between restarts of a name server."""

CLOCK_JUMPS_MS = (-3_600_000, -5000, 5000, 3_600_000)


class FaultTarget(Protocol[HostT]):
    """The cluster into which faults are injected."""

    timeline: Timeline
    network: SimulatedNetwork
    hosts: dict[str, HostT]

    def start(self, host: HostT) -> None: ...

    def crash(self, host: HostT, *, power: bool) -> None: ...

    def stop(self, host: HostT) -> None: ...

    def log(self, text: str) -> None: ...

    def leader(self) -> HostT | None: ...

    def hand_over(self, leader: HostT, successor: HostT) -> None: ...

    def flip_bit(self) -> None: ...

    def expire_files(self) -> None: ...

    def restart_name_server(self) -> None: ...

    def forge_request(self) -> None: ...

    def lose_tail(self) -> None: ...

    def break_line(self) -> None: ...

    def black_out(self, hosts: Sequence[HostT]) -> None: ...

    def has_recovered(self, *, late: bool) -> bool: ...

    def is_undamaged(self) -> bool: ...

    def make_calm(self, names: frozenset[str]) -> None: ...

    @property
    def progress(self) -> ProgressChecker[HostT]: ...


@define(slots=True, eq=False, repr=False)
class Nemesis(Generic[HostT]):
    """The faults of a plan, injected from ``start`` until ``stop``."""

    cluster: FaultTarget[HostT]
    plan: SimulationPlan
    rng: random.Random
    running: bool = False
    """Whether faults still happen."""

    def start(self) -> None:
        """Start to inject faults."""
        self.running = True
        plan = self.plan
        for interval_ms, action in (
            (plan.crash_interval_ms, self._crash),
            (plan.partition_interval_ms, self._partition),
            (plan.pause_interval_ms, self._pause),
            (plan.clock_interval_ms, self._jump_clock),
            (plan.disk_interval_ms, self._break_disk),
            (plan.flip_interval_ms, self._flip_bit),
            (plan.transfer_interval_ms, self._hand_over),
            (plan.hours_interval_ms, self.cluster.expire_files),
            (plan.name_servers and NAME_SERVER_MS, self.cluster.restart_name_server),
            (plan.truce_interval_ms, self._truce),
            (plan.blackout_interval_ms, self._black_out),
            (plan.stranger_interval_ms, self.cluster.forge_request),
            (plan.tail_interval_ms, self.cluster.lose_tail),
            (plan.line_interval_ms, self.cluster.break_line),
        ):
            if interval_ms:
                self._repeat(interval_ms, action)

    def stop(self) -> None:
        """Stop injecting faults."""
        self.running = False
        for host in self.cluster.hosts.values():
            host.disk.crash_after = -1

    def start_later(self, host: HostT) -> None:
        """Start a machine that is down later, or at once if faults have stopped."""
        life = host.starts

        def start() -> None:
            if host.life is None and host.starts == life:
                self.cluster.start(host)

        self._after(self.plan.down_ms if self.running else 1, start)

    def _after(self, average_ms: int, action: Callable[[], None]) -> None:
        self.cluster.timeline.at(1 + int(self.rng.expovariate(1 / average_ms)), action)

    def _repeat(self, interval_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if self.running:
                action()
                self._repeat(interval_ms, action)

        self._after(interval_ms, again)

    @property
    def _spared(self) -> frozenset[str]:
        return self.cluster.progress.calm

    def _any_host(self) -> HostT | None:
        """Return any host that is not spared, or None if all are."""
        hosts = [host for host in self.cluster.hosts.values() if host.name not in self._spared]
        return self.rng.choice(hosts) if hosts else None

    def _victim(self) -> HostT | None:
        """Return any host, the leader more often than the others."""
        leader = self.cluster.leader()
        if leader is not None and leader.name not in self._spared and self.rng.random() < 0.4:
            return leader
        return self._any_host()

    def _truce(self) -> None:
        """Spare a quorum for a while, mostly with the current leader, sometimes all members."""
        if self._spared or not self.cluster.is_undamaged():
            return
        names, progress = list(self.cluster.hosts), self.cluster.progress
        self.rng.shuffle(names)
        leader = self.cluster.leader()
        first = {f"n{self.plan.preferred}"} if self.plan.preferred >= 0 else set()
        if leader is not None and self.rng.random() < 0.5:
            first.add(leader.name)
        names.sort(key=lambda name: name not in first)
        count = len(names) if self.rng.random() < 0.3 else max(len(first), len(names) // 2 + 1)
        calm = frozenset(names[:count])
        self.cluster.make_calm(calm)
        progress.begin(calm)
        timeline = self.cluster.timeline
        timeline.at(self.rng.randrange(progress.truce_ms), self._cut_line)
        timeline.at(progress.truce_ms, self._end_truce)
        if self.rng.random() < 0.3:
            timeline.at(self.rng.randrange(FULL_WITHIN_MS), self._fill_disk_of_leader)

    def _fill_disk_of_leader(self) -> None:
        """Fill the disk of a calm leader, if the others can do without it: one of them must lead
        soon.
        """
        leader, progress = self.cluster.leader(), self.cluster.progress
        quorum = len(self.cluster.hosts) // 2 + 1
        if leader is None or leader.name not in progress.calm or len(progress.calm) <= quorum:
            return
        leader.disk.full = True
        self.cluster.log(f"the disk of {leader.name}: full")
        progress.calm -= {leader.name}
        progress.disturb()
        self.cluster.timeline.at(progress.truce_ms, partial(self._heal_disk, leader))

    def _cut_line(self) -> None:
        """Cut the connection between the leader and a member that is not spared."""
        leader, other = self.cluster.leader(), self._any_host()
        if leader is not None and other is not None and leader is not other:
            blocked = self.cluster.network.blocked
            blocked |= {(leader.name, other.name), (other.name, leader.name)}
            self.cluster.network.unblock_calm()
            self.cluster.log(f"blocked: {leader.name}-{other.name}")

    def _end_truce(self) -> None:
        if self.running:
            self.cluster.progress.end()
            self.cluster.network.calm = frozenset()
            self.cluster.log("the truce ends")

    def _flip_bit(self) -> None:
        if not self._spared:
            self.cluster.flip_bit()

    def _crash(self) -> None:
        host = self._victim()
        if host is None or host.life is None:
            return
        self.cluster.progress.on_fault(host.name)
        if self.rng.random() < STOPS:
            self.cluster.stop(host)
        elif self.rng.random() < self.plan.tear:
            host.disk.crash_after = self.rng.randrange(CHANGES_BEFORE_CRASH)
        else:
            self.cluster.crash(host, power=self.plan.power)
            self.start_later(host)

    def _black_out(self) -> None:
        """Cut the power of several machines at once; all of them if that may lose messages."""
        if self._spared:
            return
        hosts = list(self.cluster.hosts.values())
        if self.plan.sync_flush and self.rng.random() < 0.5:
            hosts = self.rng.sample(hosts, 1 + self.rng.randrange(len(hosts)))
        self.cluster.black_out(hosts)
        if self.plan.sync_flush:
            for host in hosts:
                self.start_later(host)
            return
        # What was acknowledged may be lost. Nothing else goes wrong until the members are equal.
        names = frozenset(self.cluster.hosts)
        self.cluster.make_calm(names)
        self.cluster.progress.begin(names)
        self._recover(self.cluster.timeline.now_ms + RECOVERED_WITHIN_MS)

    def _recover(self, deadline_ms: int) -> None:
        if not self.running:
            return
        if self.cluster.has_recovered(late=self.cluster.timeline.now_ms >= deadline_ms):
            self._end_truce()
        else:
            self.cluster.timeline.at(POLL_MS, lambda: self._recover(deadline_ms))

    def _hand_over(self) -> None:
        leader, successor = self.cluster.leader(), self._any_host()
        if leader is not None and successor not in (None, leader) and not self._spared:
            assert successor is not None
            self.cluster.hand_over(leader, successor)

    def _partition(self) -> None:
        names, blocked = list(self.cluster.hosts), self.cluster.network.blocked
        leader = self.cluster.leader()
        if leader is None or leader.name not in self._spared:
            self.cluster.progress.on_fault("" if leader is None else leader.name)
        clients = [] if self.rng.random() < 0.5 else ["producer", "reader"]
        if self.rng.random() < 0.3:
            clients += (f"ns{number}" for number in range(self.plan.name_servers))
        blocked.clear()
        kind = self.rng.randrange(6)
        self.rng.shuffle(names)
        first, rest = names[0], names[1:] + clients
        if kind == 0:
            self.cluster.network.isolate(first, rest)
        elif kind == 1:
            blocked |= {(first, other) for other in rest}
        elif kind == 2:
            blocked |= {(other, first) for other in rest}
        elif kind == 3:  # a bridge: two sides connected by one member
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
        self.cluster.network.unblock_calm()
        if blocked:
            self.cluster.log(f"blocked: {' '.join(sorted(f'{a}>{b}' for a, b in blocked))}")

    def _pause(self) -> None:
        host = self._victim()
        if host is not None and host.life is not None:
            self.cluster.progress.on_fault(host.name)
            pause_ms = 1 + self.rng.randrange(2 * self.plan.pause_ms)
            end_ms = self.cluster.timeline.now_ms + pause_ms
            host.life.paused_until_ms = max(host.life.paused_until_ms, end_ms)
            self.cluster.log(f"{host.name} pauses for {pause_ms} ms")

    def _jump_clock(self) -> None:
        host = self.rng.choice(list(self.cluster.hosts.values()))
        host.jump_clock(self.rng.choice(CLOCK_JUMPS_MS))
        self.cluster.log(f"the clock of {host.name} jumps to {host.skew_ms:+} ms")

    def _break_disk(self) -> None:
        host = self._any_host()
        if host is None:
            return
        self.cluster.progress.on_fault(host.name)
        kind = self.rng.choice(("full", "failing", "syncs_fail"))
        hosts = [host]
        if kind == "syncs_fail" and not self._spared and self.rng.random() < 0.5:
            # Without a majority that syncs, nothing may be acknowledged with SYNC_FLUSH.
            hosts = list(self.cluster.hosts.values())
        for each in hosts:
            setattr(each.disk, kind, True)
            self.cluster.log(f"the disk of {each.name}: {kind}")
            self._after(3000, partial(self._heal_disk, each))

    def _heal_disk(self, host: HostT) -> None:
        needs_restart = host.needs_restart
        host.disk.heal()
        if needs_restart:
            self.cluster.progress.on_fault(host.name)
            self.cluster.crash(host, power=False)
        if host.life is None:
            self.start_later(host)
