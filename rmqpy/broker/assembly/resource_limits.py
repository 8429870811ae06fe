"""The limits of the system on the number of consume queues in use: each open file of a queue needs
a mapping, and before Python 3.13 without the C core a descriptor. The files of a queue that is not
used are closed at the second flush of the queues after that.

Beyond a limit no queue can be used, and the store accepts no more messages. This module warns
before that.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from attrs import define

from rmqpy.store.files.mapping import KEEPS_DESCRIPTOR

MAP_COUNT_FILE: Final = "/proc/sys/vm/max_map_count"
NEAR_PERCENT: Final = 80
MAPPINGS_OF_QUEUE: Final = 1
DESCRIPTORS_OF_QUEUE: Final = int(KEEPS_DESCRIPTOR)
CHECK_PERIOD_MS: Final = 60_000

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class SystemLimits:
    """The limits of a process; None if there is none, or if it is unknown."""

    mappings: int | None
    descriptors: int | None

    @classmethod
    def read(cls) -> SystemLimits:
        """Return the limits of this process."""
        try:
            with open(MAP_COUNT_FILE, encoding="ascii") as file:
                mappings: int | None = int(file.read())
        except (OSError, ValueError):
            mappings = None  # not Linux
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(mappings, soft if soft != resource.RLIM_INFINITY else None)

    def warning(self, queue_count: int) -> str | None:
        """Return the limit that so many queues are near to, and the remedy."""
        for limit, each, name, remedy in (
            (self.mappings, MAPPINGS_OF_QUEUE, "mappings (vm.max_map_count)", "sysctl"),
            (self.descriptors, DESCRIPTORS_OF_QUEUE, "open files (RLIMIT_NOFILE)", "ulimit -n"),
        ):
            if limit is not None and queue_count * each * 100 >= limit * NEAR_PERCENT:
                return (
                    f"{queue_count} consume queues in use need {queue_count * each} of the"
                    f" {limit} {name} of this process; beyond it no message is accepted:"
                    f" raise it with {remedy} and restart, or delete topics"
                )
        return None


@define(slots=True, eq=False, repr=False)
class QueueLimitWarning:
    """Warns when the number of queues comes near to a limit, and after each further tenth."""

    _limits: SystemLimits
    _warned_at: int = 0

    def check(self, queue_count: int) -> None:
        if queue_count * 10 < self._warned_at * 11:
            return
        text = self._limits.warning(queue_count)
        if text is not None:
            self._warned_at = queue_count
            logger.warning("%s", text)
