"""The services that run only on a master: delivery of delayed messages, checks of transactions.

The role decides (:mod:`.role`): ``start`` when this broker has become master and its queue offsets
are known, ``stop`` before it gives the role up. Both are harmless when repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import define, field


class MasterService(Protocol):
    """A service that runs only on a master."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@define(slots=True, eq=False, repr=False)
class MasterServices:
    """All such services, started in their order and stopped in reverse."""

    _services: Sequence[MasterService]
    _abandon: Callable[[], None]
    """Fails the broker's own messages that still wait, because nothing will confirm them."""
    running: bool = field(default=False, init=False)

    def start(self) -> None:
        if not self.running:
            self.running = True
            for service in self._services:
                service.start()

    def stop(self) -> None:
        if self.running:
            self.running = False
            for service in reversed(self._services):
                service.stop()
            self._abandon()
