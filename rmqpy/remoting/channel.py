"""The interfaces of a connection (for processors) and of the network (for services).

``net.server`` and ``net.client`` implement them on asyncio, ``testing`` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand


class Channel(Protocol):
    """A connection, compared by object identity."""

    @property
    def peer(self) -> tuple[str, int]:
        """The remote address: textual IP (v4 or v6, no brackets) and port."""

    @property
    def closed(self) -> bool:
        """True if no more bytes will be sent."""

    @property
    def congested(self) -> bool:
        """True if so many replies wait for the peer that its further requests must wait."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue complete frames for sending. A closed channel drops them silently. The caller may
        reuse ``data`` after the call returns.
        """

    def close(self) -> None:
        """Send queued bytes, then close. Safe to call twice."""


class RequestHandler(Protocol):
    """The handler of a server's requests."""

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        """Handle all complete frames of one read, in order.

        Replies are sent with ``channel.write``, during this call or later. If this turn has taken
        too long, or the channel is ``congested``, return the unhandled tail of ``commands``: it is
        passed again in a later turn, and nothing is read from the channel until then.

        Must not raise: an error in one request is sent as the response to that request.
        """

    def turn_ended(self) -> None:
        """Commit what ``handle`` has staged. Called once per loop turn in which ``handle`` ran on
        any channel.
        """

    def channel_closed(self, channel: Channel) -> None:
        """Handle the end of a connection. Called exactly once per channel."""


Reply = Callable[[RemotingCommand | None, RmqError | None], None]
"""The callback of a request, called exactly once: ``done(response, None)`` or ``done(None,
fault)``.
"""


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
        """Send ``command`` to ``host:port`` with a new opaque. ``pieces``, if there are any,
        replace its body; they are sent in order and joined only if that is unavoidable.
        """

    def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a command that has no response. Failures are logged."""
