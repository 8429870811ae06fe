"""The waiting time of requests before they are read, the counterpart of the age of Java's queues.

In rmqpy, requests wait in the kernel's buffers, which do not record arrival times. A *mark* of a
connection states the number of unread bytes at a point in time; these bytes have waited at least
since then. Marks are set when requests may have waited:

================================  ==================================================================
when                              set by
================================  ==================================================================
a read has filled its buffer      the connection, because more bytes are waiting
a commit takes long               a thread that checks every ``LOOK_MS`` whether the loop is in the
                                  same commit, during which no connection is read
================================  ==================================================================

Invariants: a waiting time is never too high, because it applies only to complete frames whose last
byte was present at the mark; the thread changes only ``LoopTurns.found``, which the loop uses at
the end of that commit only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field

from rmqpy.net.connection import LoopTurns, RemotingConnection, ServedConnection

LOOK_MS: Final = 50


@define(slots=True, eq=False, repr=False)
class StallDetector:
    """The thread that sets marks for all servers of a loop. While one of them commits, none is
    read.
    """

    _turns: list[LoopTurns] = field(factory=list, init=False)
    _connections: list[Callable[[], Iterable[RemotingConnection]]] = field(factory=list, init=False)
    _last: tuple[LoopTurns, int] | None = field(default=None, init=False)
    _ended: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def add(
        self, turns: LoopTurns, connections: Callable[[], Iterable[RemotingConnection]]
    ) -> None:
        """Add a server before its first connection."""
        self._connections.append(connections)
        self._turns.append(turns)

    def start(self) -> None:
        """Start the thread. Safe to call twice."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it to end. Safe to call twice, and without a start."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def check(self) -> None:
        """Mark the waiting bytes if the loop is in the same commit as at the last check."""
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
