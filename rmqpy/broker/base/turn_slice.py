"""How long the requests of tools may take in one turn of the loop.

Each may cost milliseconds (the topic table of a large broker), and one connection can have hundreds
of them under way: what is not begun within the slice waits for the next turn, so that producers and
consumers wait for one such request at the most.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.model.clock import Clock

SLICE_MS: Final = 2


@define(slots=True, eq=False, repr=False)
class AdminTimeBudget:
    """Of one turn after the other."""

    _clock: Clock
    _until_ms: int | None = None

    def begin(self) -> bool:
        """Whether one more request may begin in this turn; the first one always may."""
        if self._until_ms is None:
            self._until_ms = self._clock.monotonic_ms() + SLICE_MS
            return True
        return self._clock.monotonic_ms() < self._until_ms

    def end(self) -> None:
        """The turn is over."""
        self._until_ms = None
