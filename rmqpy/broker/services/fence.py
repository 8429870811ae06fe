"""WriteFence: a broker that writes no messages for a while, its own included.

A fence stops the log of a master: messages of producers and consumers are refused with
SERVICE_NOT_AVAILABLE or SYSTEM_BUSY, delayed messages stay where they are, transactions are neither
checked nor ended, and DLedger's own clients append nothing. What was accepted before is completed.
Reads, consumer offsets, and replication continue. A member of a DLedger group that becomes leader
while it is fenced writes none either::

    open ── close(seconds) ──► fenced ── open(), or the deadline ──► open
                                └─ close(seconds): a new deadline

The deadline opens the broker again if the tool that closed it has failed. A fence is not stored: a
broker that was restarted is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from attrs import field

from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.values import define
from rmqpy.net.pending_replies import SendGate
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.health import StoreHealth

SECONDS_MAX: Final = 3600
"""The longest time for which a broker can be fenced."""

REASON: Final = "the broker is fenced by an administrator (rmqpy admin fence --lift opens it)"

logger = logging.getLogger(__name__)


class SlaveStream(Protocol):
    """What a member of a DLedger group serves to classic slaves."""

    @property
    def end(self) -> int:
        """The end of what slaves can have."""

    @property
    def is_complete(self) -> bool:
        """True if slaves can have all messages that the log contains."""

    def complete(self) -> None:
        """Append what makes all messages visible to slaves, if this broker leads."""


@define(slots=True, frozen=True)
class FenceState:
    """The answer to a fence request. Offsets are physical offsets of the log."""

    remaining_ms: int
    """The time until the broker opens by itself; 0 if it is open."""
    waiting: int
    """The number of accepted messages that are not confirmed yet."""
    begin: int
    """The begin of the log."""
    end: int
    """The end of the log, including what is not confirmed."""
    confirmed: int
    """The offset up to which the log is readable: with DLedger, what this member knows to be
    committed.
    """
    stream_end: int | None = None
    """The end of what classic slaves can have, if this is a member that serves them."""

    @property
    def is_drained(self) -> bool:
        """True if the broker is fenced and everything that it has accepted is confirmed."""
        return self.remaining_ms > 0 and not self.waiting and self.end == self.confirmed


@define(slots=True, eq=False, repr=False)
class WriteFence:
    """The fence of one broker."""

    _current_log: Callable[[], CommitLog]
    _health: StoreHealth
    _gate: SendGate
    _messages: InternalMessageWriter
    _scheduler: Scheduler
    _timer: Timer | None = field(default=None, init=False)
    _deadline_ms: int = field(default=0, init=False)
    _frozen: str | None = field(default=None, init=False)
    _stream: SlaveStream | None = field(default=None, init=False)

    def serve(self, stream: SlaveStream) -> None:
        """Complete ``stream`` before the fence is closed, and report its end."""
        self._stream = stream

    def close(self, seconds: int) -> None:
        """Accept and write no messages for ``seconds`` from now, 1 to ``SECONDS_MAX``."""
        assert 0 < seconds <= SECONDS_MAX, seconds
        if self._stream is not None:
            self._stream.complete()
        self._cancel()
        self._deadline_ms = self._scheduler.monotonic_ms() + seconds * 1000
        self._timer = self._scheduler.call_later(seconds * 1000, self._expire)
        self._update()
        logger.warning("fenced for %d s: no messages are accepted or written", seconds)

    def open(self) -> None:
        """Accept messages again. Has no effect on an open broker."""
        if self._timer is not None:
            self._cancel()
            self._update()
            logger.warning("the fence was lifted")

    def freeze(self, reason: str | None) -> None:
        """Accept and write no messages because of ``reason``, whatever else opens the fence, until
        this is called with None.
        """
        if reason is not None and self._frozen is None and self._stream is not None:
            self._stream.complete()
        self._frozen = reason
        self._update()

    def state(self) -> FenceState:
        """Return the state of the fence and the end of the log."""
        remaining_ms = 0
        if self._timer is not None:
            remaining_ms = max(1, self._deadline_ms - self._scheduler.monotonic_ms())
        log = self._current_log()
        waiting = self._gate.waiting + self._messages.waiting
        return FenceState(
            remaining_ms,
            waiting,
            log.min_offset,
            log.max_offset,
            log.confirm_offset,
            None if self._stream is None else self._stream.end,
        )

    def stop(self) -> None:
        """Cancel the deadline, because the broker ends."""
        self._cancel()

    def _expire(self) -> None:
        self._timer = None
        self._update()
        logger.warning("the fence has reached its deadline: messages are accepted again")

    def _update(self) -> None:
        reason = self._frozen or (REASON if self._timer is not None else None)
        self._health.set_fence(reason)
        self._messages.fence = reason

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
