"""A few seeds of whole brokers in virtual time; ``tox -e sim`` runs many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from simulator.broker_cluster import LAG_MS, BrokerCluster
from simulator.checkers import GroupChecker
from simulator.cluster import Outcome
from simulator.earlier_version import is_earlier
from simulator.invariants import InvariantViolationError
from simulator.operators import has_diverged
from simulator.plan import SimulationPlan, fast_path_plan, plan_of, single_broker_plan

from rmqpy.codec import backend
from rmqpy.dledger.node import Send
from rmqpy.model.codes import RequestCode
from rmqpy.model.files import FileSystem
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.checks.ledger import EntryFile, Ledger
from rmqpy.upgrade.plan.operations import Op
from rmqpy.upgrade.steps import diverged_entries
from rmqpy.upgrade.steps.cut_entries import cut_after

QUIET = SimulationPlan(seed=1, duration_ms=15_000, heartbeat_ms=300)


def run(plan: SimulationPlan) -> Outcome:
    cluster = BrokerCluster(plan)
    try:
        return cluster.run()
    except Exception as error:
        error.add_note(str(plan))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_invariant_is_broken_by_a_group(seed: int) -> None:
    outcome = run(plan_of(seed))
    assert outcome.operations >= 500 and outcome.simulated_ms >= 60_000
    assert outcome.stored and outcome.read


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_invariant_is_broken_by_a_single_broker(seed: int) -> None:
    outcome = run(single_broker_plan(seed))
    assert outcome.operations >= 500 and outcome.stored and outcome.read


@pytest.mark.slow
def test_a_single_leader_accepts_messages_when_its_disk_has_space_again() -> None:
    """A leader without peers stops its tick unless the disk is full."""
    run(single_broker_plan(27))


def test_no_fault_begins_after_all_faults_were_healed() -> None:
    """Members that should lose their tail are about to be stopped."""
    cluster = BrokerCluster(QUIET)
    cluster.begin()
    cluster.start_workload()
    cluster.nemesis.start()
    cluster.advance(5000)
    cluster.lose_tail()
    cluster.advance(LAG_MS - 100)
    cluster.settle()
    assert cluster.crashes == 0 and all(host.starts == 1 for host in cluster.hosts.values())


@pytest.mark.parametrize("seed", [75, 195])
def test_the_checkers_of_a_single_broker_raise_no_false_alarm(seed: int) -> None:
    """The clock is set back during a round of cleaning; an entry that was written in the moment of
    a kill is still there after a blackout.
    """
    run(single_broker_plan(seed))


@pytest.mark.parametrize("working", [False, True])
def test_a_member_whose_power_fails_at_work_may_have_cut_what_was_not_committed(
    working: bool,
) -> None:
    cluster = BrokerCluster(evolve(QUIET, sync_flush=True, power=True))
    cluster.begin()
    cluster.start_workload()
    cluster.advance(5000)
    leader, checker = cluster.leader(), cluster.checker
    assert leader is not None and isinstance(checker, GroupChecker)
    cluster.network.isolate(leader.name, cluster.hosts)
    cluster.advance(600)
    view, committed = checker.views[leader.name], len(checker.invariants.committed)
    cluster.crash(leader, power=True, working=working)
    assert committed < len(view.entries)
    assert view.durable_at_end == (committed if working else len(view.entries))


def test_a_seed_replays_exactly() -> None:
    plan = evolve(plan_of(7), duration_ms=20_000)
    first, second = BrokerCluster(plan, trace=[]), BrokerCluster(plan, trace=[])
    assert first.run() == second.run()
    assert first.trace == second.trace and first.trace


@pytest.mark.slow
def test_a_seed_has_the_same_history_with_and_without_the_c_core() -> None:
    """The seed has an old log, power failures, flips, expiry, transfers and name servers."""
    outputs = []
    tests = str(Path(__file__).parents[1])
    for pure in ("0", "1"):
        outputs.append(
            subprocess.run(
                [sys.executable, "-m", "simulator", "--replay", "97"],
                env=python_environment({"RMQPY_PURE": pure, "PYTHONPATH": tests}),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert outputs[0] == outputs[1] and "digest=" in outputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_has_the_same_history_if_c_answers(seed: int) -> None:
    """A group and a single broker. Some other seeds differ: in what is dispatched in one turn, and
    in the order in which queues are synced.
    """
    if backend.implementation != "c":
        pytest.skip(f"no C to compare with: {backend.reason}")
    fast = fast_path_plan(seed)
    first, second = BrokerCluster(fast), BrokerCluster(evolve(fast, fast_path=False))
    outcome, expected = first.run(), second.run()
    assert evolve(outcome, events=0, digest="") == evolve(expected, events=0, digest="")
    assert first.checker.digest() == second.checker.digest()
    assert first.network.carried == second.network.carried
    answered = [host.answered_in_c for host in first.hosts.values()]
    assert sum(answered) > outcome.stored, "C has answered hardly anything"


@pytest.mark.slow
def test_another_seed_has_another_history() -> None:
    assert run(evolve(QUIET, seed=2)).digest != run(evolve(QUIET, seed=3)).digest


@pytest.mark.parametrize("members", [1, 3, 5])
def test_without_faults_everything_is_stored_under_one_leader(members: int) -> None:
    cluster = BrokerCluster(evolve(QUIET, members=members, old_messages=5))
    outcome = cluster.run()
    assert outcome.elections == 1 and outcome.crashes == 0
    assert cluster.producer.unanswered == 0 and cluster.producer.stored > 40


def test_the_plan_is_printed() -> None:
    text = str(plan_of(3))
    for name in ("seed=3", "members=", "power=", "partition_interval_ms=", "disk_interval_ms="):
        assert name in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", [16, 21])
def test_a_clock_set_back_and_a_power_failure_lose_no_message(seed: int) -> None:
    run(single_broker_plan(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [612, 5380])
def test_a_disk_failure_while_entries_are_dropped_breaks_no_invariant(seed: int) -> None:
    """The member is stopped while it drops entries; the checker does not read its files then."""
    run(plan_of(seed))


def diverged() -> tuple[BrokerCluster, str]:
    """Return a group after a blackout that has taken from all members but one what was committed,
    and the name of that member, whose disk is the fastest.
    """
    for seed in range(5, 25):  # Each disk keeps what it will.
        plan = evolve(QUIET, seed=seed, sync_ms=5000)
        cluster = BrokerCluster(plan, trace=[])
        cluster.begin()
        keeper, *others = cluster.hosts.values()
        assert keeper.life is not None
        keeper.life.blocking_ms = lambda: 5
        cluster.start_workload()
        cluster.advance(5000)
        for host in others:
            assert host.running is not None
            host.running.broker.log_flusher.stop(lambda: None)
        cluster.advance(4000)
        cluster.black_out(list(cluster.hosts.values()))
        for host in others:
            cluster.start(host)
        cluster.advance(3000)
        cluster.start(keeper)
        cluster.advance(3000)
        if has_diverged(keeper):
            return cluster, keeper.name
    raise AssertionError("no blackout has taken what one member has kept")


def recover(cluster: BrokerCluster) -> bool:
    for _ in range(100):
        if cluster.has_recovered(late=False):
            return True
        cluster.advance(100)
    return False


def test_an_operator_lets_a_member_that_has_diverged_join_again() -> None:
    cluster, name = diverged()
    assert recover(cluster)
    cluster.settle()
    assert cluster.trace is not None
    assert sum(f"{name} joins again" in line for line in cluster.trace) == 1


def test_an_operator_who_removes_what_is_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _ = diverged()

    def cut_one_more(
        files: FileSystem, ledger: Ledger, index: int, keep: str, why: str
    ) -> tuple[list[EntryFile], list[Op]]:
        return cut_after(files, ledger, index - 1, keep, why)

    monkeypatch.setattr(diverged_entries, "cut_after", cut_one_more)
    with pytest.raises(InvariantViolationError, match="drops the committed entry"):
        recover(cluster)


def test_members_of_two_versions_form_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of pushes are sent; no member receives the one that it does not know."""
    plan = evolve(QUIET, crash_interval_ms=2000, down_ms=500)
    versions = {is_earlier(plan, member, 1) for member in range(3)}
    assert versions == {True, False}
    sent: set[int] = set()
    encoded = PeerTransport._encoded

    def noted(self: PeerTransport, send: Send) -> tuple[int, Sequence[bytes]]:
        code, pieces = encoded(self, send)
        sent.add(code)
        return code, pieces

    monkeypatch.setattr(PeerTransport, "_encoded", noted)
    assert run(plan).stored
    assert {RequestCode.PUSH, RequestCode.RMQPY_PUSH_RUN} <= sent
