"""One heap of events for a whole cluster, and the ``Scheduler`` of each process in it.

A life ends with a crash: its callbacks never run again. A paused machine runs nothing until the end
of its pause; then it runs the due events in order. ``on_event`` is called after each callback of a
machine, so that checkers see the state after every single event.

Invariants: time never goes back; events of one moment run in the order in which they were added, so
a run is the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import define, field

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""The wall clock at time 0."""

RUNAWAY_EVENTS = 100_000
"""The number of events in one moment from which they are taken for an endless loop."""


class MachineCrashError(BaseException):
    """The machine is killed or loses its power in the middle of an event."""


@define(slots=True, eq=False, repr=False)
class Event:
    """A callback that can be cancelled."""

    callback: Callable[[], None] | None
    life: ProcessLifetime | None = None

    def cancel(self) -> None:
        self.callback = None


@define(slots=True, eq=False, repr=False)
class Timeline:
    """The events of a cluster, in order of time."""

    now_ms: int = 0
    events: int = 0
    _heap: list[tuple[int, int, Event]] = field(factory=list)
    moment_ended: Callable[[], None] | None = None
    """Called once, when all events of the current moment have run."""

    _sequence: int = 0
    _events_before: int = 0
    """The number of events before the current moment."""

    def at(self, delay_ms: int, callback: Callable[[], None]) -> Event:
        """Run ``callback`` after ``delay_ms``, even if machines crash meanwhile."""
        event = Event(callback)
        self.add(delay_ms, event)
        return event

    def add(self, delay_ms: int, event: Event) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, event))

    def run_until(self, end_ms: int) -> None:
        heap, pop = self._heap, heapq.heappop
        while True:
            if self.moment_ended is not None and not (heap and heap[0][0] <= self.now_ms):
                ended, self.moment_ended = self.moment_ended, None
                ended()
                continue
            if not heap or heap[0][0] > end_ms:
                break
            due_ms, _, event = pop(heap)
            callback = event.callback
            if callback is None:
                continue
            life = event.life
            if due_ms > self.now_ms:
                self.now_ms = due_ms
                self._events_before = self.events
            elif self.events - self._events_before > RUNAWAY_EVENTS:
                raise AssertionError("events create events without end")
            if life is None:
                self.events += 1
                callback()
                continue
            if not life.alive:
                continue
            if life.paused_until_ms > due_ms:
                life.hold(event)
                continue
            self.events += 1
            event.callback = None
            life.run(callback)
        self.now_ms = end_ms


@define(slots=True, eq=False, repr=False)
class ProcessLifetime:
    """A process from its start to its crash: a ``model.clock.Scheduler``.

    ``on_crash`` is called when an event raised :class:`MachineCrashError`. ``blocking_ms`` returns
    how long a blocking call takes. Its work is done at once; its durable effects (``Syncs.begin``,
    ``Syncs.end``) appear at the end, like those of a sync that a power failure can interrupt.
    """

    timeline: Timeline
    on_event: Callable[[], None]
    on_crash: Callable[[], None]
    blocking_ms: Callable[[], int]
    syncs: Syncs
    skew_ms: int = 0
    alive: bool = True
    paused_until_ms: int = 0
    _held: list[Event] = field(factory=list)
    """The events that became due during the pause."""

    def hold(self, event: Event) -> None:
        """Keep ``event`` until the end of the pause."""
        self._held.append(event)
        if len(self._held) == 1:
            self._wake_later()

    def resume(self) -> None:
        """End a pause now."""
        self.paused_until_ms = min(self.paused_until_ms, self.timeline.now_ms)
        self._wake()

    def _wake_later(self) -> None:
        self.timeline.at(self.paused_until_ms - self.timeline.now_ms, self._wake)

    def _wake(self) -> None:
        if self._held and self.paused_until_ms > self.timeline.now_ms:
            self._wake_later()
            return
        held, self._held = self._held, []
        for event in held:
            self.timeline.add(0, event)

    def now_ms(self) -> int:
        return START_MS + self.timeline.now_ms + self.skew_ms

    def monotonic_ms(self) -> int:
        return self.timeline.now_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.timeline.add(0, Event(callback, self))

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Event:
        assert delay_ms >= 0, delay_ms
        event, timeline = Event(callback, self), self.timeline
        timeline._sequence += 1
        heapq.heappush(timeline._heap, (timeline.now_ms + delay_ms, timeline._sequence, event))
        return event

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        result: T | None = None
        fault: BaseException | None = None
        number = self.syncs.begin()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - passed on, as a worker thread does
            fault = error
        finally:
            self.syncs.collected()

        def finish() -> None:
            self.syncs.end(number)
            done(result, fault)

        self.call_later(self.blocking_ms(), finish)

    def run(self, callback: Callable[[], None]) -> None:
        """Run one event of this machine, then ``on_event``.

        An uncaught OSError of a broken disk is dropped, as the event loop only logs it; any other
        exception is a bug.
        """
        self.syncs.now_ms = START_MS + self.timeline.now_ms + self.skew_ms
        try:
            callback()
        except MachineCrashError:
            self.on_crash()
            return
        except OSError:
            if not self.syncs.broken:
                raise
        self.on_event()


class Syncs(Protocol):
    """A disk whose syncs take time (``disks.SimulatedDisk``)."""

    now_ms: int
    """The clock of the machine, which sets the times of files."""

    @property
    def broken(self) -> bool:
        """Whether operations currently fail."""

    def begin(self) -> int:
        """Collect syncs from now on. Return the number of this collection."""

    def collected(self) -> None:
        """Stop collecting."""

    def end(self, number: int) -> None:
        """Make the syncs of collection ``number`` durable."""
