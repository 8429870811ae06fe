"""Run an ``rmqpy`` command and record the CPU time of the turns of its loop.

    python bench/loop_turns.py FILE broker -c broker.conf

At SIGUSR1 the record since the last one is written to ``FILE`` as JSON: the number of turns, their
CPU time, the longest turns with the callback that took most of each, and the longest garbage
collections with their generation. For a turn of more than ``SAMPLED_MS`` the callback is followed
by the places in which a timer has found it most often. A turn includes garbage collection, and
excludes waiting: the load of the machine is not in it. asyncio's loop is used, because uvloop does
not show its turns.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import os
import signal
import sys
import time
from asyncio import base_events, events
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from attrs import define, field

LONGEST_COUNT: Final = 8
LOOP_THREAD_NS: Final = time.thread_time_ns
SAMPLED_MS: Final = 10
SAMPLE_PERIOD_S: Final = 0.002
PLACES_COUNT: Final = 3


@define(slots=True, eq=False)
class TurnRecorder:
    """The turns since the last report."""

    path: Path
    count: int = 0
    total_ns: int = 0
    longest: list[tuple[int, str]] = field(factory=list)
    collections: list[tuple[int, int]] = field(factory=list)
    """The longest garbage collections: ns and generation."""
    _callback_ns: int = 0
    _callback: str = ""
    _places: Counter[str] = field(factory=Counter)
    _collection_began: int = 0

    def install(self) -> None:
        """Measure every turn and callback of asyncio's loop from now on."""
        loop_class: Any = base_events.BaseEventLoop
        handle_class: Any = events.Handle
        run_once, run = loop_class._run_once, handle_class._run

        def turn(loop: Any) -> None:
            self._places.clear()
            self._callback_ns, begin = 0, LOOP_THREAD_NS()
            try:
                run_once(loop)
            finally:
                self._ended(LOOP_THREAD_NS() - begin)

        def callback(handle: Any) -> None:
            begin = LOOP_THREAD_NS()
            run(handle)
            used = LOOP_THREAD_NS() - begin
            if used > self._callback_ns:
                self._callback_ns, self._callback = used, _name_of(handle)

        loop_class._run_once = turn
        handle_class._run = callback
        signal.signal(signal.SIGUSR1, self._report)
        signal.signal(signal.SIGVTALRM, self._sample)
        signal.setitimer(signal.ITIMER_VIRTUAL, SAMPLE_PERIOD_S, SAMPLE_PERIOD_S)
        gc.callbacks.append(self._collected)

    def _ended(self, used_ns: int) -> None:
        self.count += 1
        self.total_ns += used_ns
        name = self._callback
        if used_ns > SAMPLED_MS * 1_000_000:
            # A copy, because a signal may add a place at any time.
            found = Counter(dict(self._places)).most_common(PLACES_COUNT)
            name = "; ".join([name, *(f"{place} {count}" for place, count in found)])
        _keep_longest(self.longest, (used_ns, name))

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None and len(names) < PLACES_COUNT:
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        self._places[" < ".join(names)] += 1

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = LOOP_THREAD_NS()
        else:
            used = LOOP_THREAD_NS() - self._collection_began
            _keep_longest(self.collections, (used, info["generation"]))

    def _report(self, _signal: int, _frame: FrameType | None) -> None:
        content = {
            "turns": self.count,
            "cpu_ms": self.total_ns / 1e6,
            "longest_ms": [[used / 1e6, name] for used, name in sorted(self.longest, reverse=True)],
            "collections_ms": [
                [used / 1e6, generation]
                for used, generation in sorted(self.collections, reverse=True)
            ],
        }
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, self.path)
        self.count = self.total_ns = 0
        self.longest.clear()
        self.collections.clear()


T = TypeVar("T")


def _keep_longest(found: list[tuple[int, T]], new: tuple[int, T]) -> None:
    if len(found) < LONGEST_COUNT:
        heapq.heappush(found, new)
    elif new[0] > found[0][0]:
        heapq.heapreplace(found, new)


def _name_of(handle: Any) -> str:
    """Return the name of a callback: of a step of a task, that of its coroutine, and of a callback
    that only calls its first argument, that of the argument.
    """
    called = handle._callback
    if handle._args and callable(handle._args[0]):
        called = handle._args[0]
    task = getattr(called, "__self__", None)
    if isinstance(task, asyncio.Task):
        return getattr(task.get_coro(), "__qualname__", repr(task))
    return getattr(called, "__qualname__", repr(called))


def main() -> int:
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    TurnRecorder(Path(sys.argv[1])).install()
    from rmqpy.cli import main as run_command

    return run_command(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
