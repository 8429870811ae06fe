"""Long polling: pulls that found nothing new wait until a message arrives or their time is over.

::

    hold ──► waiting ──► due ──► resumed (by wake, outside of dispatch)
                 │        ▲
                 │        ├── arrival of a message that may interest the reader
                 │        ├── sweep: its time is over, or the queue has grown unnoticed
                 │        ├── end_all: this broker no longer answers pulls itself
                 └────────┴── its connection is closed: dropped

An arrival is matched by tags code, and by its record if the reader filters by properties; the
resumed pull reads the queue again and may not wait a second time. Messages that arrive in one
dispatch wake a reader once. Pulls are resumed in the order in which they became due, in slices, so
that requests are handled between them: a message that a thousand groups wait for delays no sender
for long.

With the fast path, the pulls that it has received wait in C (:class:`PullAccelerator`). All rules
are the same there; the pulls that C refuses wait here.

Invariants: a held pull is resumed exactly once or dropped with its connection; at most ``limit``
pulls wait, here and in C together; those that wait here have at most ``HELD_BYTES`` of texts and
bodies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from attrs import define

from rmqpy.broker.base.store_api import Matcher
from rmqpy.model.clock import Clock
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.results import Arrival

SWEEP_PERIOD_MS: Final = 5_000
SHORT_SWEEP_PERIOD_MS: Final = 1_000
"""Period of the sweep when long polling is switched off."""

HELD_LIMIT: Final = 100_000
HELD_BYTES: Final = 64 * 1024 * 1024
"""The limit of the held requests: a single one may have a megabyte of subscription."""

RESUMED_AT_ONCE: Final = 32
"""The number of pulls that a slice resumes in Python, about 3 ms of work."""

QueueWatch = Callable[[str, int, bool], None]
"""Called with a topic, a queue id, and True if a reader now waits for that queue."""

Resume = Callable[[Channel, RemotingCommand], None]
"""Answers a pull that no longer waits."""

_Key = tuple[str, int]


@define(slots=True, eq=False, repr=False)
class HeldPullRequest:
    """A pull that waits for a message at ``offset`` or later."""

    channel: Channel
    request: RemotingCommand
    offset: int
    matcher: Matcher | None
    deadline_ms: int
    wants: Callable[[int], bool] | None = None
    """Returns whether the message at a physical offset matches, if tags do not decide that."""

    @property
    def size(self) -> int:
        """The bytes of the request that wait with it."""
        return len(self.request.body) + sum(map(len, self.request.ext_fields.values()))


class PullAccelerator(Protocol):
    """A faster hold, which the pulls enter by another way. Its rules are those of
    :class:`PullRequestHold`.
    """

    @property
    def count(self) -> int:
        """The number of pulls that wait now."""
        ...

    @property
    def has_due(self) -> bool: ...

    def notify_message_arriving(self, arrival: Arrival) -> None: ...

    def sweep(self) -> None:
        """Mark as due the pulls whose time is over, whose queue has grown, or whose connection is
        closed.
        """

    def end_all(self) -> None:
        """Mark all pulls as due."""

    def resume_ready(self, resume: Resume) -> None:
        """Answer a slice of the pulls that are due, with ``resume`` those that need Python."""


class PullRequestHold:
    """The waiting pulls of all queues."""

    def __init__(self, clock: Clock, limit: int = HELD_LIMIT) -> None:
        self._clock = clock
        self._limit = limit
        self._on_watch: QueueWatch = _ignore
        self._waiting: dict[_Key, list[HeldPullRequest]] = {}
        self._due: deque[HeldPullRequest] = deque()
        self._accelerator: PullAccelerator | None = None
        self._count = 0
        self._bytes = 0

    def watch_queues(self, watch: QueueWatch) -> None:
        """Call ``watch`` when the first reader of a queue starts to wait, and when the last one
        stops.
        """
        self._on_watch = watch

    def install_accelerator(self, accelerator: PullAccelerator | None) -> None:
        """Count, notify, and resume the pulls of ``accelerator``, too; None removes it."""
        self._accelerator = accelerator

    @property
    def count(self) -> int:
        """The number of pulls that wait now."""
        elsewhere = self._accelerator
        return self._count if elsewhere is None else self._count + elsewhere.count

    @property
    def room_elsewhere(self) -> int:
        """The number of pulls that an accelerator may hold."""
        return self._limit - self._count

    @property
    def has_due(self) -> bool:
        """True if :meth:`resume_ready` has something to do."""
        elsewhere = self._accelerator
        return bool(self._due) or (elsewhere is not None and elsewhere.has_due)

    def hold(self, topic: str, queue_id: int, pull: HeldPullRequest) -> bool:
        """Keep ``pull``, or return False if no more may wait."""
        size = pull.size
        if self.count >= self._limit or self._bytes + size > HELD_BYTES:
            return False
        waiting = self._waiting.setdefault((topic, queue_id), [])
        waiting.append(pull)
        self._count += 1
        self._bytes += size
        if len(waiting) == 1:
            self._on_watch(topic, queue_id, True)
        return True

    def notify_message_arriving(self, arrival: Arrival) -> None:
        """Mark as due the pulls that a newly readable message matches."""
        if self._accelerator is not None and self._accelerator.count:
            self._accelerator.notify_message_arriving(arrival)
        key = (arrival.topic, arrival.queue_id)
        waiting = self._waiting.get(key)
        if waiting is not None:
            self._split(
                key,
                waiting,
                lambda pull: (
                    arrival.queue_offset >= pull.offset
                    and (pull.matcher is None or pull.matcher(arrival.tags_code))
                    and (pull.wants is None or pull.wants(arrival.physical_offset))
                ),
            )

    def resume_ready(self, resume: Resume) -> None:
        """Resume a slice of the pulls that are due."""
        left = RESUMED_AT_ONCE
        while self._due and left:
            pull = self._due.popleft()
            if not pull.channel.closed:
                resume(pull.channel, pull.request)
                left -= 1
        if self._accelerator is not None and self._accelerator.has_due:
            self._accelerator.resume_ready(resume)

    def sweep(self, max_queue_offset: Callable[[str, int], int]) -> None:
        """Mark as due the pulls whose time is over, whose queue has grown, or whose connection is
        closed.
        """
        if self._accelerator is not None:
            self._accelerator.sweep()
        now_ms = self._clock.monotonic_ms()
        for key, waiting in list(self._waiting.items()):
            self._split(key, waiting, _overdue(now_ms, max_queue_offset(*key)))

    def end_all(self) -> None:
        """Mark all pulls as due, wherever they wait."""
        if self._accelerator is not None:
            self._accelerator.end_all()
        for key, waiting in list(self._waiting.items()):
            self._split(key, waiting, lambda _pull: True)

    def _split(
        self, key: _Key, waiting: list[HeldPullRequest], due: Callable[[HeldPullRequest], bool]
    ) -> None:
        staying = []
        for pull in waiting:
            if due(pull):
                self._due.append(pull)
                self._count -= 1
                self._bytes -= pull.size
            else:
                staying.append(pull)
        if staying:
            self._waiting[key] = staying
        else:
            del self._waiting[key]
            self._on_watch(*key, False)


def _ignore(_topic: str, _queue_id: int, _wanted: bool) -> None:
    """Watch no queue."""


def _overdue(now_ms: int, end: int) -> Callable[[HeldPullRequest], bool]:
    return lambda pull: pull.channel.closed or pull.deadline_ms <= now_ms or end > pull.offset
