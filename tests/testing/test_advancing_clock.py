"""The clock that tests advance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rmqpy.net.loop import AsyncioScheduler
from rmqpy.testing.dev.advancing_clock import STEP_MS, AdvancingScheduler

HOUR_MS = 3_600_000


def with_clock(test: Callable[[AdvancingScheduler], Awaitable[None]]) -> AsyncioScheduler:
    async def main() -> AsyncioScheduler:
        base = AsyncioScheduler()
        async with asyncio.timeout(20):
            await test(AdvancingScheduler(base))
        await base.close()
        return base

    return asyncio.run(main())


def test_timers_that_become_due_run_in_their_order_and_others_do_not() -> None:
    ran: list[str] = []

    async def main(clock: AdvancingScheduler) -> None:
        clock.call_later(HOUR_MS, lambda: ran.append("second"))
        clock.call_later(HOUR_MS - 1, lambda: ran.append("first"))
        clock.call_later(3 * HOUR_MS, lambda: ran.append("later"))
        clock.call_later(HOUR_MS, lambda: ran.append("cancelled")).cancel()
        begin_ms, begin_wall_ms = clock.monotonic_ms(), clock.now_ms()
        await clock.advance(2 * HOUR_MS, lambda: None)
        assert clock.monotonic_ms() - begin_ms >= 2 * HOUR_MS
        assert clock.now_ms() - begin_wall_ms >= 2 * HOUR_MS
        assert ran == ["first", "second"]

    with_clock(main)


def test_no_step_skips_an_hour_of_the_day() -> None:
    seen_ms: list[int] = []

    async def main(clock: AdvancingScheduler) -> None:
        await clock.advance(24 * HOUR_MS, lambda: seen_ms.append(clock.now_ms()))
        assert {ms // HOUR_MS % 24 for ms in seen_ms} == set(range(24))

    with_clock(main)
    assert STEP_MS < HOUR_MS


def test_an_advance_waits_for_blocking_work_and_its_result() -> None:
    results: list[int] = []

    async def main(clock: AdvancingScheduler) -> None:
        def work() -> None:
            clock.run_blocking(lambda: 7, lambda value, _error: results.append(value or 0))

        clock.call_later(1000, work)
        await clock.advance(1000, lambda: None)
        assert results == [7]

    with_clock(main)


def test_a_timer_runs_without_an_advance_and_after_a_failure_of_another() -> None:
    async def main(clock: AdvancingScheduler) -> None:
        due = asyncio.Event()

        def fail() -> None:
            raise ValueError("a defect")

        clock.call_later(0, fail)
        clock.call_later(1, due.set)
        await due.wait()

    assert with_clock(main).failure_log.failures == 1


def test_nothing_runs_after_halt() -> None:
    ran: list[str] = []

    async def main(clock: AdvancingScheduler) -> None:
        clock.call_later(10, lambda: ran.append("timer"))
        clock.call_soon(lambda: ran.append("soon"))
        clock.run_blocking(lambda: 1, lambda _value, _error: ran.append("done"))
        clock.halt()
        await clock.advance(HOUR_MS, lambda: None)
        await asyncio.sleep(0.01)

    with_clock(main)
    assert ran == []
