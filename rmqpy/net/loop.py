"""The asyncio loop as a ``model.clock.Scheduler``, supervision, and the start and stop of a
process.

Invariants:

* An exception in a callback never stops the loop and is never lost: it is logged with its traceback
  and counted in ``FailureLog.failures``.
* ``done`` of ``run_blocking`` runs in the loop, exactly once, even if the pool refuses the work.
* After ``AsyncioScheduler.close()`` no worker thread of this scheduler is alive.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.model.values import define

T = TypeVar("T")

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

UVLOOP_CHOICES = ("auto", "on", "off")


@define(slots=True)
class FailureLog:
    """The counter and logger of unexpected exceptions."""

    failures: int = 0

    def report(self, where: str, error: BaseException) -> None:
        self.failures += 1
        logger.error("unexpected failure %d in %s", self.failures, where, exc_info=error)


@define(slots=True, frozen=True)
class BlockingLimits:
    """The number of threads for ``run_blocking``, and of calls that may be waiting or running."""

    threads: int = 4
    waiting: int = 1024


class AsyncioScheduler:
    """A ``model.clock.Scheduler`` on the running loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        limits: BlockingLimits = BlockingLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self.loop = loop if loop is not None else asyncio.get_running_loop()
        self.failure_log = FailureLog()
        self.loop.set_exception_handler(self._loop_failed)
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="rmqpy-blocking")
        self._blocking = 0
        self._blocking_ended = asyncio.Event()
        self._closing = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(self._run, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        assert delay_ms >= 0, delay_ms
        return self.loop.call_later(delay_ms / 1000, self._run, callback)

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        if self._closing or self._blocking >= self._limits.waiting:
            reason = "closing" if self._closing else f"{self._blocking} calls are waiting"
            self.call_soon(lambda: done(None, RmqError(f"no thread for blocking work: {reason}")))
            return
        self._blocking += 1
        future = self._threads.submit(work)
        future.add_done_callback(
            lambda ended: self.loop.call_soon_threadsafe(self._blocking_done, ended, done)
        )

    async def close(self) -> None:
        """Wait for the work in progress, then end the threads."""
        self._closing = True
        while self._blocking:
            self._blocking_ended.clear()
            await self._blocking_ended.wait()
        self._threads.shutdown(wait=True)

    def _blocking_done(
        self, ended: Future[T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        self._blocking -= 1
        self._blocking_ended.set()
        error = ended.exception()
        result = ended.result() if error is None else None
        self._run(lambda: done(result, error))

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - supervision: logged and counted
            self.failure_log.report(getattr(callback, "__qualname__", repr(callback)), error)

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message", "no message"))
        self.failure_log.report(f"the loop ({context.get('message')})", error)


def run(main: Callable[[AsyncioScheduler], Coroutine[Any, Any, T]], *, uvloop: str = "auto") -> T:
    """Run ``main(scheduler)`` on a new loop to completion, and return its result.

    With ``uvloop`` set to ``auto``, uvloop is used if it is installed; ``on`` requires it, and
    ``off`` selects plain asyncio.
    """
    with asyncio.Runner(loop_factory=_loop_factory(uvloop)) as runner:
        return runner.run(_main_with_scheduler(main))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: one of uvloop if it is installed, otherwise asyncio's own."""
    factory = _loop_factory("auto")
    return asyncio.new_event_loop() if factory is None else factory()


def loop_text() -> str:
    """Return the name and version of the event loop that :func:`run` uses."""
    try:
        found = importlib.import_module("uvloop")
    except ImportError:
        return "asyncio (uvloop is not installed)"
    return f"uvloop {found.__version__}"


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets, for an orderly stop.

    A second signal has its default effect, so that a hanging stop can be aborted.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        logger.info("%s received, stopping", number.name)
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
        stopped.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    return stopped


async def _main_with_scheduler(main: Callable[[AsyncioScheduler], Coroutine[Any, Any, T]]) -> T:
    scheduler = AsyncioScheduler()
    try:
        return await main(scheduler)
    finally:
        await scheduler.close()


def _loop_factory(uvloop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if uvloop not in UVLOOP_CHOICES:
        raise ConfigError(f"uvloop: {uvloop!r} is none of {', '.join(UVLOOP_CHOICES)}")
    if uvloop == "off":
        return None
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
            "uvloop"
        ).new_event_loop
    except ImportError as error:
        if uvloop == "on":
            raise ConfigError(
                "uvloop: on, but the package is not installed; pip install rmqpy[fast], or set auto"
            ) from error
        return None
    return factory
