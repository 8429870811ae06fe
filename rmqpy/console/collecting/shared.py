"""Answers that pages share for some seconds, so that viewers together ask a broker once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

from attrs import define, field

from rmqpy.model.clock import Clock

__all__ = ["SharedAnswers"]

ANSWERS_MAX: Final = 2048

T = TypeVar("T")


@define(slots=True)
class SharedAnswers:
    """The latest answers by key. Failures are shared too while they are awaited, but not kept."""

    clock: Clock
    _known: OrderedDict[Hashable, tuple[int, Any]] = field(factory=OrderedDict)
    _waiting: dict[Hashable, asyncio.Task[Any]] = field(factory=dict)

    async def get(self, key: Hashable, fresh_ms: int, ask: Callable[[], Awaitable[T]]) -> T:
        """Return an answer that is not older than ``fresh_ms``, from ``ask`` if there is none."""
        now_ms = self.clock.monotonic_ms()
        known = self._known.get(key)
        if known is not None and now_ms - known[0] < fresh_ms:
            found: T = known[1]
            return found
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.ensure_future(_awaited(ask))
            task.add_done_callback(lambda done: self._ended(key, now_ms, done))
        answer: T = await asyncio.shield(task)
        return answer

    def _ended(self, key: Hashable, asked_ms: int, done: asyncio.Task[Any]) -> None:
        del self._waiting[key]
        if done.cancelled() or done.exception() is not None:
            return
        self._known[key] = asked_ms, done.result()
        self._known.move_to_end(key)
        while len(self._known) > ANSWERS_MAX:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)


async def _awaited(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
