"""The readable connections of the fast path, all of them in one C call.

The loop watches one descriptor, an epoll set of the C core, instead of one per connection. That
costs one callback per turn instead of one per connection and turn. Implements the ``PollSet`` of
:mod:`rmqpy.net.server.feed_api`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from rmqpy.broker.fastpath.tables import Cdata
from rmqpy.codec.native.binding import ffi, lib

CAN_WATCH: Final = sys.platform == "linux"
"""True if the system has epoll."""


class EpollSet:
    """The epoll set of the C core. ``receive`` is ``rmq_receive_ready``, wrapped as the log
    requires; its owner sets it.
    """

    def __init__(
        self,
        core: Cdata,
        flush_replies_early: Callable[[], bool],
    ) -> None:
        self._core = core
        core.ready_fd = -1
        self.receive: Callable[[Cdata, bool], int]
        self.flush_replies_early = flush_replies_early

    @property
    def fd(self) -> int:
        """The descriptor of the epoll set."""
        fd: int = self._core.ready_fd
        return fd

    def watch(self, number: int, wanted: bool) -> None:
        """Add this connection to the set or remove it. Raises OSError."""
        code = lib.rmq_watch(self._core, number, wanted)
        if code:
            raise OSError(code, os.strerror(code))

    def exclude(self, number: int, is_excluded: bool) -> None:
        """Set whether Python reads this connection, which it does while bytes are kept for its next
        read.
        """
        self._core.peers[number].excluded = is_excluded

    def is_another_ready(self, number: int) -> bool:
        """Return whether a connection other than this one is readable, or still has to be handled
        by ``receive``.
        """
        return bool(lib.rmq_is_another_ready(self._core, number))

    @property
    def stopped_at(self) -> int:
        """The connection at which ``receive`` stopped last."""
        number: int = self._core.ready[self._core.ready_next - 1]
        return number

    def drained(self) -> list[int]:
        """Return the connections that ``receive`` has handled since its last start."""
        numbers: list[int] = ffi.unpack(self._core.ready, self._core.ready_next)
        return numbers

    def close(self) -> None:
        """Stop watching all connections. Idempotent."""
        lib.rmq_watch_none(self._core)
