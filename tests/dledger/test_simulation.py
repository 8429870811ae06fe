"""Simulations of groups of bare nodes in virtual time, one per seed, and tests that the checkers
find bugs.

RMQPY_SEEDS sets the number of seeds, RMQPY_FIRST_SEED the first one. A seed that fails is replayed
by ``tox -e sim -- --family nodes --replay SEED``.
"""

from __future__ import annotations

import os

import pytest
from attrs import evolve
from simulator.invariants import InvariantViolationError
from simulator.mutations import MUTATIONS
from simulator.node_checker import NodeChecker
from simulator.node_cluster import NodeCluster
from simulator.node_disk import NodeDisk
from simulator.plan import SimulationPlan, node_plan
from simulator.runner import find_mutation

from rmqpy.dledger.election import VoteParseResult
from rmqpy.dledger.member import RaftOptions
from rmqpy.dledger.state import HardState, Role
from rmqpy.model.ids import LedgerIndex, Term

SEEDS = int(os.environ.get("RMQPY_SEEDS", "200"))
FIRST_SEED = int(os.environ.get("RMQPY_FIRST_SEED", "0"))
BATCH = 20
MUTATION_SEEDS = 60
"""Each planted bug must be found within this many seeds."""

QUIET = SimulationPlan(
    seed=1,
    bare=True,
    duration_ms=20_000,
    heartbeat_ms=200,
    tick_ms=10,
    delay_ms=5,
    send_interval_ms=40,
    batch=0.4,
    lazy=0.0,
)
IDLE = evolve(QUIET, send_interval_ms=1_000_000)


def started(plan: SimulationPlan) -> NodeCluster:
    """Return a cluster under load, without faults."""
    cluster = NodeCluster(plan)
    cluster.begin()
    cluster.start_workload()
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BATCH))
def test_no_invariant_is_broken(first: int) -> None:
    acknowledged = elections = 0
    for seed in range(first, min(first + BATCH, FIRST_SEED + SEEDS)):
        cluster = NodeCluster(node_plan(seed))
        try:
            outcome = cluster.run()
        except Exception as error:
            error.add_note(str(cluster.plan))
            raise
        acknowledged += outcome.stored
        elections += outcome.elections
    assert acknowledged > 10 * BATCH, "hardly any put was acknowledged: the faults prevent all work"
    assert elections > BATCH


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    runs = []
    for _ in range(2):
        cluster = NodeCluster(node_plan(11), trace=[])
        runs.append((cluster.run(), cluster.trace))
    assert runs[0] == runs[1]
    assert len(runs[0][1] or ()) > 5


def test_without_faults_every_put_is_acknowledged_and_the_leader_stays() -> None:
    cluster = NodeCluster(QUIET)
    outcome = cluster.run()
    assert outcome.elections == 1
    assert cluster.puts > 300
    host = cluster.leader()
    assert host is not None and host.disk.log.end.index == cluster.puts - 1
    assert not host.waiting


@pytest.mark.slow
@pytest.mark.parametrize("members", [3, 5])
def test_a_member_that_was_isolated_for_long_does_not_depose_the_leader(members: int) -> None:
    cluster = started(evolve(IDLE, seed=3, members=members))
    cluster.advance(3000)
    leader = cluster.leader()
    assert leader is not None and leader.node is not None
    cluster.put(leader)
    term = leader.node.term
    isolated = next(host for host in cluster.hosts.values() if host is not leader)
    cluster.network.isolate(isolated.name, set(cluster.hosts) - {isolated.name})
    cluster.advance(57_000)
    assert isolated.node is not None and isolated.node.role is Role.CANDIDATE
    cluster.network.blocked.clear()
    cluster.advance(5000)
    assert cluster.checker.elections == 1
    assert leader.node.role is Role.LEADER and leader.node.term == term
    assert isolated.node.leader_id == leader.name


def test_an_isolated_leader_steps_down_in_time() -> None:
    cluster = started(evolve(QUIET, seed=4))
    cluster.advance(3000)
    leader = cluster.leader()
    assert leader is not None and leader.node is not None
    cluster.network.isolate(leader.name, set(cluster.hosts) - {leader.name})
    patience_ms = QUIET.heartbeat_ms * (RaftOptions().max_heartbeat_leak + 1)
    cluster.advance(patience_ms + 100)
    assert leader.node.role is Role.CANDIDATE
    cluster.advance(2900 - patience_ms)
    other = cluster.leader()
    assert other is not None and other is not leader
    cluster.settle()


@pytest.mark.slow
def test_a_group_elects_within_two_seconds_of_a_kill_with_short_timeouts() -> None:
    for seed in range(20):
        cluster = started(evolve(QUIET, seed=seed))
        cluster.advance(3000)
        leader = cluster.leader()
        assert leader is not None
        cluster.crash(leader, power=False)
        cluster.advance(2000)
        other = cluster.leader()
        assert other is not None and other is not leader, seed


@pytest.mark.slow
def test_a_member_in_a_larger_term_rejoins_the_group() -> None:
    cluster = started(evolve(QUIET, seed=5))
    cluster.advance(3000)
    leader = cluster.leader()
    assert leader is not None
    stuck = next(host for host in cluster.hosts.values() if host is not leader)
    cluster.crash(stuck, power=False)
    term = Term(stuck.disk.hard_state.current_term + 5)
    stuck.disk.hard_state = HardState(term, stuck.name)
    cluster.advance(1000)  # Its log is now too old to win a vote.
    cluster.start(stuck)
    cluster.advance(6000)
    cluster.settle()


def test_power_failures_without_syncing_are_not_survived() -> None:
    """With ack_after_sync off, the checkers find the lost entries."""

    def is_broken(seed: int) -> bool:
        try:
            NodeCluster(evolve(node_plan(seed), power=True, ack_unsynced=True)).run()
        except InvariantViolationError:
            return True
        return False

    assert any(is_broken(seed) for seed in range(60))


NODE_MUTATIONS = [name for name, mutation in MUTATIONS.items() if "nodes" in mutation.families]


@pytest.mark.slow
@pytest.mark.parametrize("name", NODE_MUTATIONS)
def test_the_checkers_find_a_planted_bug(name: str) -> None:
    found = find_mutation(name, range(MUTATION_SEEDS), "nodes")
    assert found.seed >= 0, found


def test_the_checker_reports_each_violation() -> None:
    disks = {f"n{number}": NodeDisk() for number in range(3)}
    checker = NodeChecker.of(disks, power=True)
    first, second, third = checker.views.values()
    log = disks["n0"].log
    entries = log.propose(Term(1), LedgerIndex(0), [b"a", b"b"])
    first.wrote(entries[0], -1)
    with pytest.raises(InvariantViolationError, match=r"which only \['n0'\] have$"):
        first.committed(0, 1, leads=True)
    second.disk.log.append(entries[:1])
    checker = NodeChecker.of(disks, power=True)
    first, second, third = checker.views.values()
    with pytest.raises(InvariantViolationError, match=r"which only \[\] have synced"):
        first.committed(0, 1, leads=True)
    for disk in disks.values():
        disk.log.sync()
    checker = NodeChecker.of(disks, power=True)
    first, second, third = checker.views.values()
    with pytest.raises(InvariantViolationError, match="of term 1 by counting"):
        first.committed(0, 2, leads=True)
    checker = NodeChecker.of(disks, power=True)
    first, second, third = checker.views.values()
    first.wrote(entries[0], -1)
    first.committed(0, 1, leads=True)
    with pytest.raises(InvariantViolationError, match="falls"):
        first.committed(0, 1, leads=False)
    with pytest.raises(InvariantViolationError, match="and has entries up to 1"):
        first.committed(2, 1, leads=False)
    with pytest.raises(InvariantViolationError, match="drops the committed entry 0"):
        first.dropped(entries[0])
    with pytest.raises(InvariantViolationError, match="another entry 0"):
        second.wrote(evolve(entries[0], body=b"c"), -1)
    with pytest.raises(InvariantViolationError, match="without the committed entry"):
        third.check_leader(2)
    first.check_leader(3)
    with pytest.raises(InvariantViolationError, match="n1 and n0 lead in term 3"):
        second.check_leader(3)
    first.disk.hard_state = HardState(Term(4), "n1")
    first.saved(first.disk.hard_state)
    with pytest.raises(InvariantViolationError, match="votes for n2 in term 4; durable is"):
        first.check_vote("n2", 4)
    with pytest.raises(InvariantViolationError, match="votes for n1 and for n2"):
        first.saved(HardState(Term(4), "n2"))
    with pytest.raises(InvariantViolationError, match="term of n0 falls"):
        first.saved(HardState(Term(3), None))
    with pytest.raises(InvariantViolationError, match="forgets its vote"):
        first.saved(HardState(Term(4), None))
    with pytest.raises(InvariantViolationError, match="not committed"):
        first.check_acknowledged(1, 1)
    with pytest.raises(InvariantViolationError, match="remembers"):
        first.restarted(1)
    with pytest.raises(InvariantViolationError, match="is not what was committed"):
        first.audit()


@pytest.mark.slow
def test_every_result_of_a_vote_round_occurs() -> None:
    seen: set[VoteParseResult] = set()
    for seed in range(40):
        cluster = NodeCluster(node_plan(seed))
        cluster.run()
        for host in cluster.hosts.values():
            assert host.node is not None
            seen |= set(host.node.rounds[0])
        if len(seen) == len(VoteParseResult):
            return
    raise AssertionError(f"only these results occurred: {seen}")
