"""Listening sockets that pass on accepted sockets without a transport.

The interface is the part of ``asyncio.Server`` that
:class:`rmqpy.net.server.server.RemotingServer` uses.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from attrs import define, field

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE: Final = 64
"""The maximum number of connections accepted in one turn."""
ACCEPT_PAUSE_MS: Final = 1000
"""The pause in accepting connections after the process has run out of descriptors or memory."""

_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (errno.ECONNABORTED, errno.EPROTO)

Accepted = Callable[[socket.socket], None]
"""A function that receives a connected, non-blocking socket."""


def watches_descriptors(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop has ``add_reader``, which the default loop of Windows lacks."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


async def open_sockets(
    loop: asyncio.AbstractEventLoop, address: tuple[str, int], backlog: int, accepted: Accepted
) -> SocketListener:
    """Listen on every address that ``address`` resolves to. Raises OSError."""
    found = await _resolved(loop, address)
    listener = SocketListener(loop, backlog, accepted)
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            listener.open(socket.socket(family, kind, protocol), place)
    except BaseException:
        listener.close()
        raise
    return listener


async def _resolved(loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> list[Any]:
    """Return what ``getaddrinfo`` finds. It may block for a name, which therefore is resolved in a
    thread. A thread for each port of a broker would delay its start on a busy machine.
    """
    host, port = address
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    try:
        return socket.getaddrinfo(
            host or None, port, type=kind, flags=flags | socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        return await loop.getaddrinfo(host, port, type=kind, flags=flags)


@define(slots=True, eq=False, repr=False)
class SocketListener:
    """The listening sockets that one ``listen`` opens."""

    loop: asyncio.AbstractEventLoop
    backlog: int
    accepted: Accepted
    sockets: list[socket.socket] = field(factory=list)

    def open(self, sock: socket.socket, address: Any) -> None:
        self.sockets.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if len(self.sockets) > 1 and address[1] == 0:
            address = (address[0], self.sockets[0].getsockname()[1], *address[2:])
        sock.bind(address)
        sock.listen(self.backlog)
        self._watch(sock)

    def close(self) -> None:
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()

    def _watch(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self.loop.add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, _ = sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                if error.errno not in _NO_MORE_FILES:
                    raise
                logger.error(
                    "cannot accept connections, retrying in %d ms: %s", ACCEPT_PAUSE_MS, error
                )
                self.loop.remove_reader(sock.fileno())
                self.loop.call_later(ACCEPT_PAUSE_MS / 1000, self._watch, sock)
                return
            connected.setblocking(False)
            self.accepted(connected)
