"""The scheduler, supervision and signals on real loops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from functools import partial

import pytest
from harness.net import InLoop, SkewedScheduler

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.net.loop import AsyncioScheduler, BlockingLimits, run, stop_on_signals


def test_run_returns_or_raises_what_main_does() -> None:
    async def good(_scheduler: AsyncioScheduler) -> int:
        return 7

    async def bad(_scheduler: AsyncioScheduler) -> int:
        raise OSError("port in use")

    assert run(good, uvloop="off") == 7
    with pytest.raises(OSError, match="port in use"):
        run(bad, uvloop="off")


def test_run_refuses_an_unknown_choice() -> None:
    async def main(_scheduler: AsyncioScheduler) -> None: ...

    with pytest.raises(ConfigError, match="'yes' is none of auto, on, off"):
        run(main, uvloop="yes")


def test_uvloop_is_optional_unless_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def main(_scheduler: AsyncioScheduler) -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(main, uvloop="auto").startswith("asyncio")
    with pytest.raises(ConfigError, match=r"pip install rmqpy\[fast\]"):
        run(main, uvloop="on")


def test_callbacks_run_in_order_and_a_cancelled_timer_does_not(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        ran: list[str] = []
        ended = asyncio.Event()

        def later() -> None:
            ran.append("later")
            ended.set()

        scheduler.call_later(10, later)
        scheduler.call_later(1, lambda: ran.append("cancelled")).cancel()
        scheduler.call_soon(lambda: ran.append("first"))
        scheduler.call_soon(lambda: ran.append("second"))
        await ended.wait()
        assert ran == ["first", "second", "later"]

    in_loop(main)


def test_a_failing_callback_is_counted_and_the_loop_continues(
    in_loop: InLoop,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        ended = asyncio.Event()

        def fails() -> None:
            raise ValueError("planted")

        scheduler.call_soon(fails)
        scheduler.call_later(0, fails)
        scheduler.loop.call_soon(fails)  # without the scheduler: reaches the loop's own handler
        scheduler.call_later(1, ended.set)
        await ended.wait()
        assert scheduler.failure_log.failures == 3

    in_loop(main)
    assert "fails" in caplog.text
    assert "ValueError: planted" in caplog.text


def test_blocking_work_runs_in_a_thread_and_reports_in_the_loop_thread(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        outcomes: list[tuple[int | None, BaseException | None, int]] = []
        ended = asyncio.Event()

        def done(result: int | None, error: BaseException | None) -> None:
            outcomes.append((result, error, threading.get_ident()))
            if len(outcomes) == 2:
                ended.set()

        def fails() -> int:
            raise OSError("EIO")

        scheduler.run_blocking(threading.get_ident, done)
        scheduler.run_blocking(fails, done)
        await ended.wait()
        await scheduler.close()
        ((worker, no_error, thread),) = [each for each in outcomes if each[0] is not None]
        ((_, error, other_thread),) = [each for each in outcomes if each[0] is None]
        assert thread == other_thread == threading.get_ident() != worker
        assert no_error is None
        assert isinstance(error, OSError)

    in_loop(main)


def test_blocking_work_above_the_limit_is_refused() -> None:
    async def main(_scheduler: AsyncioScheduler) -> None:
        scheduler = AsyncioScheduler(limits=BlockingLimits(threads=1, waiting=2))
        go = threading.Event()
        seen: list[tuple[int, bool | None, BaseException | None]] = []

        def done(number: int, result: bool | None, error: BaseException | None) -> None:
            seen.append((number, result, error))

        for number in range(3):
            scheduler.run_blocking(go.wait, partial(done, number))
        await asyncio.sleep(0)
        assert [number for number, _, _ in seen] == [2]
        assert isinstance(seen[0][2], RmqError)
        assert "2 calls are waiting" in str(seen[0][2])
        go.set()
        await scheduler.close()
        assert [(number, result) for number, result, _ in seen[1:]] == [(0, True), (1, True)]
        scheduler.run_blocking(go.wait, partial(done, 9))
        await asyncio.sleep(0)
        assert "closing" in str(seen[-1][2])

    run(main, uvloop="off")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_stop_event_and_restores_the_handlers(
    in_loop: InLoop, number: signal.Signals
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        stopped = stop_on_signals()
        assert not stopped.is_set()
        os.kill(os.getpid(), number)
        await stopped.wait()
        assert not scheduler.loop.remove_signal_handler(number)

    in_loop(main)
