"""Brokers that change from one log to another while clients send: the parts that a switch and a
leave have in common.

A cluster of this kind consists of hosts, a producer that sends to a random one of them, an operator
that asks for the change again and again, and faults: at random moments, and some aimed at the few
milliseconds after the change has come to another phase. Then all faults are healed, and the end is
checked. Brokers, DLedger, stores, and both sides of the protocols are those of production; only the
transfer of a log to a classic slave is simulated: it copies what its source serves.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from attrs import define

from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.replication.master_discovery import MasterAddress
from rmqpy.codec.message import decode_message
from rmqpy.dledger.state import Role
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.store.commitlog.interface import ReadableLog, read_span
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.blocking_connection import send_request
from simulator.broker_host import BrokerHost, Running
from simulator.cluster import Outcome
from simulator.disks import SimulatedDisk
from simulator.host import ledger_address
from simulator.invariants import InvariantViolationError
from simulator.network import Machine, NetworkClient, NetworkFaults, SimulatedNetwork
from simulator.plan import SimulationPlan
from simulator.virtual_time import MachineCrashError, ProcessLifetime, Timeline

MEMBERS = 3
COPY_MS = 40
SEND_MS = 15
TIMEOUT_MS = 3000
REPAIR_MS = 300
TOPIC = "T"
AIMED = {"freezing": 0.4, "voting": 0.4, "committed": 0.3}
"""The probability of a fault after the begin of a phase that lasts for milliseconds only."""
AIMED_MS = 10
"""The time after the begin of a phase in which such a fault happens."""
AGAIN_MS = 500
"""The time after which the operator asks again."""
COMPARED_BYTES = 64
"""The bytes before its end that a slave compares with its source, before it copies more."""


def group_peers() -> str:
    """Return dLegerPeers of the members."""
    return ";".join(f"n{each}-{ledger_address(each)}" for each in range(MEMBERS))


@define(slots=True, eq=False, repr=False)
class LiveHost(BrokerHost):
    """A machine whose broker takes part in the change."""

    @property
    @abstractmethod
    def journal(self) -> SwitchJournal:
        """The record of the change."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """Whether the broker accepts messages now."""

    @property
    def phase(self) -> str:
        """The phase of the last change that this broker coordinates; "" if it knows of none."""
        return ""


@define(slots=True, frozen=True)
class LogSource:
    """A log that a slave copies: up to ``end``."""

    host: BrokerHost
    log: ReadableLog
    end: int


@define(slots=True, eq=False, repr=False)
class LogCopier:
    """The follower of a slave (``MasterFollower``), which copies what ``source`` returns."""

    running: Running
    file_size: int
    source: Callable[[], LogSource | None]
    _token: object = None

    def start(self) -> None:
        token = self._token = object()
        self._later(token)

    def stop(self) -> None:
        self._token = None

    def _later(self, token: object) -> None:
        self.running.life.call_later(COPY_MS, lambda: self._copy(token))

    def _copy(self, token: object) -> None:
        if token is not self._token:
            return
        self._later(token)
        source = self.source()
        if source is None:
            return
        ha_address = f"{source.host.machine.host}:10912"
        self.running.broker.masters.follow(MasterAddress(source.host.address, ha_address))
        store = self.running.store
        start = store.log.max_offset
        if source.end <= start or not self._continues(source, start):
            return
        count = min(source.end - start, self.file_size - start % self.file_size)
        try:
            store.append_raw(PhysicalOffset(start), read_span(source.log, start, count))
        except StoreError:  # The store has failed, and reports it.
            return
        self.running.broker.server.turn_ended()

    def _continues(self, source: LogSource, start: int) -> bool:
        """Return whether the source has what is at the end of this log."""
        own = self.running.store.opened.classic
        assert own is not None
        count = min(COMPARED_BYTES, start - own.min_offset)
        before = start - count
        return not count or read_span(own, before, count) == read_span(source.log, before, count)


HostT = TypeVar("HostT", bound=LiveHost)


class LiveCluster(ABC, Generic[HostT]):
    """One seed: hosts, a producer, an operator, and faults."""

    code: RequestCode
    """The request code of the change."""
    attempt_ms = 1200
    faulty_ms = 7000
    healed_ms = 12_000
    kinds: tuple[str, ...] = ("kill", "power", "tear", "pause", "cut", "cut")

    def __init__(
        self, plan: SimulationPlan, *, faults: bool = True, trace: list[str] | None = None
    ) -> None:
        self.plan, self.trace = plan, trace
        self.rng = random.Random(f"{plan.change} {plan.seed}")
        self.timeline = Timeline()
        self.network = SimulatedNetwork(
            self.timeline, self.rng, NetworkFaults(delay_ms=2, slow=0.01 if faults else 0.0)
        )
        self.hosts: list[HostT] = []
        self.acknowledged: set[bytes] = set()
        self.attempts = 0
        self.crashes = 0
        self.covered: set[str] = set()
        """What faults have met: phase, the record of the broker, its part, and the fault."""
        self._elections: set[tuple[int, str]] = set()
        self._phase = ""
        self._sent = 0
        self._faulty = faults
        self._clients = [self._client("producer", "10.0.1.1"), self._client("admin", "10.0.1.2")]
        self.build()

    # A kind of change

    @abstractmethod
    def build(self) -> None:
        """Create the hosts."""

    @property
    @abstractmethod
    def is_decided(self) -> bool:
        """Whether the change was decided."""

    @property
    @abstractmethod
    def coordinator(self) -> HostT:
        """The host that is asked for the change."""

    @abstractmethod
    def start_body(self, attempt: int) -> dict[str, Any]:
        """Return the request that starts the change, without the step."""

    @abstractmethod
    def check(self) -> None:
        """Check what holds after every event."""

    @abstractmethod
    def check_end(self) -> None:
        """Check what holds after all faults were healed."""

    # The run

    def run(self) -> Outcome:
        for host in self.hosts:
            self._start(host)
        self._sending()
        self._repair()
        self.timeline.at(self.attempt_ms, self._attempt)
        if self._faulty:
            self.timeline.at(self.attempt_ms, self._fault)
        self.timeline.run_until(self.faulty_ms)
        self.heal()
        self.timeline.run_until(self.faulty_ms + self.healed_ms)
        self.check()
        self.check_end()
        self.log("decided" if self.is_decided else "not decided")
        return Outcome(
            operations=self._sent,
            stored=len(self.acknowledged),
            read=0,
            elections=len(self._elections),
            crashes=self.crashes,
            events=self.timeline.events,
            simulated_ms=self.timeline.now_ms,
            digest="",
            decided=self.is_decided,
            covered=tuple(sorted(self.covered)),
        )

    def heal(self) -> None:
        self._faulty = False
        self.network.blocked.clear()
        self.network.faults = NetworkFaults(delay_ms=2)
        self.log("healed")

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now_ms} {text}")

    # Clients

    def _client(self, name: str, host: str) -> NetworkClient:
        machine = Machine(name, host)
        life = machine.life = ProcessLifetime(
            self.timeline, lambda: None, lambda: None, lambda: 1, SimulatedDisk()
        )
        return NetworkClient(self.network, machine, life)

    def _sending(self) -> None:
        """Send a message to a random broker: those that are no masters refuse it, or pass it on."""
        if self.timeline.now_ms >= self.faulty_ms + self.healed_ms // 2:
            return
        self.timeline.at(SEND_MS if self._faulty else 20 * SEND_MS, self._sending)
        self._sent += 1
        body = b"%d" % self._sent

        def answered(response: RemotingCommand | None, _fault: RmqError | None) -> None:
            if response is not None and response.code == 0:
                self.acknowledged.add(body)

        host = self.rng.choice(self.hosts)
        request = send_request(TOPIC, 0, [body], "")
        self._clients[0].request(host.address, request, TIMEOUT_MS, answered)

    def _attempt(self) -> None:
        """Ask for the change, again after an abort."""
        if self.timeline.now_ms >= self.faulty_ms - self.attempt_ms or self.is_decided:
            return
        self.timeline.at(AGAIN_MS, self._attempt)
        self.attempts += 1
        self.ask("start", **self.start_body(self.attempts))

    def ask(self, step: str, **more: object) -> None:
        """Send a request of the operator to the coordinator."""

        def answered(response: RemotingCommand | None, fault: RmqError | None) -> None:
            answer = fault if response is None else response.remark or response.body.decode()
            self.log(f"{step}: {answer}")

        body = dumps({"step": step, **more})
        request = RemotingCommand.request(self.code, body=body)
        self._clients[1].request(self.coordinator.address, request, TIMEOUT_MS, answered)

    # Faults

    def _fault(self) -> None:
        if not self._faulty:
            return
        self.timeline.at(1 + self.rng.randrange(1600), self._fault)
        self._inflict()

    def _aim(self) -> None:
        """Let a fault follow the begin of a phase, sometimes."""
        phase = self.coordinator.phase
        if phase == self._phase:
            return
        self._phase = phase
        self.log(f"phase: {phase or 'no change'}")
        if self._faulty and self.rng.random() < AIMED.get(phase, 0.0):
            self.timeline.at(self.rng.randrange(AIMED_MS), self._inflict)

    def _inflict(self) -> None:
        rng = self.rng
        host = rng.choice(self.hosts)
        kind = rng.choice(self.kinds)
        if host.life is None or not self._faulty:
            return
        self.log(f"{kind} {host.name}")
        self._cover(host, kind)
        if kind == "kill" or kind == "power":
            self.end(host, power=kind == "power")
        elif kind == "tear":
            host.disk.crash_after = rng.randrange(6)
        elif kind == "pause":
            host.life.paused_until_ms = self.timeline.now_ms + 1 + rng.randrange(1500)
        elif kind == "slow":
            self._slow_down(host.life)
        elif kind == "cancel":
            self.ask("cancel")
        elif kind == "fail":
            host.disk.failing = True
            self.timeline.at(1 + rng.randrange(800), host.disk.heal)
        elif kind == "stop":
            self._stop(host)
        else:
            names = [each.name for each in self.hosts if each is not host]
            self.network.isolate(host.name, rng.sample(names, 1 + rng.randrange(len(names))))
            self.timeline.at(1 + rng.randrange(2000), self.network.blocked.clear)

    def _cover(self, host: HostT, kind: str) -> None:
        record = host.journal.read()
        found = (
            self.coordinator.phase or "no change",
            record.stage.value if record is not None else "no record",
            "coordinator" if host is self.coordinator else "other",
            kind,
        )
        self.covered.add(", ".join(found))

    def _stop(self, host: HostT) -> None:
        """Stop a process in an orderly way, and start it again."""
        if host.running is None or host.stopping:
            return
        try:
            host.stop(lambda: self._start_later(host))
        except MachineCrashError:
            self.crashed(host.name)

    def _repair(self) -> None:
        """Restart brokers whose store has failed, once their disk works again."""
        self.timeline.at(REPAIR_MS, self._repair)
        for host in self.hosts:
            running = host.running
            if running is None or host.disk.failing or host.stopping:
                continue
            if running.store.health.failure is not None:
                self.log(f"restart {host.name}: {running.store.health.failure}")
                self.end(host, power=False)

    def _slow_down(self, life: ProcessLifetime) -> None:
        """Let the syncs of a disk take up to a second, for a while."""
        usual, longest_ms = life.blocking_ms, 1 + self.rng.randrange(1000)
        life.blocking_ms = lambda: 1 + self.rng.randrange(longest_ms)

        def usual_again() -> None:
            life.blocking_ms = usual

        self.timeline.at(1 + self.rng.randrange(2000), usual_again)

    def crashed(self, name: str) -> None:
        (host,) = (each for each in self.hosts if each.name == name)
        self._cover(host, "torn")
        self.end(host, power=self.rng.random() < 0.5)

    def end(self, host: HostT, *, power: bool) -> None:
        if host.life is not None:
            self.crashes += 1
            if power:
                host.lose_power()
            else:
                host.kill()
        host.disk.crash_after = -1
        self.check()
        self._start_later(host)

    def _start_later(self, host: HostT) -> None:
        self.timeline.at(100 + self.rng.randrange(1500), lambda: self._start(host))

    def _start(self, host: HostT) -> None:
        if host.life is not None:
            return
        try:
            host.start()
        except (MachineCrashError, OSError):
            self.end(host, power=False)

    # Invariants

    def checked(self, _name: str) -> None:
        for host in self.hosts:
            node = host.node
            if node is not None and node.role is Role.LEADER:
                self._elections.add((node.term, host.name))
        self.check()
        self._aim()


def bodies_of(store: MessageStore) -> list[bytes]:
    """Return the bodies of all messages in a store, in the order of their queue."""
    found: list[bytes] = []
    while True:
        page = store.reader.get_message(TOPIC, 0, len(found), 32, None)
        if not page.messages:
            return found
        found += [decode_message(message).body for message in page.messages]


def check_messages(where: str, store: MessageStore, acknowledged: set[bytes]) -> None:
    """Check that a store contains everything that was acknowledged, and nothing twice."""
    bodies = bodies_of(store)
    lost = acknowledged - set(bodies)
    if lost:
        raise InvariantViolationError(
            f"{where}: {len(lost)} acknowledged messages are lost: {sorted(lost)}"
        )
    if len(bodies) != len(set(bodies)):
        raise InvariantViolationError(f"{where}: a message is stored twice")
