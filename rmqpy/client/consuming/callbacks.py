"""The callbacks of a push consumer: changes of its share of the queues, and errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from attrs import define

from rmqpy.remoting.bodies import MessageQueue

logger = logging.getLogger(__name__)

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
"""Receives queues; a function or a coroutine function."""

ErrorCallback = Callable[[Exception, MessageQueue | None], None]
"""Receives an error of the background work or of the listener, and the queue if there is one."""


@define(eq=False, repr=False)
class ConsumerCallbacks:
    """Calls what the application has given; an error of a callback is logged."""

    group: str
    on_assigned: QueuesCallback | None
    on_revoked: QueuesCallback | None
    on_error: ErrorCallback | None
    _known: frozenset[MessageQueue] = frozenset()

    async def assignment_changed(self, now: frozenset[MessageQueue]) -> None:
        """Call ``on_revoked`` and ``on_assigned`` for what has changed since the last call."""
        before, self._known = self._known, now
        await self._call(self.on_revoked, before - now)
        await self._call(self.on_assigned, now - before)

    def failed(self, error: Exception, queue: MessageQueue | None = None) -> None:
        """Call ``on_error``."""
        if self.on_error is None:
            return
        try:
            self.on_error(error, queue)
        except Exception:
            logger.exception("the error callback of consumer group %s failed", self.group)

    async def _call(self, callback: QueuesCallback | None, queues: frozenset[MessageQueue]) -> None:
        if callback is None or not queues:
            return
        try:
            result = callback(sorted(queues))
            if isawaitable(result):
                await result
        except Exception:
            logger.exception("a rebalance callback of consumer group %s failed", self.group)
