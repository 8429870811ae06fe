"""The interface through which long-running work reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["NoProgress", "ProgressSink", "StartProgress"]


class ProgressSink(Protocol):
    """A receiver of progress reports, which adds up the amounts to do and the amounts done.

    The reporter defines the unit; the default is bytes. Several threads may report.
    """

    def expect(self, total: int) -> None:
        """Add ``total`` to the amount to do."""

    def advance(self, done: int) -> None:
        """Add ``done`` to the amount done."""


StartProgress = Callable[[str], ProgressSink]
"""A function that starts the report of one task. Its argument is a verb such as "checked"."""


class NoProgress:
    """A ``ProgressSink`` that discards all reports. The class itself is a ``StartProgress``."""

    def __init__(self, verb: str = "") -> None:
        pass

    def expect(self, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass
