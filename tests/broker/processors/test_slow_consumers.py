"""Groups that read too far from the end of the log lose the right to consume."""

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
    """A broker with five messages of 500 bytes, which disables groups that lag by a kilobyte."""
    harness = build(
        disable_consume_if_consumer_read_slowly=True, consumer_fallbehind_threshold=THRESHOLD
    )
    for _ in range(5):
        harness.send(b"x" * 500)
    return harness


def may_consume(harness: BrokerHarness, group: str = "CG") -> bool:
    enabled: bool = harness.broker.groups.groups[group].consume_enable
    return enabled


def test_a_group_that_lags_too_far_is_disabled(guarded: BrokerHarness) -> None:
    assert guarded.pull(max_msg_nums=1).code == 0
    assert guarded.pull(max_msg_nums=32, consumer_group="quick").code == 0
    guarded.scheduler.advance(PERIOD_MS)
    assert not may_consume(guarded) and may_consume(guarded, "quick")
    answer = guarded.pull(max_msg_nums=1)
    assert answer.code == 16 and "CG may not consume" in (answer.remark or "")
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


def test_an_enabled_group_stays_enabled_until_it_reads_again(guarded: BrokerHarness) -> None:
    guarded.pull(max_msg_nums=1)
    guarded.scheduler.advance(PERIOD_MS)
    groups = guarded.broker.groups
    groups.put(evolve(groups.groups["CG"], consume_enable=True))
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
def test_other_settings_disable_no_group(build: BuildBroker, settings: dict[str, Any]) -> None:
    harness = build(**settings)
    for _ in range(5):
        harness.send(b"x" * 500)
    harness.pull(max_msg_nums=1)
    harness.scheduler.advance(PERIOD_MS)
    assert may_consume(harness)


def test_a_slave_disables_no_group(guarded: BrokerHarness) -> None:
    guarded.pull(max_msg_nums=1)
    guarded.broker.identity.role = BrokerRole.SLAVE
    guarded.scheduler.advance(PERIOD_MS)
    assert may_consume(guarded)
