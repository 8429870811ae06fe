"""Transactions, delayed messages, offsets, strangers, and idleness in simulated groups."""

from __future__ import annotations

import pytest
from attrs import evolve
from simulator.broker_cluster import BrokerCluster
from simulator.invariants import InvariantViolationError
from simulator.mutations import MUTATIONS, planted
from simulator.plan import SimulationPlan

PLAN = SimulationPlan(
    seed=1, duration_ms=8000, heartbeat_ms=300, side_interval_ms=200, stranger_interval_ms=100
)


def test_delayed_messages_and_transactions_are_delivered_and_strangers_ignored() -> None:
    cluster = BrokerCluster(PLAN)
    outcome = cluster.run()
    assert cluster.side is not None and cluster.side.delivered > 10
    assert outcome.elections == 1


def test_tables_are_changed_and_the_slaves_have_them() -> None:
    cluster = BrokerCluster(evolve(PLAN, side_interval_ms=0, table_interval_ms=100, name_servers=1))
    cluster.run()
    assert cluster.tables is not None and cluster.tables.acknowledged > 20


@pytest.mark.parametrize(
    ("name", "violation"),
    [
        ("rolled_back_message_delivered", "was rolled back"),
        ("producers_never_asked", "no delivery"),
        ("delay_ignored", "before its delay"),
        ("commit_index_pushed_too_often", "an idle group sends"),
        ("table_change_acknowledged_before_its_write", "acknowledges _Change"),
    ],
)
def test_a_planted_bug_is_found_without_faults(name: str, violation: str) -> None:
    plan = evolve(PLAN, stranger_interval_ms=0, tick_ms=50, table_interval_ms=300)
    with planted(MUTATIONS[name]), pytest.raises(InvariantViolationError, match=violation):
        BrokerCluster(plan).run()
