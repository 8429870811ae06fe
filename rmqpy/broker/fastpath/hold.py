"""The pulls that wait in C (native/hold.c): their memory, their limits, and what Python starts.

A pull enters from the feed, at the end of its queue. Dispatch in C reports arrivals to the hold
itself; those of records that Python dispatches come through ``notify_message_arriving``. A pull
that is due is its frame once more: C answers it, or hands it back. The rules are those of
:mod:`rmqpy.broker.services.pull_hold`, which keeps the pulls that C refuses: large frames, filters
and queues unknown to C, and all those beyond the limits.

Each pull takes 64 bytes and ``RMQ_HELD_BYTES``, which are used again by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rmqpy.broker.base.store_api import MessageReader
from rmqpy.broker.fastpath.tables import Cdata, c_array
from rmqpy.broker.services.pull_hold import HELD_BYTES, PullRequestHold, Resume
from rmqpy.codec.native.binding import ffi, lib
from rmqpy.config.broker import BrokerSettings
from rmqpy.model.clock import Clock
from rmqpy.net.server.feed_api import FeedChannel, FeedStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command
from rmqpy.store.results import Arrival

CAPACITY: Final = HELD_BYTES // (lib.RMQ_HELD_BYTES + ffi.sizeof("rmq_held"))
BUCKETS: Final = 1 << 14
WORK_AT_ONCE: Final = 256 * (1 + lib.RMQ_REPLY_WORK)
"""The work of a slice, about 1.5 ms: 256 pulls of as many connections, or up to six times as many
of one; a slice also ends when the reply buffer of a turn is full, or the share of its filters used.
"""
NEVER_MS: Final = 1 << 62
"""A time after every deadline."""
WORK_IN_PYTHON: Final = 16 * (1 + lib.RMQ_REPLY_WORK)
"""What a pull adds to the work of a slice if Python answers it."""


class Replies(Protocol):
    """The parts of the fast path by which held pulls are answered."""

    def refresh(self) -> None:
        """Share the end of the log and the tables with C."""

    def flush_replies(self) -> None:
        """Send the collected replies; those to sends that are not committed yet go to the gate."""

    def channel(self, number: int) -> FeedChannel | None:
        """Return the connection with this number, or None if it has ended."""

    def before_fallback(self) -> None:
        """Collect the counters of C, because Python is about to handle a frame."""

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None:
        """Refresh, and learn from pulls that Python has answered."""


class FastPathHold:
    """The ``PullAccelerator`` of the fast path."""

    def __init__(
        self,
        core: Cdata,
        hold: PullRequestHold,
        clock: Clock,
        replies: Replies,
        messages: MessageReader,
    ) -> None:
        self._core = core
        self._hold = hold
        self._clock = clock
        self._replies = replies
        self._messages = messages
        self._memory = (
            c_array("rmq_held", CAPACITY + 1),
            c_array("uint8_t", CAPACITY * lib.RMQ_HELD_BYTES),
            c_array("rmq_held_list", BUCKETS),
        )
        self._state = core.hold = ffi.new("rmq_hold *")
        self._state.pulls, self._state.data, self._state.buckets = self._memory
        self._state.bucket_mask = BUCKETS - 1
        self._state.capacity = CAPACITY

    def set_time(self, settings: BrokerSettings) -> None:
        """Set how long pulls wait."""
        long = settings.long_polling_enable
        self._state.wait_ms = -1 if long else settings.short_polling_time_mills

    def refresh(self) -> None:
        """Update the clock and the limit before C may hold pulls."""
        state = self._state
        state.now_ms = self._clock.monotonic_ms()
        state.limit = self._hold.room_elsewhere

    @property
    def count(self) -> int:
        count: int = self._state.count
        return count

    @property
    def has_due(self) -> bool:
        return bool(self._state.due_count)

    def notify_message_arriving(self, arrival: Arrival) -> None:
        topic = arrival.topic.encode()
        record = self._messages.message_at(arrival.physical_offset)
        view = ffi.from_buffer("uint8_t[]", record) if record is not None else ffi.NULL
        lib.rmq_hold_arrival(
            self._state,
            ffi.from_buffer("uint8_t[]", topic),
            len(topic),
            ffi.new(
                "rmq_arrived *",
                {
                    "queue_offset": arrival.queue_offset,
                    "tags_code": arrival.tags_code,
                    "queue_id": arrival.queue_id,
                    "record": view,
                    "size": len(record or b""),
                },
            ),
        )

    def sweep(self) -> None:
        self._state.now_ms = self._clock.monotonic_ms()
        lib.rmq_hold_sweep(self._core)

    def end_all(self) -> None:
        self._state.now_ms = NEVER_MS
        lib.rmq_hold_sweep(self._core)
        self._state.now_ms = self._clock.monotonic_ms()

    def resume_ready(self, resume: Resume) -> None:
        replies, state = self._replies, self._state
        replies.refresh()
        state.slice += 1
        state.work_left = WORK_AT_ONCE
        while lib.rmq_resume(self._core) == FeedStatus.FALLBACK:
            self._resume_in_python(resume)
        replies.flush_replies()

    def _resume_in_python(self, resume: Resume) -> None:
        state, replies = self._state, self._replies
        state.work_left -= WORK_IN_PYTHON
        channel = replies.channel(state.taken_peer)
        command = decode_command(memoryview(bytes(ffi.buffer(state.taken, state.taken_length))))
        if channel is None or channel.closed:
            return
        replies.before_fallback()
        resume(channel, command)
        replies.after_fallback((command,))
