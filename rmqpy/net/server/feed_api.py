"""The interface of a feed, which receives and answers frames in addition to a connection's own
receiver.

``broker.fastpath`` implements :class:`Feed` on the C core; :mod:`rmqpy.net.server.feed_server`
drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

FEED_BYTES: Final = 256 * 1024
"""The size of a feed's buffer. A larger frame is lent to the feed when it is complete."""


class FeedStatus(IntEnum):
    """The outcome of a call of the feed."""

    DONE = 0
    PARTIAL = 1
    FALLBACK = 2
    ROLL = 3
    COMMIT = 4
    OUT_FULL = 5
    OUT_SHARE = 6
    BAD_FRAME = 7
    CLOSED = 8
    AGAIN = 9
    FAILED = 10
    EXCLUDED = 11
    NONE_LEFT = 12


class FeedChannel(Channel, Protocol):
    """A channel to which the feed writes directly."""

    def unsent(self, data: bytes) -> None:
        """Queue bytes that the kernel did not accept, to send them later."""

    def send_failed(self, code: int) -> None:
        """Handle a send that failed with errno ``code``."""


class PollSet(Protocol):
    """A set of watched connections that receives from all readable connections in one call."""

    receive: Callable[[Any, bool], int]
    """``receive(core, begin)`` receives once from each connection that was readable at the start.

    It stops at a connection with a status other than DONE. The caller handles that connection
    (``stopped_at``) and calls ``receive`` again, until it returns NONE_LEFT. EXCLUDED means that
    nothing was received from the connection.
    """
    flush_replies_early: Callable[[], bool]
    """Sends replies before the turn ends, unless a commit must precede them. Returns False if
    nothing was sent.
    """

    @property
    def fd(self) -> int:
        """The descriptor that is readable while a watched connection is readable. It is valid after
        the first ``watch``.
        """
        ...

    def watch(self, number: int, wanted: bool) -> None:
        """Start or stop watching a connection. Raises OSError."""
        ...

    def exclude(self, number: int, apart: bool) -> None:
        """Set whether a connection is received separately, because data is kept for its
        next read.
        """
        ...

    def is_another_ready(self, number: int) -> bool:
        """Return whether a connection other than this one is readable, or still has to be handled
        by ``receive``.
        """
        ...

    @property
    def stopped_at(self) -> int:
        """The number of the connection that ``receive`` handled last."""
        ...

    def drained(self) -> list[int]:
        """Return the numbers of the connections that ``receive`` has handled since the start."""
        ...


class Feed(Protocol):
    """A receiver that also answers requests. ``broker.fastpath`` implements it."""

    core: Any
    needs_refresh: bool
    """True if other code has handled frames in this turn, so that the feed's state is stale."""
    receive: Callable[[Any, int, int], int]
    """``receive(core, number, have)`` returns a FeedStatus."""

    @property
    def ready(self) -> PollSet | None:
        """The set of watched connections; None if the server watches the descriptors."""
        ...

    @property
    def advanced(self) -> bool: ...

    @property
    def full(self) -> bool:
        """True if the last ``receive`` filled the buffer, so that more bytes may be waiting."""
        ...

    def pause(self, held: bool) -> None:
        """Set whether the feed is paused. A paused feed hands back every frame."""

    def refresh(self) -> None:
        """Refresh the feed's state. Call before the first frame of a turn, and after other code has
        handled frames.
        """
        ...

    def renew_share(self) -> bool:
        """Let the filters of this turn use their share again. Return False if they have not used
        it, if messages wait for a commit, or if the replies are a connection's share already.
        """
        ...

    def attach(self, channel: FeedChannel, fd: int) -> int: ...

    def detach(self, number: int) -> None: ...

    def set_write_pending(self, number: int, queued: bool) -> None: ...

    def flush_now(self, number: int) -> None: ...

    def close(self) -> None: ...

    def feed(self, data: bytes | memoryview, have: int = 0) -> None: ...

    def lend(self, frame: memoryview | None) -> None:
        """Replace the feed's buffer by a complete frame until called with None."""

    def resume(self, number: int) -> int: ...

    def unhandled_frames(self) -> list[memoryview]: ...

    def before_fallback(self) -> None: ...

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None: ...

    def make_room(self, status: int) -> None: ...

    def rest(self) -> bytes: ...

    def unread(self, data: bytes) -> bool: ...
