"""``CallDeadlines``: what ``asyncio.timeout`` does, with one timer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any

import pytest
from harness.client import Run

from rmqpy.client.consuming.call_deadlines import CallDeadlines, resumed


async def forever() -> None:
    await asyncio.Event().wait()


def test_overdue_calls_are_cancelled_and_others_are_not(run: Run) -> None:
    async def main() -> None:
        deadlines = CallDeadlines(1)
        finish = asyncio.Event()

        async def finishes() -> int:
            await finish.wait()
            return 7

        outcomes = await asyncio.gather(
            *(deadlines.run(forever()) for _ in range(3)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [TimeoutError] * 3
        patient = CallDeadlines(60_000)
        first = asyncio.create_task(patient.run(finishes()))
        await asyncio.sleep(0)
        finish.set()
        assert await first == 7
        assert await patient.run(finishes()) == 7
        patient.close()

    run(main())


def test_the_task_of_an_overdue_call_goes_on(run: Run) -> None:
    async def main() -> None:
        deadlines = CallDeadlines(1)
        task = asyncio.current_task()
        assert task is not None
        for _ in range(2):
            with pytest.raises(TimeoutError, match="longer than 1 ms"):
                await deadlines.run(forever())
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    run(main())


def test_a_call_may_end_in_spite_of_its_cancellation(run: Run) -> None:
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        return "ended"

    async def failing() -> None:
        try:
            await forever()
        finally:
            raise ValueError("failed")

    async def main() -> None:
        deadlines = CallDeadlines(1)
        task = asyncio.current_task()
        assert task is not None
        assert await deadlines.run(stubborn()) == "ended"
        assert task.cancelling() == 0
        with pytest.raises(ValueError, match="failed"):
            await deadlines.run(failing())
        assert task.cancelling() == 0

    run(main())


@pytest.mark.parametrize("timeout_ms", [1, 60_000])
def test_a_cancellation_by_others_goes_through(run: Run, timeout_ms: int) -> None:
    async def main() -> None:
        deadlines = CallDeadlines(timeout_ms)
        began = asyncio.Event()
        others: list[asyncio.Task[None]] = []

        async def call() -> None:
            began.set()
            try:
                await forever()
            finally:
                if timeout_ms == 1:  # It is overdue, and cancelled by somebody else, too.
                    others[0].cancel()

        others.append(asyncio.create_task(deadlines.run(call())))
        await began.wait()
        if timeout_ms != 1:
            others[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await others[0]
        deadlines.close()

    run(main())


def test_calls_share_one_timer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        call_at = loop.call_at

        def counted(when: float, callback: Callable[..., Any], *rest: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, callback, *rest)

        monkeypatch.setattr(loop, "call_at", counted)
        deadlines = CallDeadlines(60_000)
        for _ in range(10):
            await deadlines.run(asyncio.sleep(0))
        assert len(timers) == 1
        deadlines.close()
        deadlines.close()

    run(main())


def test_the_rest_of_a_call_goes_on_like_the_call(run: Run) -> None:
    """Results, exceptions and cancellations reach it after each of its steps."""

    async def call(first: asyncio.Future[int], second: asyncio.Future[int]) -> list[object]:
        seen: list[object] = [await first]
        try:
            seen.append(await second)
        except (ValueError, asyncio.CancelledError) as error:
            seen.append(type(error))
        return seen

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for end in ("result", "error", "cancel"):
            first, second = loop.create_future(), loop.create_future()
            steps = call(first, second).__await__()

            async def rest(steps: Generator[Any, Any, Any] = steps) -> object:
                return await resumed(steps, next(steps))

            task = asyncio.create_task(rest())
            await asyncio.sleep(0)
            first.set_result(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if end == "result":
                second.set_result(2)
            elif end == "error":
                second.set_exception(ValueError())
            else:
                task.cancel()
            expected = {"result": 2, "error": ValueError, "cancel": asyncio.CancelledError}
            assert await task == [1, expected[end]]

    run(main())


def test_a_call_that_is_closed_runs_its_cleanup() -> None:
    ended: list[str] = []

    async def call() -> None:
        try:
            await forever()
        finally:
            ended.append("closed")

    async def main() -> None:
        steps = call().__await__()
        resumed(steps, next(steps)).close()  # Never started: the call itself is closed later.
        rest = resumed(steps, None)
        rest.send(None)
        rest.close()

    asyncio.run(main())
    assert ended == ["closed"]
