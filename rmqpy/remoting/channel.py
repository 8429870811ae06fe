"""The interfaces of a connection, for processors, and of the network, for services; no sockets.

``net.server`` and ``net.client`` implement these on asyncio, ``testing`` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand


class Channel(Protocol):
    """One connection, identified by object identity."""

    @property
    def peer(self) -> tuple[str, int]:
        """The remote address: textual IP (v4 or v6, no brackets) and port."""

    @property
    def closed(self) -> bool:
        """Whether no more bytes will be sent."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue complete frames; they are dropped silently if closed. ``data`` may be reused after
        the call returns.
        """

    def close(self) -> None:
        """Send queued bytes, then close. Safe to call twice."""


class RequestHandler(Protocol):
    """The handler of a server's requests."""

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        """Handle all complete frames of one read, in order.

        Replies are sent by ``channel.write``, now or later. Returns the last ones of ``commands``
        if they are to be handled in the next turn, because this one has taken long enough: nothing
        is read from the channel until then.

        It must not raise: an error of one request is answered to that request.
        """

    def turn_ended(self) -> None:
        """Commit. Called once per loop turn in which ``handle`` ran on any channel."""

    def channel_closed(self, channel: Channel) -> None:
        """Handle the end of a connection. Called exactly once per channel."""


Reply = Callable[[RemotingCommand | None, RmqError | None], None]
"""The callback of a request: ``done(response, None)`` or ``done(None, fault)``, exactly once."""


class Network(Protocol):
    """Outgoing requests, multiplexed on one connection per address."""

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        """Send ``command`` to ``host:port``; the network gives it a new opaque. ``pieces`` replace
        its body; they are sent in order and copied together only if unavoidable.
        """

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a command without an answer; the network logs a failure."""
