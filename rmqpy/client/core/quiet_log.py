"""A log for what repeats while a server is away: a line at once, then one a minute."""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from rmqpy.model.clock import Clock

PERIOD_MS: Final = 60_000
CAUSES_MAX: Final = 256
"""The maximum number of causes that are remembered; the oldest are forgotten."""


@define(slots=True)
class _Cause:
    logged_ms: int
    left_out: int = 0


@define(slots=True, eq=False, repr=False)
class QuietLog:
    """A logger that leaves out the repetitions of a cause, and counts them."""

    clock: Clock
    _causes: dict[object, _Cause] = field(factory=dict)

    def warn(self, logger: logging.Logger, cause: object, text: str, *arguments: object) -> None:
        """Log a warning, unless ``cause`` has been logged less than ``PERIOD_MS`` ago."""
        now_ms = self.clock.monotonic_ms()
        known = self._causes.get(cause)
        if known is not None and now_ms - known.logged_ms < PERIOD_MS:
            known.left_out += 1
            return
        if known is not None and known.left_out:
            text += " (%d more times in the last minute)"
            arguments = (*arguments, known.left_out)
        self._causes.pop(cause, None)
        while len(self._causes) >= CAUSES_MAX:
            del self._causes[next(iter(self._causes))]
        self._causes[cause] = _Cause(now_ms)
        logger.warning(text, *arguments, stacklevel=2)
