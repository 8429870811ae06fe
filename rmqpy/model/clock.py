"""The interfaces of clock and scheduler, which a service receives as arguments.

``net.loop`` implements them on asyncio, ``testing`` on virtual time. No package below ``net`` may
sleep, wait, or read the system's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970, for store timestamps and data versions. It may
        jump in either direction.
        """

    def monotonic_ms(self) -> int:
        """Return a time in ms that never decreases, for timeouts and intervals only."""


class Timer(Protocol):
    def cancel(self) -> None:
        """Prevent the callback from running. Has no effect after it has run."""


class Scheduler(Clock, Protocol):
    """A single thread of control, in which callbacks run one after the other in the order of their
    due times.
    """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in the next turn of the loop."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` once, after ``delay_ms``."""

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        """Run ``work`` in a worker thread, where it may block, then ``done(result, error)`` in the
        loop.

        ``work`` is for calls such as fdatasync and must not touch state that the loop changes.
        """
