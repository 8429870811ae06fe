"""Whether the store takes messages, and why not (Java RunningFlags).

=============  =====================================  ==============================================
state          comes from                             ends
=============  =====================================  ==============================================
failed         a write or sync that failed            never: what may be lost cannot be told
short of room  a write that found the disk full       when the same bytes could be written
disk full      disk use above the warning level       when it is below again
slave          the role                               with the role
shut down      the end of the store                   never
=============  =====================================  ==============================================

In every one of them puts are refused and reads go on.
"""

from __future__ import annotations

import errno
from enum import Enum

from attrs import define, field

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Writer(Enum):
    """Who may find the disk full. The value stands in remarks."""

    LOG = "the commit log"
    DERIVED = "the consume queues"


@define(slots=True, eq=False, repr=False)
class StoreHealth:
    """See the module's text."""

    is_open: bool = True
    is_slave: bool = False
    is_disk_full: bool = False
    failure: str | None = None
    """Why nothing is accepted any more."""
    is_healthy: bool = field(default=True, init=False)
    """Whether everything that had to be written could be."""
    _short: dict[Writer, str] = field(factory=dict)

    def fail(self, reason: str) -> None:
        """What could not be written or synced must not be acknowledged; the first reason stays."""
        if self.failure is None:
            self.failure = reason
        self.is_healthy = False

    def write_failed(self, writer: Writer, error: OSError) -> None:
        """A write failed: for good, unless the disk was full."""
        reason = f"writing {writer.value} failed: {error}"
        if error.errno in NO_ROOM:
            self._short[writer] = reason
            self.is_healthy = False
        else:
            self.fail(reason)

    def wrote(self, writer: Writer) -> None:
        """Everything that this writer had to write is written."""
        self._short.pop(writer, None)
        self.is_healthy = self.failure is None and not self._short

    @property
    def is_short(self) -> bool:
        """Whether something waits for room on the disk."""
        return bool(self._short)

    @property
    def disk_full_reason(self) -> str | None:
        """What waits for room on the disk."""
        return next(iter(self._short.values()), None)

    @property
    def is_out_of_space(self) -> bool:
        """Whether puts are refused because there is no disk space."""
        return self.is_disk_full or self.is_short

    @property
    def writeable(self) -> bool:
        return (
            self.is_open
            and not self.is_slave
            and not self.is_disk_full
            and self.failure is None
            and not self._short
        )

    @property
    def refusal(self) -> str | None:
        """Why puts are refused; None when they are not."""
        if not self.is_open:
            return "the store has been shut down"
        if self.is_slave:
            return "messages are put to the slave"
        if self.failure is not None:
            return self.failure
        if self._short:
            return f"the disk is full: {self.disk_full_reason}"
        return "the disk is full" if self.is_disk_full else None
