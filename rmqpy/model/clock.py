"""What a service asks of its surroundings: a clock and a scheduler. Both are arguments, never
globals.

``net.loop`` implements them on asyncio, ``testing`` on virtual time. Nothing below ``net`` may
sleep, wait or ask the system for the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, ms since 1970 (store timestamps, data versions). May jump."""

    def monotonic_ms(self) -> int:
        """Never goes back; for timeouts and intervals only."""


class Timer(Protocol):
    def cancel(self) -> None:
        """The callback will not run; harmless after it has run."""


class Scheduler(Clock, Protocol):
    """One thread of control. Callbacks run one after the other, in the order in which they fell
    due.
    """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in the next turn of the loop."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` once, ``delay_ms`` from now."""

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run ``work`` where it may block (a worker thread); then ``done(result, error)`` in the
        loop.

        ``work`` must not touch state that the loop changes: it is for fdatasync and the like.
        """
