"""The checker of progress: what must happen, and what must not, while nothing is wrong.

During a truce the members of ``calm`` and the clients run undisturbed on a good network, while the
other members may still suffer. From the last fault that can matter (``disturbed_ms``) on:

==========================================  ======================================================
checked                                     bound
==========================================  ======================================================
a member leads, and acknowledges            ``elect_ms``, then ``ACK_MS`` after the next message
the leader stays, and no calm member        from the time when all of them follow it, and it is the
becomes a candidate                         preferred leader if there is one
a calm member has what the leader had       ``CATCH_UP_MS`` before
committed
==========================================  ======================================================
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic

from attrs import define, field

from rmqpy.dledger.state import NO_TERM, Role
from simulator.host import HostT
from simulator.invariants import InvariantViolationError
from simulator.plan import SimulationPlan
from simulator.virtual_time import Timeline

LEAK_BEATS = 3
POLL_MS = 100
PULSE_MS = 200
QUIET_PULSE_MS = 6000
"""The intervals at which a message is sent to the leader, in ordinary and in quiet truces."""

ACK_MS = 1800
ROUND_MS = 3000
"""The longest round of a vote. A member that is not calm may enter a new term at its end because of
answers from its beginning, when there was no leader.
"""

CATCH_UP_MS = 8000


@define(slots=True, eq=False, repr=False)
class ProgressChecker(Generic[HostT]):
    """The checker of progress. ``pulse`` sends one message to a member and calls back when it is
    acknowledged; ``leader`` returns the leader of the largest term.
    """

    plan: SimulationPlan
    timeline: Timeline
    hosts: Mapping[str, HostT]
    leader: Callable[[], HostT | None]
    pulse: Callable[[HostT, Callable[[], None]], None]
    log: Callable[[str], None]
    calm: frozenset[str] = frozenset()
    """The members that are undisturbed; empty when there is no truce."""

    disturbed_ms: int = 0
    truces: int = 0
    stable_ms: int = 0
    """The total time in which the leader had to stay."""

    _round: int = 0
    _acknowledged_ms: int = -1
    stable: tuple[str, int] | None = None
    """The name and term of the leader that must stay."""

    _followed_ms: int = -1
    """Since when all calm members follow one leader, or -1."""

    _terms: dict[str, int] = field(factory=dict)
    """The last term of each member."""

    _history: deque[tuple[int, int]] = field(factory=deque)
    """(time, committed index of the leader) of the last polls."""

    @property
    def leak_ms(self) -> int:
        return LEAK_BEATS * self.plan.heartbeat_ms

    @property
    def pulse_ms(self) -> int:
        return QUIET_PULSE_MS if self.plan.quiet else PULSE_MS

    @property
    def elect_ms(self) -> int:
        """The time in which a calm quorum has a leader that acknowledges.

        A leader that was cut off or a follower must first notice (one leak each), and the rounds of
        a vote wait for members that do not answer.
        """
        return 6000 + 3 * self.leak_ms

    @property
    def truce_ms(self) -> int:
        """The length of a truce, in which a leader is found and then stays for a while."""
        return self.elect_ms + max(3000, self.leak_ms)

    def begin(self, calm: frozenset[str]) -> None:
        """Start a truce."""
        self.calm = calm
        self.truces += 1
        self._round += 1
        self.log(f"a truce for {' '.join(sorted(calm))}")
        self.disturb()
        self._poll(self._round)
        self._pulse(self._round)

    def end(self) -> None:
        self.calm = frozenset()
        self._round += 1

    def disturb(self) -> None:
        """Note a fault that may end a leadership."""
        self.disturbed_ms = self.timeline.now_ms
        self._acknowledged_ms = self._followed_ms = -1
        self.stable = None
        self._history.clear()

    def on_fault(self, name: str) -> None:
        """Note a fault of a member that is not calm: it matters if that member leads."""
        leader = self.leader()
        if self.calm and (leader is None or leader.name == name or self.stable is None):
            self.disturb()

    def check(self, name: str) -> None:
        """Check a member after its start and after each of its events."""
        node, stable = self.hosts[name].node, self.stable
        if node is None:
            return
        self._terms[name] = node.term
        if stable is not None and name in self.calm and (node.leader_id, node.term) != stable:
            self._leader_lost()

    # Inside

    def _leader_lost(self) -> None:
        assert self.stable is not None
        members = [host.node._member for host in self.hosts.values() if host.node is not None]
        # An operator asked for it before the truce; a successor catches up first.
        if any(each.transferee is not None or each.term_to_take != NO_TERM for each in members):
            self.disturb()
            return
        raise InvariantViolationError(
            f"{self.stable[0]} leads in term {self.stable[1]}, {self._names} are healthy since"
            f" {self.disturbed_ms} ms, and do not all follow it: {self._state()}"
        )

    def _pulse(self, number: int) -> None:
        if number != self._round:
            return
        self.timeline.at(self.pulse_ms, lambda: self._pulse(number))
        leader = self.leader()
        if leader is not None:
            sent_ms = self.timeline.now_ms

            def acknowledged() -> None:
                if number == self._round and sent_ms >= self.disturbed_ms:
                    self._acknowledged_ms = self.timeline.now_ms

            self.pulse(leader, acknowledged)

    def _poll(self, number: int) -> None:
        if number != self._round:
            return
        self.timeline.at(POLL_MS, lambda: self._poll(number))
        now_ms = self.timeline.now_ms
        since_ms = max(self.disturbed_ms + self.elect_ms, self._acknowledged_ms)
        if now_ms > since_ms + ACK_MS + self.pulse_ms:
            raise InvariantViolationError(
                f"{self._names} are healthy since {self.disturbed_ms} ms, and no message was"
                f" acknowledged since {self._acknowledged_ms} ms: {self._state()}"
            )
        self._check_leader()
        self._check_followers(now_ms)

    def _check_leader(self) -> None:
        leader = self.leader()
        stable = self.stable
        if stable is not None:
            self.stable_ms += POLL_MS
            if leader is None or leader.name != stable[0] or not self._all_follow(*stable):
                self._leader_lost()
            return
        now_ms = self.timeline.now_ms
        followed = (
            leader is not None
            and leader.node is not None
            and leader.name in self.calm
            and self.plan.preferred in (-1, leader.number)
            and self._all_follow(leader.name, leader.node.term)
        )
        if not followed:
            self._followed_ms = -1
            return
        assert leader is not None and leader.node is not None
        if self._followed_ms < 0:
            self._followed_ms = now_ms
        others = (host.node for name, host in self.hosts.items() if name not in self.calm)
        votes = any(node is not None and node.role is Role.CANDIDATE for node in others)
        if (
            self._acknowledged_ms >= 0
            and now_ms >= self.disturbed_ms + self.leak_ms
            and now_ms >= self._followed_ms + (ROUND_MS if votes else 0)
        ):
            self.stable = leader.name, leader.node.term

    def _all_follow(self, leader: str, term: int) -> bool:
        """Return whether all calm members follow the leader, and no other knows a later term."""
        for name, host in self.hosts.items():
            node = host.node
            if name not in self.calm:
                # A candidate may be about to enter a larger term.
                if node is not None and max(node.term, node._member.known_max_term) > term:
                    return False
                # One that is down has its term on the disk.
                if node is None and self._terms.get(name, term) > term:
                    return False
            elif node is None or (node.leader_id, node.term) != (leader, term):
                return False
            elif name != leader and node.role is not Role.FOLLOWER:
                return False
        return True

    def _check_followers(self, now_ms: int) -> None:
        leader = self.leader()
        if self.stable is None or leader is None or leader.node is None:
            return
        history = self._history
        history.append((now_ms, leader.node.committed_index))
        while history and history[0][0] < now_ms - CATCH_UP_MS:
            _, expected = history.popleft()
            for name in sorted(self.calm):
                node = self.hosts[name].node
                if node is None or node.committed_index < expected:
                    raise InvariantViolationError(
                        f"{name} has not committed {expected} within {CATCH_UP_MS} ms:"
                        f" {self._state()}"
                    )

    @property
    def _names(self) -> str:
        return " ".join(sorted(self.calm))

    def _state(self) -> str:
        return "; ".join(
            f"{name} down"
            if host.node is None
            else f"{name} {host.node.role.value} term {host.node.term} of {host.node.leader_id}"
            f" committed {host.node.committed_index}"
            for name, host in self.hosts.items()
        )
