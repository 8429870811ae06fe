"""How long requests have waited before they are read: the age of Java's request queues.

Requests wait in the kernel's buffers here, which tell nobody when something came. A *mark* of a
connection says that so many unread bytes were there at a time; what it covers has waited since then
at least. Marks are made where something can have waited:

================================  ==================================================================
when                              by
================================  ==================================================================
a read has filled its buffer      the connection: there is more
a commit does not come to an end  a thread that looks each ``LOOK_MS`` whether the loop is in the
                                  same commit still; no connection is read meanwhile
================================  ==================================================================

Invariants: an age is never too high: only whole frames whose last byte was there at the mark are
said to be so old; the thread changes nothing but ``LoopTurns.found``, which the loop takes over at
the end of that commit and of no other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field

from rmqpy.net.connection import LoopTurns, RemotingConnection, UnreadMark

LOOK_MS: Final = 50


@define(slots=True, eq=False, repr=False)
class ServedConnection(RemotingConnection):
    """A connection of a server, whose bytes may be marked."""

    def unread_bytes(self) -> int:
        """What the kernel has for us now; 0 where that does not say how much of it are frames."""
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return 0
        try:
            return _recv_queue_bytes(transport.get_extra_info("socket").fileno())
        except OSError:
            return 0  # it has just ended

    def mark_unread(self) -> None:
        """A read has left something."""
        unread = self.unread_bytes()
        if unread:
            self.marked(self.turns.scheduler.monotonic_ms(), unread)

    def marked(self, seen_ms: int, unread: int) -> None:
        if self.mark is None:
            self.mark = UnreadMark(seen_ms, unread)

    # -- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self.turns.buffer
        return buffer if self.mark is None else buffer[: self.mark.left]

    def buffer_updated(self, nbytes: int) -> None:
        if self.mark is not None:
            self.waited_ms = self.taken(nbytes)
        super().buffer_updated(nbytes)
        self.waited_ms = 0
        if nbytes == len(self.turns.buffer) and not self.closed:
            self.mark_unread()


@define(slots=True, eq=False, repr=False)
class StallDetector:
    """The thread of the module's text, for the servers of one loop: whichever of them commits, none
    is read.
    """

    _turns: list[LoopTurns] = field(factory=list, init=False)
    _connections: list[Callable[[], Iterable[RemotingConnection]]] = field(factory=list, init=False)
    _last: tuple[LoopTurns, int] | None = field(default=None, init=False)
    _ended: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def add(
        self, turns: LoopTurns, connections: Callable[[], Iterable[RemotingConnection]]
    ) -> None:
        """A server, before its first connection."""
        self._connections.append(connections)
        self._turns.append(turns)

    def start(self) -> None:
        """Harmless twice."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended. Harmless twice, and without a start."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def check(self) -> None:
        """Mark what waits if the loop is in the same commit as at the last look."""
        turns = next((each for each in self._turns if each.committing), None)
        if turns is None:
            self._last = None
            return
        number = turns.number
        if self._last == (turns, number) and turns.found is None:
            seen_ms = turns.scheduler.monotonic_ms()
            unread = [
                (connection, count)
                for connections in self._connections
                for connection in list(connections())
                if isinstance(connection, ServedConnection) and (count := connection.unread_bytes())
            ]
            if turns.committing and turns.number == number:
                turns.found = (number, seen_ms, unread)
        self._last = (turns, number)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_MS / 1000):
            self.check()


def _recv_queue_bytes(fd: int) -> int:
    try:
        import fcntl
        import termios
    except ImportError:  # not Unix
        return 0
    count = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)
