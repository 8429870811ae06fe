"""A log that strangers cannot fill: each cause once, and a bounded number of lines a minute."""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from rmqpy.model.clock import Clock

LOGGED_MAX: Final = 256
"""The maximum number of causes that are remembered as logged."""

LINES_MAX: Final = 20
"""The maximum number of lines in a period; more are only counted."""

PERIOD_MS: Final = 60_000

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class OncePerCauseLog:
    """A logger that logs each cause only once. It forgets the oldest causes, so the number of lines
    in a period is limited too; None for causes that strangers cannot make up.
    """

    clock: Clock
    lines_max: int | None = LINES_MAX
    _logged: dict[object, None] = field(factory=dict)
    _since_ms: int = 0
    _lines: int = 0

    def warn(self, cause: object, text: str, *arguments: object) -> None:
        if cause in self._logged:
            return
        if self.lines_max is not None and not self._may_log(self.lines_max):
            return
        if len(self._logged) >= LOGGED_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[cause] = None
        logger.warning(text, *arguments)

    def _may_log(self, lines_max: int) -> bool:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._since_ms >= PERIOD_MS:
            if self._lines > lines_max:
                logger.warning("%d more lines were not logged", self._lines - lines_max)
            self._since_ms, self._lines = now_ms, 0
        self._lines += 1
        return self._lines <= lines_max

    def forget(self, cause: object) -> None:
        """Forget ``cause``, so that its next occurrence is logged again."""
        if self._logged:
            self._logged.pop(cause, None)
