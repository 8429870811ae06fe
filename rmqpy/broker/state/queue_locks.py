"""Order locks: which client of a group may consume a queue in order (codes 41 and 42).

A queue is granted when it is free, when the same client holds it (which refreshes the lock), or
when the lock is older than ``LOCK_LIVE_MS``. The locks are in memory only: after a restart or a
change of master, clients lock again.

Invariant: at most ``LOCKS_LIMIT`` locks; stale ones are removed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import field

from rmqpy.model.clock import Clock
from rmqpy.model.values import define
from rmqpy.remoting.bodies import MessageQueue

LOCK_LIVE_MS: Final = 60_000
LOCKS_LIMIT: Final = 200_000


@define(slots=True)
class QueueLock:
    """A lock; ``client_id`` is None once it is released."""

    client_id: str | None
    updated_ms: int


@define(slots=True)
class QueueLockTable:
    """The lock table of all groups."""

    _clock: Clock
    _locks: dict[tuple[str, MessageQueue], QueueLock] = field(factory=dict)

    def lock(
        self, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock ``queues`` for ``client_id`` and return those that it holds now."""
        now_ms = self._clock.monotonic_ms()
        if len(self._locks) + len(queues) > LOCKS_LIMIT:
            self.expire()
        return [queue for queue in queues if self._grant((group, queue), client_id, now_ms)]

    def held(self, group: str, queues: Sequence[MessageQueue]) -> list[QueueLock]:
        """Return the locks of queues that are all locked."""
        return [self._locks[group, queue] for queue in queues]

    def renew(self, locks: Sequence[QueueLock], client_id: str) -> bool:
        """Refresh locks of this client. Return False, and change nothing, if it does not hold one
        of them any more.
        """
        for held in locks:
            if held.client_id != client_id:
                return False
        now_ms = self._clock.monotonic_ms()
        for held in locks:
            held.updated_ms = now_ms
        return True

    def unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Release the locks that the client holds; those of other clients stay."""
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is not None and held.client_id == client_id:
                self._remove((group, queue))

    def expire(self) -> None:
        """Remove locks that are too old."""
        stale_ms = self._clock.monotonic_ms() - LOCK_LIVE_MS
        for key in [key for key, held in self._locks.items() if held.updated_ms < stale_ms]:
            self._remove(key)

    def __len__(self) -> int:
        return len(self._locks)

    def _remove(self, key: tuple[str, MessageQueue]) -> None:
        self._locks.pop(key).client_id = None

    def _grant(self, key: tuple[str, MessageQueue], client_id: str, now_ms: int) -> bool:
        held = self._locks.get(key)
        if held is None:
            if len(self._locks) >= LOCKS_LIMIT:
                return False
            self._locks[key] = QueueLock(client_id, now_ms)
            return True
        if held.client_id != client_id:
            if now_ms - held.updated_ms <= LOCK_LIVE_MS:
                return False
            held.client_id = client_id
        held.updated_ms = now_ms
        return True
