"""The rates of the last hour: bounded, and right after a restart."""

from __future__ import annotations

from rmqpy.console import history
from rmqpy.console.history import HISTORY_MS, SAMPLES_MAX, RateHistory, rates_of


def test_a_rate_is_the_growth_over_the_window() -> None:
    found = RateHistory()
    for second in range(0, 121, 5):
        found.add("in", second * 1000, 10 * second if second <= 60 else 600 + 40 * (second - 60))
    assert found.rate("in", 60_000) == 40.0
    assert found.rate("in", 120_000) == 25.0
    assert found.rate("unknown", 60_000) is None


def test_a_restart_gives_no_negative_rate() -> None:
    found = RateHistory()
    for time_ms, value in ((0, 1000), (5000, 1500), (10_000, 5), (15_000, 105)):
        found.add("in", time_ms, value)
    assert rates_of([found.samples("in")]) == [(5000, 100.0), (15_000, 20.0)]
    assert found.rate("in", 5_000) == 20.0


def test_a_gap_longer_than_the_window_still_gives_a_rate() -> None:
    found = RateHistory()
    found.add("in", 0, 0)
    found.add("in", 600_000, 6000)
    assert found.rate("in", 60_000) == 10.0


def test_the_rates_of_several_brokers_add_up() -> None:
    rows = [[(0, 0), (1000, 10)], [(0, 5), (1000, 25)]]
    assert rates_of(rows) == [(1000, 30.0)]


def test_the_history_is_bounded(monkeypatch: object) -> None:
    found = RateHistory()
    for number in range(SAMPLES_MAX + 10):
        found.add("in", number, number)
    assert len(found.samples("in")) == SAMPLES_MAX
    for number in range(history.SERIES_MAX):
        found.add(number, 5, 1)
    assert len(found) == history.SERIES_MAX and not found.samples("in")
    found.forget_before(HISTORY_MS)
    assert len(found) == 0
