"""Work that is asked for too often."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.broker.base.scheduling import Throttled


@define
class Later:
    """A scheduler with hands."""

    now: int = 0
    waiting: list[tuple[int, Callable[[], None]]] = field(factory=list)

    def monotonic_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Later:
        self.waiting.append((self.now + delay_ms, callback))
        return self

    def cancel(self) -> None:
        self.waiting.clear()

    def run_until(self, now: int) -> None:
        self.now = now
        due = [each for each in self.waiting if each[0] <= now]
        self.waiting = [each for each in self.waiting if each[0] > now]
        for _, callback in due:
            callback()


def paced(cost_ms: int) -> tuple[Later, Throttled, list[int]]:
    later = Later()
    runs: list[int] = []

    def work() -> None:
        runs.append(later.now)
        later.now += cost_ms

    return later, Throttled(later, work), runs  # type: ignore[arg-type]


def test_cheap_work_runs_at_once() -> None:
    later, pace, runs = paced(0)
    for _ in range(3):
        pace.request()
    assert runs == [0, 0, 0]
    assert later.waiting == []


def test_expensive_work_takes_at_most_a_tenth_of_the_time() -> None:
    later, pace, runs = paced(20)
    for now in range(0, 1_000, 5):
        later.run_until(max(now, later.now))
        pace.request()
    assert runs == [0, 220, 440, 660, 880]
    assert len(later.waiting) == 1  # the last wish is not forgotten
    later.run_until(5_000)
    assert runs[5:] == [5_000]


def test_very_expensive_work_rests_for_a_second() -> None:
    later, pace, runs = paced(3_000)
    pace.request()
    pace.request()
    later.run_until(3_999)
    assert runs == [0]
    later.run_until(4_000)
    assert runs == [0, 4_000]


def test_a_cancelled_request_does_not_run() -> None:
    later, pace, runs = paced(20)
    pace.request()
    pace.request()
    pace.cancel()
    later.run_until(10_000)
    assert runs == [0]
    pace.request()
    assert runs == [0, 10_000]
