"""The limit for the duration of listener calls: ``asyncio.timeout`` with one timer for all calls.

A call that never waits needs none, because nothing could cancel it: its first step is taken without
one (:func:`resumed`).

Invariant: while a call runs, the timer is set to the deadline of the oldest call or earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any, TypeVar

from attrs import define, field

T = TypeVar("T")


@coroutine
def resumed(steps: Generator[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Return the rest of an awaitable, whose first step has yielded ``awaited``."""
    while True:
        try:
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001 - passed on
                awaited = steps.throw(error)
            else:
                awaited = steps.send(value)
        except StopIteration as end:
            result: T = end.value
            return result


@define(slots=True, eq=False, repr=False)
class CallDeadlines:
    """Cancels calls that take longer than ``timeout_ms``; each runs in a task of its own."""

    timeout_ms: int
    _deadlines: dict[asyncio.Task[Any], float] = field(factory=dict)
    """The running calls, oldest first."""
    _overdue: set[asyncio.Task[Any]] = field(factory=set)
    _timer: asyncio.TimerHandle | None = None

    async def run(self, call: Awaitable[T]) -> T:
        """Return the result of ``call``. Raises TimeoutError if it was cancelled at its deadline;
        a cancellation by others goes through.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None and task not in self._deadlines, "one call per task"
        before = task.cancelling()
        deadline = loop.time() + self.timeout_ms / 1000
        self._deadlines[task] = deadline
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire, loop)
        try:
            return await call
        except asyncio.CancelledError:
            if task in self._overdue:
                self._overdue.remove(task)
                if task.uncancel() <= before:
                    raise TimeoutError(f"it took longer than {self.timeout_ms} ms") from None
            raise
        finally:
            self._deadlines.pop(task, None)
            if task in self._overdue:  # It ended in spite of its cancellation.
                self._overdue.remove(task)
                task.uncancel()

    def close(self) -> None:
        """Remove the timer, unless calls are running. No call may be started afterwards."""
        if self._timer is not None and not self._deadlines:
            self._timer.cancel()
            self._timer = None

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._deadlines:
            task, deadline = next(iter(self._deadlines.items()))
            if deadline > now:
                self._timer = loop.call_at(deadline, self._expire, loop)
                return
            del self._deadlines[task]
            self._overdue.add(task)
            task.cancel()
