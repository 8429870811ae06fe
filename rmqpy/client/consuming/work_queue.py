"""WorkQueue: items for several workers, first in, first out.

``asyncio.Queue`` wakes a worker for every item, although the first one may take them all before the
others run. Here a worker that takes an item wakes the next one, if there are more items.

Invariant: while there are items and idle workers, one worker has been woken and has not yet run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class WorkQueue(Generic[T]):
    """A queue without a limit; whoever puts items bounds their number."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._woken is None:
            self._wake()

    async def get(self) -> T:
        """Return the next item; wait until there is one."""
        while (item := self.take()) is None:
            await self._wait()
        return item

    def take(self) -> T | None:
        """Return the next item, or None if there is none."""
        if not self._items:
            return None
        item = self._items.popleft()
        if self._items and self._woken is None:
            self._wake()
        return item

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if self._woken is waiter:  # Somebody else must take the item.
                self._woken = None
                if self._items:
                    self._wake()
            elif waiter in self._idle:
                self._idle.remove(waiter)
            raise
        self._woken = None

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.cancelled():  # A cancelled worker may not have run since.
                self._woken = waiter
                waiter.set_result(None)
                return
