"""Scheduler, supervision and signals on real loops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from harness.net import SkewedScheduler

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.net.loop import AsyncioScheduler, BlockingLimits, run, stop_on_signals


def test_run_gives_the_result_and_the_exception_of_main() -> None:
    async def good(scheduler):
        return 7

    async def bad(scheduler):
        raise OSError("port in use")

    assert run(good, uvloop="off") == 7
    with pytest.raises(OSError, match="port in use"):
        run(bad, uvloop="off")


def test_run_refuses_an_unknown_choice_by_name() -> None:
    async def main(scheduler):
        return None

    with pytest.raises(ConfigError, match="'yes' is none of auto, on, off"):
        run(main, uvloop="yes")


def test_uvloop_is_optional_unless_it_is_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def main(scheduler):
        return type(asyncio.get_running_loop()).__module__

    assert run(main, uvloop="auto").startswith("asyncio")
    with pytest.raises(ConfigError, match=r"pip install rmqpy\[fast\]"):
        run(main, uvloop="on")


def test_callbacks_run_in_order_and_a_cancelled_timer_does_not(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        ran = []
        ended = asyncio.Event()
        scheduler.call_later(10, lambda: (ran.append("later"), ended.set()))
        scheduler.call_later(1, lambda: ran.append("cancelled")).cancel()
        scheduler.call_soon(lambda: ran.append("first"))
        scheduler.call_soon(lambda: ran.append("second"))
        await ended.wait()
        assert ran == ["first", "second", "later"]

    in_loop(main)


def test_a_failing_callback_is_counted_and_the_loop_goes_on(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(scheduler):
        ended = asyncio.Event()

        def fails():
            raise ValueError("planted")

        scheduler.call_soon(fails)
        scheduler.call_later(0, fails)
        scheduler.loop.call_soon(fails)  # past the scheduler: the loop's own handler
        scheduler.call_later(1, ended.set)
        await ended.wait()
        assert scheduler.supervisor.failures == 3

    in_loop(main)
    assert "fails" in caplog.text
    assert "ValueError: planted" in caplog.text


def test_blocking_work_runs_in_a_thread_and_reports_in_the_loop(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        seen = []
        ended = asyncio.Event()

        def fails():
            raise OSError("EIO")

        scheduler.run_blocking(
            threading.get_ident,
            lambda result, error: seen.append((result, error, threading.get_ident())),
        )
        scheduler.run_blocking(
            fails, lambda result, error: (seen.append((result, error)), ended.set())
        )
        await ended.wait()
        await scheduler.close()
        (worker, no_error, here) = next(each for each in seen if len(each) == 3)
        (no_result, error) = next(each for each in seen if len(each) == 2)
        assert worker != here == threading.get_ident()
        assert no_error is None
        assert no_result is None
        assert isinstance(error, OSError)

    in_loop(main)


def test_waiting_work_is_bounded_and_refused_by_an_error() -> None:
    async def main(_):
        scheduler = AsyncioScheduler(limits=BlockingLimits(threads=1, waiting=2))
        go = threading.Event()
        seen = []
        for number in range(3):
            scheduler.run_blocking(
                go.wait, lambda result, error, number=number: seen.append((number, result, error))
            )
        await asyncio.sleep(0)
        assert [number for number, _, _ in seen] == [2]
        assert isinstance(seen[0][2], RmqError)
        assert "2 calls are waiting" in str(seen[0][2])
        go.set()
        await scheduler.close()
        assert [(number, result) for number, result, _ in seen[1:]] == [(0, True), (1, True)]
        scheduler.run_blocking(go.wait, lambda result, error: seen.append((9, result, error)))
        await asyncio.sleep(0)
        assert "closing" in str(seen[-1][2])

    run(main, uvloop="off")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_stop_event_and_gives_the_handlers_back(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None], number
) -> None:
    async def main(scheduler):
        stopped = stop_on_signals()
        assert not stopped.is_set()
        os.kill(os.getpid(), number)
        await stopped.wait()
        assert not scheduler.loop.remove_signal_handler(number)

    in_loop(main)
