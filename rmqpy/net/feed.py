"""What receives and answers frames by itself, beside or instead of the connection's own receiver.

``broker.hot`` implements :class:`Feed` on the C core; :mod:`rmqpy.net.fast_server` drives it.
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


class HotChannel(Channel, Protocol):
    """A channel that the feed writes to by itself."""

    def unsent(self, data: bytes) -> None:
        """The kernel did not take these bytes: they leave when it does."""

    def send_failed(self, code: int) -> None:
        """Sending failed with this errno."""


class Feed(Protocol):
    """Receives and answers; ``broker.hot`` implements it."""

    core: Any
    stale: bool
    """Others have handled frames in this turn: what the feed knows has to be refreshed."""
    receive: Callable[[Any, int, int], int] | None
    """``receive(core, number, have)`` gives a FeedStatus; None: who drives it receives, and gives
    what was received.
    """

    @property
    def advanced(self) -> bool: ...

    @property
    def full(self) -> bool:
        """Whether the last ``receive`` has filled the buffer: there may be more."""
        ...

    def hold_back(self, held: bool) -> None:
        """While it is held back it hands back every frame."""

    def open_turn(self) -> None: ...

    def attach(self, channel: HotChannel, fd: int) -> int: ...

    def detach(self, number: int) -> None: ...

    def set_queued(self, number: int, queued: bool) -> None: ...

    def flush_now(self, number: int) -> None: ...

    def close(self) -> None: ...

    def give(self, data: bytes | memoryview, have: int = 0) -> None: ...

    def go_on(self, number: int) -> int: ...

    def cold_frames(self) -> list[memoryview]: ...

    def before_cold(self) -> None: ...

    def after_cold(self, commands: Sequence[RemotingCommand]) -> None: ...

    def make_room(self, status: int) -> None: ...

    def rest(self) -> bytes: ...

    def put_front(self, data: bytes) -> bool: ...
