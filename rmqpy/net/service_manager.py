"""What a server tells the service manager that started it: systemd's protocol of sd_notify(3).

A datagram of ``KEY=VALUE`` lines to the Unix socket in ``NOTIFY_SOCKET``; a name that starts with
``@`` is in the abstract namespace. ``WATCHDOG_USEC`` is the time in µs after which a silent service
is killed, if ``WATCHDOG_PID`` is this process: a sign of life is sent twice in that time, from the
loop, so that a blocked loop is found.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from attrs import define, field

logger = logging.getLogger(__name__)

_OWN: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@define(eq=False, repr=False)
class ServiceManager:
    """The connection to the service manager; without ``address`` all messages are dropped."""

    address: str | None
    watchdog_s: float | None
    """The time between two signs of life, in seconds; None if none are expected."""
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> ServiceManager:
        """Return the service manager that the environment of process ``pid`` names."""
        address = environment.get("NOTIFY_SOCKET") or None
        period, whose = (environment.get(key, "") for key in _OWN[1:])
        if address is None or not period.isdecimal() or int(period) == 0:
            return cls(address, None)
        return cls(address, int(period) / 2_000_000 if whose in ("", str(pid)) else None)

    def tell(self, text: str) -> None:
        """Send ``text``. A failure is logged once: a service does not depend on its manager."""
        if self.address is None:
            return
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), where)
        except OSError as error:
            if not self._failed:
                self._failed = True
                logger.warning("NOTIFY_SOCKET=%s cannot be reached: %s", self.address, error)

    def ready(self, status: str) -> None:
        """Report that the service is ready, and send signs of life from now on."""
        self.tell(f"READY=1\nSTATUS={status}")
        self._live()

    def stopping(self) -> None:
        """Report that the service ends, and send no more signs of life."""
        if self._timer is not None:
            self._timer.cancel()
        self.tell("STOPPING=1")

    def _live(self) -> None:
        if self.watchdog_s is not None:
            self.tell("WATCHDOG=1")
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.watchdog_s, self._live)


def own_manager() -> ServiceManager:
    """Return the service manager of this process. Processes that it starts from now on do not
    report to it, because only the main process speaks for the service.
    """
    manager = ServiceManager.of(os.environ, os.getpid())
    for key in _OWN:
        os.environ.pop(key, None)
    return manager


@contextmanager
def announced(status: str) -> Iterator[None]:
    """Tell the service manager, if there is one, that this process is ready, and at the end that it
    stops.
    """
    manager = own_manager()
    manager.ready(status)
    try:
        yield
    finally:
        manager.stopping()
