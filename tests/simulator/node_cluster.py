"""A simulated cluster of bare DLedger nodes, which runs many times faster than brokers do."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from simulator.cluster import Cluster, Outcome
from simulator.node_checker import NodeChecker
from simulator.node_disk import NodeDisk
from simulator.node_host import NodeHost

EQUAL_WITHIN_MS = 10_000
ANSWER_MS = 150
"""The time after which a pulse looks for its acknowledgement."""


@define(slots=True, eq=False, repr=False)
class NodeCluster(Cluster[NodeHost]):
    """Bare nodes, and a client that proposes entries at each of them."""

    checker: NodeChecker = field(init=False)
    puts: int = field(default=0, init=False)
    """The number of entries that were accepted."""

    _is_loaded: bool = field(default=False, init=False)

    def _build(self) -> None:
        plan = self.plan
        disks = {f"n{number}": NodeDisk() for number in range(plan.members)}
        self.checker = NodeChecker.of(disks, power=plan.power)
        for number, (name, disk) in enumerate(disks.items()):
            self.hosts[name] = NodeHost(
                plan,
                number,
                self.timeline,
                self.network,
                self.rng,
                self._checked,
                self._crashed,
                disk=disk,
                view=self.checker.views[name],
                log=self.log,
            )

    def begin(self) -> None:
        for host in self.hosts.values():
            self.start(host)

    def start_workload(self) -> None:
        self._is_loaded = True
        self._put_later()

    def _put_later(self) -> None:
        delay_ms = 1 + int(self.rng.expovariate(1 / self.plan.send_interval_ms))
        self.timeline.at(delay_ms, self._put_everywhere)

    def _put_everywhere(self) -> None:
        """Propose at every member; at most one of them should accept and commit."""
        if self._is_loaded:
            self._put_later()
            for host in self.hosts.values():
                is_batch = self.rng.random() < self.plan.batch
                self.put(host, self.rng.randrange(2, 4) if is_batch else 1)

    def put(self, host: NodeHost, number: int = 1) -> bool:
        """Propose entries at a member. Return whether it accepts them."""
        life = host.life
        if life is None or life.paused_until_ms > self.timeline.now_ms:
            return False
        bodies = [
            b"put-%d" % (self.puts + each) * self.rng.randrange(1, 8) for each in range(number)
        ]
        accepted = False

        def put() -> None:
            nonlocal accepted
            accepted = host.put(bodies)

        life.run(put)
        if accepted:
            self.puts += number
        return accepted

    def pulse(self, host: NodeHost, acknowledged: Callable[[], None]) -> None:
        before = self.checker.views[host.name].acknowledged

        def check() -> None:
            if self.checker.views[host.name].acknowledged > before:
                acknowledged()

        self.put(host)
        self.timeline.at(ANSWER_MS, check)

    def expire_files(self) -> None:
        """Let the files of one member expire up to its committed index."""
        host = self.rng.choice(list(self.hosts.values()))
        if host.life is not None:
            host.life.run(host.expire)

    def outcome(self) -> Outcome:
        return Outcome(
            operations=self.puts,
            stored=self.checker.acknowledged,
            read=0,
            elections=self.checker.elections,
            crashes=self.crashes,
            events=self.timeline.events,
            simulated_ms=self.timeline.now_ms,
            digest=self._digest(),
        )

    def _converge(self) -> None:
        self._is_loaded = False
        self._wait(EQUAL_WITHIN_MS, self._is_equal, "equal members")
        self.checker.audit()

    def _is_equal(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        end = leader.disk.log.end
        if end.index < 0:
            self.put(leader)  # an empty ledger cannot be compared and gets no marker
        return all(
            host.node is not None
            and host.disk.log.end == end
            and host.node.committed_index == end.index
            and host.node.leader_id == leader.name
            for host in self.hosts.values()
        )
