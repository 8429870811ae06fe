"""One heap of events for a whole cluster, and the ``Scheduler`` that each life of a machine gets.

A life ends by a crash: its callbacks never run again. A paused machine runs nothing until its pause
is over; what fell due meanwhile runs then, in order. After each callback of a machine ``watch`` is
told, so that checkers see the state that every single event leaves behind.

Invariants: time never goes back; events of one moment run in the order in which they were given, so
a run is the same each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import define, field

T = TypeVar("T")

START_MS = 1_700_000_000_000
"""Wall clock at time 0."""


RUNAWAY_EVENTS = 100_000
"""More of them in one moment feed themselves."""


class MachineCrashError(BaseException):
    """Raised in the middle of an event: the machine is killed, or loses its power, here."""


@define(slots=True, eq=False, repr=False)
class Event:
    """A callback that may be called off."""

    callback: Callable[[], None] | None
    life: ProcessLifetime | None = None

    def cancel(self) -> None:
        self.callback = None


@define(slots=True, eq=False, repr=False)
class Timeline:
    """See the module. ``died`` hears of a machine whose event raised :class:`MachineCrashError`."""

    now_ms: int = 0
    events: int = 0
    _heap: list[tuple[int, int, Event]] = field(factory=list)
    _sequence: int = 0
    _at_once: int = 0

    def at(self, delay_ms: int, callback: Callable[[], None]) -> Event:
        """Run ``callback`` so much later; nobody's crash calls it off."""
        event = Event(callback)
        self.add(delay_ms, event)
        return event

    def add(self, delay_ms: int, event: Event) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, event))

    def run_until(self, end_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            due_ms, _, event = heapq.heappop(heap)
            callback = event.callback
            if callback is None:
                continue
            life = event.life
            if due_ms > self.now_ms:
                self.now_ms = due_ms
                self._at_once = 0
            self._at_once += 1
            assert self._at_once < RUNAWAY_EVENTS, "events keep making events"
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
    """A machine from its start to its crash: a ``model.runtime.Scheduler``.

    ``blocking_ms`` gives how long a blocking call takes. Its work is done at once, its durable
    effects (``begin_syncs``/``end_syncs``) come at the end, like those of a sync that a power
    failure can interrupt.
    """

    timeline: Timeline
    watch: Callable[[], None]
    died: Callable[[], None]
    blocking_ms: Callable[[], int]
    syncs: Syncs
    skew_ms: int = 0
    alive: bool = True
    paused_until_ms: int = 0
    _held: list[Event] = field(factory=list)
    """What has fallen due since it paused."""

    def hold(self, event: Event) -> None:
        """``event`` has to wait until the pause is over."""
        self._held.append(event)
        if len(self._held) == 1:
            self._wake_later()

    def resume(self) -> None:
        """A pause is over now."""
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
        event = Event(callback, self)
        self.timeline.add(delay_ms, event)
        return event

    def run_blocking(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        result: T | None = None
        fault: BaseException | None = None
        number = self.syncs.begin()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed on, as a worker thread's would be
            fault = error
        finally:
            self.syncs.collected()

        def finish() -> None:
            self.syncs.end(number)
            done(result, fault)

        self.call_later(self.blocking_ms(), finish)

    def run(self, callback: Callable[[], None]) -> None:
        """One event of this machine, and a look at what it has left. An error of the disk that
        nobody has caught is logged, as the loop would; any other is a bug.
        """
        self.syncs.now_ms = START_MS + self.timeline.now_ms + self.skew_ms
        try:
            callback()
        except MachineCrashError:
            self.died()
            return
        except OSError:
            if not self.syncs.broken:
                raise
        self.watch()


class Syncs(Protocol):
    """What a disk does about syncs that take time (``disks.SimulatedDisk``)."""

    now_ms: int
    """The machine's clock: times of files are told by it."""

    @property
    def broken(self) -> bool:
        """Whether its operations fail now."""

    def begin(self) -> int:
        """From now on syncs are collected, under the number that is returned."""

    def collected(self) -> None:
        """No more of them."""

    def end(self, number: int) -> None:
        """They have reached the disk."""
