"""The checker of progress: a healthy quorum works, and keeps its leader."""

from __future__ import annotations

import pytest
from simulator.invariants import InvariantViolationError
from simulator.node_cluster import NodeCluster
from simulator.plan import SimulationPlan

PLAN = SimulationPlan(
    seed=1,
    bare=True,
    duration_ms=20_000,
    heartbeat_ms=200,
    tick_ms=10,
    delay_ms=5,
    send_interval_ms=100,
    lazy=0.0,
)


@pytest.fixture
def cluster() -> NodeCluster:
    """A group of three, in a truce for all of them, with a leader that must stay."""
    cluster = NodeCluster(PLAN)
    cluster.begin()
    cluster.start_workload()
    cluster.progress.begin(frozenset(cluster.hosts))
    cluster.advance(3000)
    assert cluster.progress.stable_ms > 0
    return cluster


def followers(cluster: NodeCluster) -> list[str]:
    leader = cluster.leader()
    return [host.name for host in cluster.hosts.values() if host is not leader]


def test_a_healthy_group_keeps_its_leader_for_the_whole_truce(cluster: NodeCluster) -> None:
    cluster.advance(10_000)
    assert cluster.progress.stable_ms > 10_000


def test_a_leader_that_is_lost_without_a_fault_is_reported(cluster: NodeCluster) -> None:
    leader = cluster.leader()
    assert leader is not None and leader.node is not None
    leader.node._member.become_candidate(leader.node.term)
    with pytest.raises(InvariantViolationError, match="do not all follow it"):
        cluster.advance(100)


def test_a_follower_that_becomes_a_candidate_is_reported(cluster: NodeCluster) -> None:
    cluster.network.isolate(followers(cluster)[0], cluster.hosts)
    with pytest.raises(InvariantViolationError, match="do not all follow it"):
        cluster.advance(1500)


def test_a_group_that_acknowledges_nothing_is_reported(cluster: NodeCluster) -> None:
    cluster.progress.disturb()
    for host in cluster.hosts.values():
        host.disk.full = True
    with pytest.raises(InvariantViolationError, match="no message was acknowledged"):
        cluster.advance(cluster.progress.elect_ms + 3000)


def test_a_follower_that_falls_behind_is_reported(cluster: NodeCluster) -> None:
    cluster.hosts[followers(cluster)[0]].disk.full = True
    with pytest.raises(InvariantViolationError, match="has not committed"):
        cluster.advance(10_000)


def test_a_fault_of_another_member_matters_if_it_leads(cluster: NodeCluster) -> None:
    leader = cluster.leader()
    assert leader is not None
    before_ms = cluster.progress.disturbed_ms
    cluster.progress.on_fault(followers(cluster)[0])
    assert cluster.progress.disturbed_ms == before_ms
    cluster.progress.on_fault(leader.name)
    assert cluster.progress.disturbed_ms == cluster.timeline.now_ms
