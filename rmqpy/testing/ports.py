"""Free port ranges for servers that tests start as processes.

A RocketMQ broker on port P also uses P-2 (fast port) and P+1 (HA), so consecutive ports are needed.
The ranges are below the ephemeral ports, so that no outgoing connection can take a port between the
search and the start of the server. A range stays reserved against other test processes of this
machine until it is released: each of its ports has an abstract Unix socket, or a locked file where
there are none, which the kernel releases when the process ends. The last ``RECENT_BLOCKS`` ranges
stay reserved even if nobody keeps them, because the server of ``free_port_block(4).broker_port``
has yet to start.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from attrs import define, field

LOWEST_PORT = 10_240
DEFAULT_EPHEMERAL_START = 32_768
BROKER_PORT_COUNT = 4
BROKER_PORT_INDEX = 2
MAX_TRIES = 500
RECENT_BLOCKS = 16


HAS_ABSTRACT_SOCKETS = sys.platform == "linux"


class PortGuard(Protocol):
    """What keeps other test processes from a port until it is closed."""

    def close(self) -> None: ...


@define(frozen=True)
class PortBlock:
    """``count`` consecutive free ports from ``first`` on.

    They are reserved until :meth:`release`, or until the object is deleted and ``RECENT_BLOCKS``
    others were taken.
    """

    first: int
    count: int
    _guards: tuple[PortGuard, ...] = field(repr=False, alias="guards")

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"port {index} of a block of {self.count}")
        return self.first + index

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))

    @property
    def broker_port(self) -> int:
        """The listenPort P of a broker that uses this block, which also contains P-2 and P+1."""
        return self[BROKER_PORT_INDEX]

    def release(self) -> None:
        """Let others use the ports. Only a test that has no server left should do it."""
        for guard in self._guards:
            guard.close()

    def __del__(self) -> None:
        self.release()


_recent: deque[PortBlock] = deque(maxlen=RECENT_BLOCKS)


@atexit.register
def _release_recent() -> None:
    for block in _recent:
        block.release()


def free_port_block(count: int = 1) -> PortBlock:
    """Return ``count`` consecutive ports on which no process listens and that no caller holds."""
    assert 0 < count <= 100
    end = _ephemeral_start() - count
    rng = random.Random(os.urandom(8))
    for _ in range(MAX_TRIES):
        first = rng.randrange(LOWEST_PORT, end)
        guards = _reserve(range(first, first + count))
        if guards is not None:
            block = PortBlock(first, count, guards)
            _recent.append(block)
            return block
    raise OSError(f"no {count} consecutive free ports between {LOWEST_PORT} and {end}")


def _ephemeral_start() -> int:
    try:
        words = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except OSError:
        return DEFAULT_EPHEMERAL_START
    start = int(words[0])
    return start if start > LOWEST_PORT + 1000 else DEFAULT_EPHEMERAL_START


def _guard(port: int) -> PortGuard:
    """Return the guard of a port. Raises OSError if another one has it."""
    name = f"rmqpy-test-port-{port}"
    if HAS_ABSTRACT_SOCKETS:
        guard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            guard.bind(f"\0{name}")
        except OSError:
            guard.close()
            raise
        return guard
    file = Path(tempfile.gettempdir(), name).open("ab")  # noqa: SIM115 - open until the port is released
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _reserve(ports: range) -> tuple[PortGuard, ...] | None:
    guards: list[PortGuard] = []
    for port in ports:
        try:
            guards.append(_guard(port))
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", port))
        except OSError:
            for each in guards:
                each.close()
            return None
    return tuple(guards)
