"""Consumption rates of the last minute, from samples every ten seconds."""

from __future__ import annotations

from rmqpy.client.consuming.consumer_stats import SAMPLE_MS, TOPICS_MAX, ConsumerStats
from rmqpy.remoting.bodies import ConsumeStatus


def test_rates_are_those_of_the_last_minute() -> None:
    rates = ConsumerStats()
    rates.sample(0)
    assert rates.status("T", 0) == ConsumeStatus()
    rates.consumed("T", 1, 10, 0, 5)
    rates.sample(0)
    for second in range(60):
        rates.pulled("T", 32, 2)
        rates.consumed("T", 1, 10, 1, 20)
        if second % 10 == 9:
            rates.sample((second + 1) * 1000)
    status = rates.status("T", 60_000)
    assert status == ConsumeStatus(
        pull_rt=2.0,
        pull_tps=32.0,
        consume_rt=20.0,
        consume_ok_tps=9.0,
        consume_failed_tps=1.0,
        consume_failed_msgs=60,
    )


def test_counts_older_than_a_minute_are_dropped() -> None:
    rates = ConsumerStats()
    rates.consumed("T", 1, 100, 100, 1)
    for number in range(8):
        rates.sample(number * SAMPLE_MS)
    assert rates.status("T", 8 * SAMPLE_MS).consume_failed_msgs == 0


def test_the_number_of_topics_is_bounded() -> None:
    rates = ConsumerStats()
    for number in range(TOPICS_MAX + 5):
        rates.pulled(f"T{number}", 1, 1)
    rates.sample(0)
    rates.pulled("T0", 1, 1)
    assert (
        rates.status("T0", 1000) == ConsumeStatus()
    )  # It was dropped and is new again, without a sample.
