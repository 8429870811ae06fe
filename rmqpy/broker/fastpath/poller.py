"""The connections of the hot path that can be read, all of them in one C call.

The loop watches one descriptor, an epoll set of the C core, instead of one a connection: it costs a
callback a turn, and not a callback a connection and turn. A ``net.feed.PollSet``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from rmqpy.broker.fastpath.tables import Cdata
from rmqpy.codec.native import ffi, lib

CAN_WATCH: Final = sys.platform == "linux"
"""Whether the system has epoll."""


class EpollSet:
    """See the module's text. ``receive``: ``rmq_receive_ready``, by the rules of the log."""

    def __init__(
        self,
        core: Cdata,
        receive: Callable[[Cdata, bool], int],
        flush_replies_early: Callable[[], bool],
    ) -> None:
        self._core = core
        core.ready_fd = -1
        self.receive = receive
        self.flush_replies_early = flush_replies_early

    @property
    def fd(self) -> int:
        """The epoll set's descriptor."""
        fd: int = self._core.ready_fd
        return fd

    def watch(self, number: int, wanted: bool) -> None:
        """Whether this connection is among them. Raises OSError."""
        code = lib.rmq_watch(self._core, number, wanted)
        if code:
            raise OSError(code, os.strerror(code))

    def exclude(self, number: int, apart: bool) -> None:
        """Python reads this one: something is kept for its next read."""
        self._core.peers[number].apart = apart

    @property
    def stopped_at(self) -> int:
        """Whom ``receive`` has come to last."""
        number: int = self._core.ready[self._core.ready_next - 1]
        return number

    def drained(self) -> list[int]:
        """Whom ``receive`` has come to since the begin."""
        numbers: list[int] = ffi.unpack(self._core.ready, self._core.ready_next)
        return numbers

    def close(self) -> None:
        """Nobody is watched any more. Harmless twice."""
        lib.rmq_watch_none(self._core)
