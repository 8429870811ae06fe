"""What a processor sees of a connection, and what a service sees of the network. No socket here.

``net.server`` and ``net.client`` implement these on asyncio, ``testing`` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand


class Channel(Protocol):
    """One connection. Identity is identity of the object."""

    @property
    def peer(self) -> tuple[str, int]:
        """Remote address: textual IP (v4 or v6, no brackets) and port."""

    @property
    def closed(self) -> bool:
        """No more bytes will go out."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue complete frames; silently dropped when closed. ``data`` may be reused after the
        call returns.
        """

    def close(self) -> None:
        """Send what is queued, then close. Harmless twice."""


class RequestHandler(Protocol):
    """The upper half of a server."""

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        """Return all complete frames of one read, in order.

        Replies go out by ``channel.write``, now or later. Returns the last ones of ``commands`` if
        they are to be handled in the next turn, because this one has taken long enough: nothing is
        read from the channel until then.

        Must not raise: a fault of one request is answered to that request.
        """

    def turn_ended(self) -> None:
        """Called once at the end of each loop turn in which ``handle`` ran on any channel: the time
        to commit.
        """

    def channel_closed(self, channel: Channel) -> None:
        """The connection is gone; called exactly once a channel."""


Reply = Callable[[RemotingCommand | None, RmqError | None], None]
"""``done(response, None)`` or ``done(None, fault)``, exactly once."""


class Network(Protocol):
    """Outgoing requests, multiplexed on one connection an address."""

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        """Send ``command`` to ``host:port``; the network gives it a fresh opaque. ``pieces`` stand
        instead of its body: one after the other, not copied together where that can be helped.
        """

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send and forget; a failure is logged by the network."""
