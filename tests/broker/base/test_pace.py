"""The throttle of work that is requested too often."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.broker.base.scheduling import Throttled


@define
class FakeScheduler:
    """A scheduler whose time the test moves, also during work."""

    now: int = 0
    waiting: list[tuple[int, Callable[[], None]]] = field(factory=list)

    def monotonic_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> FakeScheduler:
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


def throttled(cost_ms: int) -> tuple[FakeScheduler, Throttled, list[int]]:
    scheduler = FakeScheduler()
    runs: list[int] = []

    def work() -> None:
        runs.append(scheduler.now)
        scheduler.now += cost_ms

    # The fake has only the methods of a scheduler that Throttled calls.
    return scheduler, Throttled(scheduler, work), runs  # type: ignore[arg-type]


def test_cheap_work_runs_at_once() -> None:
    scheduler, throttle, runs = throttled(0)
    for _ in range(3):
        throttle.request()
    assert runs == [0, 0, 0]
    assert scheduler.waiting == []


def test_expensive_work_takes_at_most_a_tenth_of_the_time() -> None:
    scheduler, throttle, runs = throttled(20)
    for now in range(0, 1_000, 5):
        scheduler.run_until(max(now, scheduler.now))
        throttle.request()
    assert runs == [0, 220, 440, 660, 880]
    assert len(scheduler.waiting) == 1  # The last request is not lost.
    scheduler.run_until(5_000)
    assert runs[5:] == [5_000]


def test_very_expensive_work_rests_for_a_second() -> None:
    scheduler, throttle, runs = throttled(3_000)
    throttle.request()
    throttle.request()
    scheduler.run_until(3_999)
    assert runs == [0]
    scheduler.run_until(4_000)
    assert runs == [0, 4_000]


def test_a_cancelled_request_does_not_run() -> None:
    scheduler, throttle, runs = throttled(20)
    throttle.request()
    throttle.request()
    throttle.cancel()
    scheduler.run_until(10_000)
    assert runs == [0]
    throttle.request()
    assert runs == [0, 10_000]
