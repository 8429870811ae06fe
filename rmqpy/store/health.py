"""StoreHealth: the states in which the store refuses messages (Java RunningFlags).

=============  =====================================  ==============================================
state          caused by                              ends
=============  =====================================  ==============================================
failed         a write or sync that failed            never: the lost data is unknown
out of space   a write that found the disk full       when the same bytes could be written
disk full      disk use above the warning level       when it is below again
slave          the role                               with the role
fenced         an administrator                       when lifted, or after its deadline
shut down      the end of the store                   never
=============  =====================================  ==============================================

In each of these states puts are refused and reads continue.
"""

from __future__ import annotations

import errno
from enum import Enum

from attrs import define, field

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Writer(Enum):
    """The writers that may find the disk full. The value appears in remarks."""

    LOG = "the commit log"
    DERIVED = "the consume queues"


@define(slots=True, eq=False, repr=False)
class StoreHealth:
    """The state of one store, which only its methods change."""

    is_open: bool = True
    is_slave: bool = False
    is_disk_full: bool = False
    fence: str | None = None
    """The reason why an administrator has closed the store to messages; None if it is open."""
    failure: str | None = None
    """The error after which the store accepts nothing more; None if there was none."""
    is_healthy: bool = True
    """True if no write has failed or waits for disk space."""
    writeable: bool = True
    """True if the store accepts messages."""
    _short: dict[Writer, str] = field(factory=dict)

    def close(self) -> None:
        """Record that the store has been shut down."""
        self.is_open = False
        self._update()

    def set_role(self, *, slave: bool) -> None:
        """Record whether the store is that of a slave."""
        self.is_slave = slave
        self._update()

    def set_disk_full(self, full: bool) -> None:
        """Record whether the use of the disk is above the warning level."""
        self.is_disk_full = full
        self._update()

    def set_fence(self, reason: str | None) -> None:
        """Record that an administrator has closed the store to messages, or opened it (None)."""
        self.fence = reason
        self._update()

    def fail(self, reason: str) -> None:
        """Stop accepting messages, because data that could not be written or synced must not be
        acknowledged. The first reason is kept.
        """
        if self.failure is None:
            self.failure = reason
        self._update()

    def write_failed(self, writer: Writer, error: OSError) -> None:
        """Record a failed write. That is final, unless the disk was full."""
        reason = f"writing {writer.value} failed: {error}"
        if error.errno in NO_ROOM:
            self._short[writer] = reason
            self._update()
        else:
            self.fail(reason)

    def wrote(self, writer: Writer) -> None:
        """Record that this writer has written everything."""
        self._short.pop(writer, None)
        self._update()

    def _update(self) -> None:
        self.is_healthy = self.failure is None and not self._short
        self.writeable = (
            self.is_healthy
            and self.is_open
            and not self.is_slave
            and not self.is_disk_full
            and self.fence is None
        )

    @property
    def is_short(self) -> bool:
        """True if a writer waits for disk space."""
        return bool(self._short)

    @property
    def disk_full_reason(self) -> str | None:
        """The first failed write that waits for disk space; None if there is none."""
        return next(iter(self._short.values()), None)

    @property
    def is_out_of_space(self) -> bool:
        """True if puts are refused because there is no disk space."""
        return self.is_disk_full or self.is_short

    @property
    def refusal(self) -> str | None:
        """The reason why puts are refused; None if they are accepted."""
        if not self.is_open:
            return "the store has been shut down"
        if self.is_slave:
            return "messages are put to the slave"
        if self.failure is not None:
            return self.failure
        if self._short:
            return f"the disk is full: {self.disk_full_reason}"
        return "the disk is full" if self.is_disk_full else self.fence
