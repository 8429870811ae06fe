"""The one way in which long work reports how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["NoProgress", "ProgressSink", "StartProgress"]


class ProgressSink(Protocol):
    """A receiver of reports: amounts to do and amounts done, both added up.

    The unit is the reporter's, bytes unless it says otherwise. Reports may come from several
    threads.
    """

    def expect(self, total: int) -> None:
        """Add to the amount that is to be done."""

    def advance(self, done: int) -> None:
        """Add to the amount that is done."""


StartProgress = Callable[[str], ProgressSink]
"""Starts the report of one piece of work; the argument is its verb, as in "checked"."""


class NoProgress:
    """Implements ``ProgressSink`` where no one watches; the class itself is a ``StartProgress``."""

    def __init__(self, verb: str = "") -> None:
        pass

    def expect(self, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass
