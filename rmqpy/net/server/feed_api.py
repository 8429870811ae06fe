"""What receives and answers frames on its own, beside or instead of the connection's own receiver.

``broker.hot`` implements :class:`Feed` on the C core; :mod:`rmqpy.net.server.feed_server` drives
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

FEED_BYTES: Final = 256 * 1024
"""What a feed takes at a time; a larger frame is read by the connection's own receiver."""


class FeedStatus(IntEnum):
    """What a call of the feed ended with."""

    DONE = 0
    PARTIAL = 1
    COLD = 2
    ROLL = 3
    COMMIT = 4
    OUT_FULL = 5
    BAD_FRAME = 6
    CLOSED = 7
    AGAIN = 8
    FAILED = 9
    APART = 10
    NONE_LEFT = 11


class HotChannel(Channel, Protocol):
    """A channel that the feed writes to on its own."""

    def unsent(self, data: bytes) -> None:
        """The kernel did not take these bytes: they leave when it does."""

    def send_failed(self, code: int) -> None:
        """Sending failed with this errno."""


class PollSet(Protocol):
    """Watches connections, and receives from all that can be read at once."""

    receive: Callable[[Any, bool], int]
    """``receive(core, begin)`` receives once from each that can be read at the start, until one of
    them ends with another status than DONE: it is the ``stopped_at`` one, and must be seen to;
    then ``receive`` continues, until NONE_LEFT. APART: nothing was received from this one.
    """
    flush_replies_early: Callable[[], bool]
    """Send, before the turn ends, what was answered, unless something must be committed first.
    False: nothing was sent.
    """

    @property
    def fd(self) -> int:
        """Readable while one of the watched connections is; valid from the first ``watch`` on."""
        ...

    def watch(self, number: int, wanted: bool) -> None:
        """Whether the connection is among them. Raises OSError."""
        ...

    def exclude(self, number: int, apart: bool) -> None:
        """Something is kept for the next read of this connection: it is received on its own."""
        ...

    @property
    def stopped_at(self) -> int:
        """Number of the one that ``receive`` has come to last."""
        ...

    def drained(self) -> list[int]:
        """Numbers of those that ``receive`` has come to since the start."""
        ...


class Feed(Protocol):
    """Receives and answers; ``broker.hot`` implements it."""

    core: Any
    needs_refresh: bool
    """Others have handled frames in this turn: what the feed knows must be refreshed."""
    receive: Callable[[Any, int, int], int] | None
    """``receive(core, number, have)`` gives a FeedStatus; None: who drives it receives, and gives
    what was received.
    """

    @property
    def ready(self) -> PollSet | None:
        """None: who drives it watches the descriptors."""
        ...

    @property
    def advanced(self) -> bool: ...

    @property
    def full(self) -> bool:
        """Whether the last ``receive`` has filled the buffer: there may be more."""
        ...

    def pause(self, held: bool) -> None:
        """While it is held back it hands back every frame."""

    def refresh(self) -> None:
        """Before the first frame of a turn, and when others have handled frames in it."""
        ...

    def attach(self, channel: HotChannel, fd: int) -> int: ...

    def detach(self, number: int) -> None: ...

    def set_write_pending(self, number: int, queued: bool) -> None: ...

    def flush_now(self, number: int) -> None: ...

    def close(self) -> None: ...

    def feed(self, data: bytes | memoryview, have: int = 0) -> None: ...

    def resume(self, number: int) -> int: ...

    def unhandled_frames(self) -> list[memoryview]: ...

    def before_fallback(self) -> None: ...

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None: ...

    def make_room(self, status: int) -> None: ...

    def rest(self) -> bytes: ...

    def unread(self, data: bytes) -> bool: ...
