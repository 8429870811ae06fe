"""The base of simulated clusters: hosts, a network and a nemesis on one timeline.

``run`` injects the faults of the plan under load, then heals everything and checks that the cluster
recovers. ``InvariantViolationError`` is raised by the first event that breaks an invariant.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Generic

from attrs import define, field

from rmqpy.dledger.state import Role
from simulator.checkers import Checker
from simulator.disks import SimulatedDisk
from simulator.host import Host, HostT
from simulator.invariants import InvariantViolationError
from simulator.nemesis import Nemesis
from simulator.network import Machine, NetworkClient, NetworkFaults, SimulatedNetwork
from simulator.operators import Operator
from simulator.plan import SimulationPlan
from simulator.progress import ProgressChecker
from simulator.virtual_time import MachineCrashError, ProcessLifetime, Timeline

LEADER_WITHIN_MS = 10_000
STEP_MS = 100


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@define(slots=True, frozen=True)
class Outcome:
    """What a run did; ``digest`` is the same for each run of the same plan."""

    operations: int
    stored: int
    read: int
    elections: int
    crashes: int
    events: int
    simulated_ms: int
    digest: str
    decided: bool | None = None
    """Whether the group has switched to DLedger, or left it, if the run is about that."""
    covered: tuple[str, ...] = field(default=(), converter=_texts)
    """The situations of a change that faults have met, if the run is about one."""


@define(slots=True, eq=False, repr=False)
class Cluster(ABC, Generic[HostT]):
    """The hosts of one plan. Tests of single scenarios call the smaller steps of ``run``."""

    plan: SimulationPlan
    timeline: Timeline = field(factory=Timeline)
    trace: list[str] | None = None
    """A list to which the events of the run are appended."""

    hosts: dict[str, HostT] = field(factory=dict, init=False)
    crashes: int = field(default=0, init=False)
    rng: random.Random = field(init=False)
    network: SimulatedNetwork = field(init=False)
    nemesis: Nemesis[HostT] = field(init=False)
    operator: Operator = field(init=False)
    progress: ProgressChecker[HostT] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rng = random.Random(f"world {self.plan.seed}")
        self.network = SimulatedNetwork(
            self.timeline, self.rng, NetworkFaults(delay_ms=self.plan.delay_ms)
        )
        self._build()
        self.operator = Operator(self._client("operator", "10.0.1.3")[1])
        self.network.stamp = self.checker.stamp
        self.network.tap = self._on_write
        self.progress = ProgressChecker(
            self.plan, self.timeline, self.hosts, self.leader, self.pulse, self.log
        )
        self.nemesis = Nemesis(self, self.plan, self.rng)

    # What a kind of cluster defines

    @property
    @abstractmethod
    def checker(self) -> Checker:
        """The checker of the invariants."""

    @abstractmethod
    def _build(self) -> None:
        """Create the hosts, the checker and the clients."""

    @abstractmethod
    def begin(self) -> None:
        """Start all hosts."""

    @abstractmethod
    def start_workload(self) -> None:
        """Start the clients."""

    @abstractmethod
    def _converge(self) -> None:
        """Wait until all members are equal after the faults were healed, and check them."""

    @abstractmethod
    def outcome(self) -> Outcome:
        """Return what the run did so far."""

    @abstractmethod
    def pulse(self, host: HostT, acknowledged: Callable[[], None]) -> None:
        """Send a message to a member, and call ``acknowledged`` if it is."""

    @abstractmethod
    def expire_files(self) -> None:
        """Let old files expire."""

    def is_undamaged(self) -> bool:
        """Return whether no member has a damaged entry: such a member does not lead."""
        return True

    def flip_bit(self) -> None:
        """Flip a bit on one of the disks, if this kind of cluster has that fault."""

    def forge_request(self) -> None:
        """Let a stranger send a request to a member, if this kind of cluster has strangers."""

    def lose_tail(self) -> None:
        """Let members without the last entry meet, if this kind of cluster has that fault."""

    def break_line(self) -> None:
        """Break a connection of the leader, if this kind of cluster has that fault."""

    def restart_name_server(self) -> None:
        """Restart one of the name servers, if there are any."""

    # The run

    def run(self) -> Outcome:
        """Run the whole plan."""
        self.begin()
        self.network.faults = NetworkFaults(
            loss=self.plan.loss,
            repeat=self.plan.repeat,
            delay_ms=self.plan.delay_ms,
            slow=self.plan.slow,
        )
        self.start_workload()
        self.nemesis.start()
        self.advance(self.plan.duration_ms)
        self.settle()
        return self.outcome()

    def settle(self) -> None:
        """Heal all faults and check that a leader emerges and all members become equal."""
        self.nemesis.stop()
        self.progress.end()
        self.network.blocked.clear()
        self.network.faults = NetworkFaults(delay_ms=self.plan.delay_ms)
        self.make_calm(frozenset(self.hosts))
        self._wait(LEADER_WITHIN_MS, self._has_leader, "a leader")
        self._converge()

    # Its steps

    def make_calm(self, names: frozenset[str]) -> None:
        """Heal all faults of these members, of the clients, and of the network between them."""
        clients = "producer", "reader", "operator", "side", "admin"
        name_servers = (f"ns{number}" for number in range(self.plan.name_servers))
        self.network.calm = names.union(clients, name_servers)
        self.network.unblock_calm()
        for name in sorted(names):
            host = self.hosts[name]
            needs_restart = host.needs_restart
            host.disk.heal()
            host.disk.crash_after = -1
            if host.life is not None:
                host.life.resume()
                if needs_restart:
                    self.crash(host, power=False)
            if host.life is None:
                self.start(host)

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ms + duration_ms)

    def start(self, host: HostT, *, force: bool = False) -> None:
        """Start a host; if it crashes during the start, it is started again later."""
        try:
            host.start(force=force)
        except (MachineCrashError, OSError):
            self._crashed(host.name)
            return
        self.log(f"{host.name} starts")
        self.checker.started(host.name)
        self.progress.check(host.name)

    def crash(self, host: HostT, *, power: bool, working: bool = False) -> None:
        """End a process; with ``working``, it was in the middle of an event."""
        self.crashes += 1
        when = " at work" if working else ""
        self.log(f"{host.name} {'loses its power' if power else 'is killed'}{when}")
        self.checker.ended(host.name, power_lost=power, working=working)
        if power:
            host.lose_power()
        else:
            host.kill()

    def black_out(self, hosts: Sequence[HostT]) -> None:
        """Cut the power of these machines at once, also of those whose process has ended."""
        self.log(f"a blackout of {' '.join(host.name for host in hosts)}")
        for host in hosts:
            if host.life is not None:
                self.crash(host, power=True)
            else:
                self.checker.ended(host.name, power_lost=True, working=False)
                host.disk.lose_power(self.rng)
        if not self.plan.sync_flush:
            self.checker.after_blackout()

    def has_recovered(self, *, late: bool) -> bool:
        """Return whether the members are equal after a blackout; raise an error if it is late."""
        if late:
            raise InvariantViolationError(
                f"the members are not equal after a blackout: {self._state()}"
            )
        return True

    def stop(self, host: HostT) -> None:
        """Stop a process in an orderly way, if this kind of host can, and start it again later."""
        self.crash(host, power=False)
        self.nemesis.start_later(host)

    def hand_over(self, leader: Host, successor: Host) -> None:
        """Let an operator ask the leader to transfer its leadership."""
        self.log(f"{leader.name} receives the request to transfer leadership to {successor.name}")
        self.operator.hand_over(leader, successor)

    def leader(self) -> HostT | None:
        """Return the leader of the largest term, or None."""
        leading = [
            (host.node.term, host)
            for host in self.hosts.values()
            if host.node is not None and host.node.role is Role.LEADER
        ]
        return max(leading, key=lambda pair: pair[0])[1] if leading else None

    def log(self, text: str) -> None:
        """Append a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now_ms} {text}")

    # Inside

    def _checked(self, name: str) -> None:
        self.checker.check(name)
        self.progress.check(name)

    def _on_write(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        self.checker.on_write(machine, port, to, piece)

    def _crashed(self, name: str) -> None:
        """Handle a crash in the middle of an event; the machine is started again later."""
        host = self.hosts[name]
        self.crash(host, power=self.plan.power, working=True)
        self.nemesis.start_later(host)

    def _client(self, name: str, host: str) -> tuple[ProcessLifetime, NetworkClient]:
        machine = Machine(name, host)
        life = ProcessLifetime(self.timeline, _nothing, _nothing, lambda: 1, SimulatedDisk())
        machine.life = life
        return life, NetworkClient(self.network, machine, life)

    def _has_leader(self) -> bool:
        return self.leader() is not None

    def _wait(self, limit_ms: int, holds: Callable[[], bool], what: str) -> None:
        deadline_ms = self.timeline.now_ms + limit_ms
        while not holds():
            if self.timeline.now_ms >= deadline_ms:
                raise InvariantViolationError(
                    f"no {what} within {limit_ms} ms after everything was healed: {self._state()}"
                )
            self.advance(STEP_MS)

    def _state(self) -> str:
        return "; ".join(self._state_of(host) for host in self.hosts.values())

    def _state_of(self, host: HostT) -> str:
        node = host.node
        if node is None:
            return f"{host.name} is {'down' if host.life is None else 'up'}"
        return f"{host.name} {node.role.value} term {node.term} committed {node.committed_index}"

    def _digest(self) -> str:
        totals = repr((self.timeline.events, self.timeline.now_ms, self.network.carried))
        return sha256((totals + self.checker.digest()).encode()).hexdigest()[:16]


def _nothing() -> None:
    pass
