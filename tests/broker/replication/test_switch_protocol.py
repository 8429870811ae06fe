"""The protocol of a switch with kills at every step, lost messages, and restarts: all members end
classic, or all of them end in the DLedger group.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.broker.replication.switch_protocol import (
    Action,
    Actions,
    Coordinator,
    Exchange,
    Freeze,
    Lead,
    Outcome,
    Participant,
    Phase,
    Prepare,
    Record,
    Reopen,
    SendStep,
    StopFollowing,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
    SwitchStep,
    recorded_outcome,
    resolve,
)
from rmqpy.model.errors import StoreError

ROUNDS_MAX = 30


def plan(count: int) -> SwitchPlan:
    names = [f"n{each}" for each in range(count)]
    return SwitchPlan(
        switch="s1",
        group="g",
        coordinator="n0",
        peers=";".join(f"{name}-h:{each + 1}" for each, name in enumerate(names)),
        brokers={name: f"b:{each}" for each, name in enumerate(names)},
    )


@define(eq=False)
class Host:
    """One broker: what is on its disk, and its process."""

    name: str
    is_master: bool
    record: SwitchRecord | None = None
    joined: bool = False
    """True if the log on the disk continues as a DLedger log."""
    starts: int = 0
    alive: bool = True
    frozen: bool = False
    leads: bool = False
    follows: bool = True
    coordinator: Coordinator | None = None
    participant: Participant | None = None

    @property
    def writes_classic(self) -> bool:
        return self.alive and self.is_master and not self.joined and not self.frozen


@define(eq=False)
class QueuedStep:
    """An action, or the arrival of a message (which may be lost), in one process of a host."""

    host: Host
    start: int
    run: Callable[[], None]
    is_message: bool = False


class Cluster:
    """The hosts, and the steps that are still to happen: one action or one message each."""

    def __init__(self, count: int) -> None:
        self.plan = plan(count)
        self.hosts = {name: Host(name, name == "n0") for name in self.plan.brokers}
        self.steps: deque[QueuedStep] = deque()
        self.taken = 0
        self.kills: dict[int, str] = {}
        self.lost: set[int] = set()

    # Execution

    def run(self) -> None:
        """Run until nothing is left to happen; dead hosts are started again."""
        master = self.hosts["n0"]
        master.coordinator = Coordinator(self.plan)
        self.enqueue(master, master.coordinator.begin())
        for _ in range(ROUNDS_MAX):
            while self.steps:
                step = self.steps.popleft()
                victim = self.kills.pop(self.taken, None)
                if victim is not None:
                    self.kill(self.hosts[victim])
                is_lost = step.is_message and self.taken in self.lost
                self.taken += 1
                if step.host.alive and step.host.starts == step.start and not is_lost:
                    step.run()
                self.check_always()
            if not self.time_passes():
                return
        raise AssertionError("the cluster does not come to rest")

    def kill(self, host: Host) -> None:
        host.alive = host.frozen = host.leads = False
        host.coordinator = host.participant = None

    def start(self, host: Host) -> None:
        host.alive = host.follows = True
        host.starts += 1
        record = host.record
        if record is None or (host.joined and record.stage is SwitchStage.COMPLETE):
            return
        if record.stage is SwitchStage.PREPARED:
            host.participant = Participant(record.plan, record.self_id, SwitchStage.PREPARED)
            self.enqueue(host, host.participant.restart())
        elif record.stage is SwitchStage.COMMITTED:  # the first start with the flag
            host.joined = True
            host.record = SwitchRecord(SwitchStage.COMPLETE, record.plan, record.self_id)

    def enqueue(self, host: Host, actions: Actions) -> None:
        for action in actions:
            self.later(host, partial(self.carry_out, host, action))

    def later(self, host: Host, run: Callable[[], None], *, is_message: bool = False) -> None:
        self.steps.append(QueuedStep(host, host.starts, run, is_message))

    def carry_out(self, host: Host, action: Action) -> None:
        match action:
            case Prepare():
                if host.coordinator is not None:
                    self.enqueue(host, host.coordinator.prepared(host.name))
            case Freeze():
                host.frozen = True
                assert host.coordinator is not None
                self.enqueue(host, host.coordinator.frozen())
            case Reopen():
                host.frozen, host.follows = False, True
            case StopFollowing():
                host.follows = False
            case Record(stage):
                host.record = None
                if stage is not None:
                    host.record = SwitchRecord(stage, self.plan, host.name)
            case Exchange():
                assert self.hosts["n0"].record is not None, "an exchange before the decision"
                host.joined = True
                role = host.coordinator or host.participant
                assert role is not None
                if isinstance(role, Coordinator):
                    self.enqueue(host, role.exchanged(host.name))
                self.enqueue(host, [Record(SwitchStage.COMPLETE)])
            case Lead():
                host.leads = True
            case SendStep(to, step):
                self.send(host, self.hosts[to], step)

    def send(self, sender: Host, receiver: Host, step: SwitchStep) -> None:
        coordinator = sender.coordinator

        def answered(accepted: bool) -> None:
            assert coordinator is not None
            actions: Actions = []
            arrived = {
                SwitchStep.PREPARE: coordinator.prepared,
                SwitchStep.VOTE: coordinator.voted,
                SwitchStep.COMMIT: coordinator.exchanged,
            }
            if accepted and step in arrived:
                actions = arrived[step](receiver.name)
            elif step in (SwitchStep.PREPARE, SwitchStep.VOTE):
                actions = coordinator.abort(f"{receiver.name} refuses")
            self.enqueue(sender, actions)

        def received() -> None:
            accepted = self.receive(receiver, step)
            self.later(receiver, lambda: reply(accepted))  # after the actions

        def reply(accepted: bool) -> None:
            self.later(sender, lambda: answered(accepted), is_message=True)

        if receiver.alive:
            self.later(receiver, received, is_message=True)

    def receive(self, host: Host, step: SwitchStep) -> bool:
        if step is SwitchStep.PREPARE:
            if host.participant is not None:
                return False
            host.participant = Participant(self.plan, host.name)
            return True
        if host.participant is None:
            return host.joined and step is SwitchStep.COMMIT
        try:
            if step is SwitchStep.VOTE:
                actions = host.participant.vote()
            else:
                committed = step is SwitchStep.COMMIT
                outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
                actions = host.participant.decided(outcome)
        except ValueError:
            return False
        self.enqueue(host, actions)
        return True

    def time_passes(self) -> bool:
        """Let what waits run into its deadline; return whether anything happens."""
        before = len(self.steps)
        for host in self.hosts.values():
            coordinator, participant = host.coordinator, host.participant
            if not host.alive:
                self.start(host)
                self.later(host, lambda: None)
            elif coordinator is not None:
                self.enqueue(host, coordinator.abort("time is over"))
                self.enqueue(host, coordinator.lead_alone())
                for other in coordinator.plan.others:
                    self.enqueue(host, coordinator.not_exchanged(other))
            elif participant is not None and participant.awaits_decision:
                self.later(host, partial(self.ask, host))
            elif participant is not None and participant.outcome is Outcome.UNDECIDED:
                self.enqueue(host, participant.decided(Outcome.ABORTED))
        return len(self.steps) > before

    def ask(self, host: Host) -> None:
        participant = host.participant
        assert participant is not None
        answers = {
            name: self.outcome_at(other)
            for name, other in self.hosts.items()
            if other is not host and other.alive
        }
        outcome = resolve(self.plan, answers)
        if participant.awaits_decision:
            self.enqueue(host, participant.decided(outcome))

    def outcome_at(self, host: Host) -> Outcome:
        role = host.coordinator or host.participant
        return recorded_outcome(host.record, "s1") if role is None else role.outcome

    # Invariants

    def check_always(self) -> None:
        hosts = self.hosts.values()
        if any(each.joined for each in hosts):
            assert not any(each.writes_classic for each in hosts), "two writable logs"
        for each in hosts:
            voted = each.record is not None and each.record.stage is SwitchStage.PREPARED
            if each.alive and voted and not each.joined and each.participant is not None:
                waits = each.participant.awaits_decision
                assert not (waits and each.follows and self.is_settled(each)), "it follows again"

    def is_settled(self, host: Host) -> bool:
        return not any(step.host is host for step in self.steps)

    def check_at_rest(self) -> None:
        hosts = list(self.hosts.values())
        joined = [each.joined for each in hosts]
        assert all(joined) or not any(joined), "half a group"
        for each in hosts:
            stage = None if each.record is None else each.record.stage
            assert stage is (SwitchStage.COMPLETE if all(joined) else None), (each.name, stage)
            if not all(joined):
                assert each.follows and not each.frozen
        master = hosts[0]
        if all(joined) and master.coordinator is not None:
            assert master.leads and master.coordinator.phase in (Phase.COMMITTED, Phase.COMPLETE)


def run(count: int, kills: dict[int, str], lost: set[int] | None = None) -> Cluster:
    cluster = Cluster(count)
    cluster.kills = dict(kills)
    cluster.lost = lost or set()
    cluster.run()
    cluster.check_at_rest()
    return cluster


def every_kill(count: int) -> Iterator[tuple[int, str]]:
    steps = run(count, {}).taken
    return itertools.product(range(steps), plan(count).brokers)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_a_fault_all_join(count: int) -> None:
    cluster = run(count, {})
    assert all(each.joined for each in cluster.hosts.values())
    assert cluster.hosts["n0"].leads
    coordinator = cluster.hosts["n0"].coordinator
    assert coordinator is not None and coordinator.phase is Phase.COMPLETE


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_kill_at_any_step_leaves_no_half_group(count: int) -> None:
    ends = set()
    for at, victim in every_kill(count):
        cluster = run(count, {at: victim})
        ends.add(cluster.hosts["n0"].joined)
    assert ends == {True, False}


@pytest.mark.slow
def test_two_kills_leave_no_half_group() -> None:
    for (first, one), (second, two) in itertools.combinations(list(every_kill(3))[::2], 2):
        if first != second:
            run(3, {first: one, second: two})


@pytest.mark.parametrize("second", [False, True])
def test_lost_messages_leave_no_half_group(second: bool) -> None:
    steps = range(run(3, {}).taken)
    for lost in itertools.combinations(steps, 2) if second else zip(steps, strict=True):
        run(3, {}, set(lost))


@given(
    st.dictionaries(st.integers(0, 80), st.sampled_from(["n0", "n1", "n2"]), max_size=6),
    st.sets(st.integers(0, 80), max_size=4),
)
def test_kills_and_lost_messages_leave_no_half_group(kills: dict[int, str], lost: set[int]) -> None:
    run(3, kills, lost)


def test_what_contradicts_a_decision_is_refused() -> None:
    participant = Participant(plan(2), "n1")
    with pytest.raises(ValueError, match="not voted"):
        participant.decided(Outcome.COMMITTED)
    assert participant.decided(Outcome.ABORTED) == [Reopen()]
    with pytest.raises(ValueError, match="aborted"):
        participant.vote()
    participant = Participant(plan(2), "n1")
    assert participant.vote() == [StopFollowing(), Record(SwitchStage.PREPARED)]
    assert participant.vote() == []
    assert participant.decided(Outcome.UNDECIDED) == []
    assert participant.decided(Outcome.COMMITTED) == [Record(SwitchStage.COMMITTED), Exchange()]
    assert participant.decided(Outcome.COMMITTED) == []
    with pytest.raises(ValueError, match="was decided"):
        participant.decided(Outcome.ABORTED)


def test_after_the_decision_the_master_does_not_abort() -> None:
    coordinator = Coordinator(plan(1))
    coordinator.begin()
    assert coordinator.prepared("n0") == [Freeze()]
    assert coordinator.frozen() == [Record(SwitchStage.COMMITTED), Exchange()]
    assert coordinator.abort("late") == []
    assert coordinator.outcome is Outcome.COMMITTED


def test_the_master_leads_when_a_majority_has_exchanged_its_logs() -> None:
    """Requests wait for no third member; a majority without the master cannot lead."""

    def decided() -> Coordinator:
        coordinator = Coordinator(plan(3), Phase.VOTING)
        coordinator._waits_for = {"n1"}
        assert Exchange() in coordinator.voted("n1")
        return coordinator

    coordinator = decided()
    assert coordinator.exchanged("n1") == coordinator.exchanged("n2") == []
    assert coordinator.exchanged("n0") == [Lead()]
    coordinator = decided()
    assert coordinator.exchanged("n0") == []
    assert coordinator.exchanged("n1") == [Lead()]
    assert coordinator.not_exchanged("n2") == [SendStep("n2", SwitchStep.COMMIT)]
    assert coordinator.exchanged("n2") == []
    assert coordinator.phase is Phase.COMPLETE


def test_a_record_that_cannot_be_read_stops_the_start() -> None:
    record = SwitchRecord(SwitchStage.COMMITTED, plan(3), "n1")
    assert SwitchRecord.decode("switch.json", record.encode()) == record
    for raw in (b"", b"{}", b"[]", record.encode().replace(b'"format": 1', b'"format": 2')):
        with pytest.raises(StoreError, match="no record of a switch"):
            SwitchRecord.decode("switch.json", raw)
