"""Who reads too far behind the end of the log may not consume any more."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from rmqpy.broker.processors.slow_consumers import PERIOD_MS
from rmqpy.config.loading import BrokerRole
from rmqpy.testing.harness import BrokerHarness, BuildBroker

THRESHOLD = 1_000


@pytest.fixture
def guarded(build: BuildBroker) -> BrokerHarness:
    """A broker that takes the right from who reads a kilobyte behind, with five messages of 500."""
    kit = build(
        disable_consume_if_consumer_read_slowly=True, consumer_fallbehind_threshold=THRESHOLD
    )
    for _ in range(5):
        kit.send(b"x" * 500)
    return kit


def may_consume(kit: BrokerHarness, group: str = "CG") -> bool:
    enabled: bool = kit.broker.groups.get(group).consume_enable
    return enabled


def test_a_group_that_reads_far_behind_is_disabled(guarded: BrokerHarness) -> None:
    assert guarded.pull(max_msg_nums=1).code == 0
    assert guarded.pull(max_msg_nums=32, consumer_group="quick").code == 0
    guarded.scheduler.advance(PERIOD_MS)
    assert not may_consume(guarded) and may_consume(guarded, "quick")
    answer = guarded.pull(max_msg_nums=1)
    assert answer.code == 16 and "CG may not consume" in answer.remark
    assert guarded.pull(consumer_group="quick").code == 0


def test_only_the_last_read_of_a_queue_counts(guarded: BrokerHarness) -> None:
    guarded.pull(max_msg_nums=1)
    guarded.pull(queue_offset=4)
    guarded.scheduler.advance(PERIOD_MS)
    assert may_consume(guarded)
    guarded.pull(max_msg_nums=1)
    guarded.pull(queue_offset=5)
    guarded.scheduler.advance(PERIOD_MS)
    assert may_consume(guarded), "it has read to the end"


def test_who_gets_the_right_back_keeps_it_until_it_reads(guarded: BrokerHarness) -> None:
    guarded.pull(max_msg_nums=1)
    guarded.scheduler.advance(PERIOD_MS)
    groups = guarded.broker.groups
    groups.put(evolve(groups.get("CG"), consume_enable=True))
    guarded.scheduler.advance(PERIOD_MS)
    assert may_consume(guarded)
    guarded.pull(max_msg_nums=1)
    guarded.scheduler.advance(PERIOD_MS)
    assert not may_consume(guarded)


@pytest.mark.parametrize(
    "settings",
    [
        {"consumer_fallbehind_threshold": THRESHOLD},
        {
            "disable_consume_if_consumer_read_slowly": True,
            "consumer_fallbehind_threshold": THRESHOLD,
            "disk_fall_recorded": False,
        },
        {"disable_consume_if_consumer_read_slowly": True},
    ],
    ids=["off", "nothing remembered", "not so far"],
)
def test_other_settings_leave_everybody_in_peace(
    build: BuildBroker, settings: dict[str, Any]
) -> None:
    kit = build(**settings)
    for _ in range(5):
        kit.send(b"x" * 500)
    kit.pull(max_msg_nums=1)
    kit.scheduler.advance(PERIOD_MS)
    assert may_consume(kit)


def test_a_slave_leaves_it_to_its_master(guarded: BrokerHarness) -> None:
    guarded.pull(max_msg_nums=1)
    guarded.broker.identity.role = BrokerRole.SLAVE
    guarded.scheduler.advance(PERIOD_MS)
    assert may_consume(guarded)
