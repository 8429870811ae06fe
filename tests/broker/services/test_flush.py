"""When the log is flushed: in intervals, and for replies, which may wait for more replies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import define, field

from rmqpy.broker.services.flush import ALONE_FIRST, ALONE_MAX, GroupCommitDelay, LogFlusher
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net.pending_replies import PendingReplies
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.testing.manual_scheduler import ManualScheduler


@define
class DirtyStore:
    """A store whose log always has something to flush, unless it is ``clean``."""

    clock: ManualScheduler
    clean: bool = False
    begun: list[int] = field(factory=list)

    @property
    def log(self) -> Any:
        return SimpleNamespace(acknowledged=lambda _wait: ())

    def flush_task(self) -> FlushTask | None:
        if self.clean:
            return None
        self.begun.append(self.clock.monotonic_ms())
        return FlushTask(PhysicalOffset(0))

    def flushed(self, offset: PhysicalOffset) -> None:
        pass


def flusher_of(store: Any, period_ms: int) -> LogFlusher:
    clock = store.clock
    gate: PendingReplies[Any] = PendingReplies(clock, lambda _reply, _status: b"", {})
    return LogFlusher(store, gate, clock, lambda: None, lambda: period_ms)


def test_an_interval_begins_when_a_flush_ends() -> None:
    store = DirtyStore(ManualScheduler(blocking_ms=7))
    flusher_of(store, 10).start()
    store.clock.advance(70)
    assert store.begun == [10, 27, 44, 61]


def test_intervals_continue_while_there_is_nothing_to_flush_and_end_with_the_stop() -> None:
    store = DirtyStore(ManualScheduler(), clean=True)
    flusher = flusher_of(store, 10)
    flusher.start()
    store.clock.advance(35)
    store.clean = False
    store.clock.advance(20)
    assert store.begun == [40, 50]
    stopped: list[bool] = []
    flusher.stop(lambda: stopped.append(True))
    store.clock.advance(50)
    assert store.begun == [40, 50] and stopped == [True] and store.clock.waiting == 0


def test_the_first_flush_does_not_wait() -> None:
    assert GroupCommitDelay().is_batch_full(1)


def test_a_flush_waits_for_all_replies_that_were_in_flight() -> None:
    delay = GroupCommitDelay()
    delay.flushed(256)
    assert not delay.is_batch_full(128) and not delay.is_batch_full(255)
    assert delay.is_batch_full(256)
    assert delay.is_batch_full(1), "it waits only once per flush"


def test_a_single_sender_is_flushed_at_once() -> None:
    delay = GroupCommitDelay()
    for _ in range(3):
        delay.flushed(1)
        assert delay.is_batch_full(1)


def test_flushes_that_waited_in_vain_make_waiting_rarer() -> None:
    delay = GroupCommitDelay()
    delay.flushed(2)
    alone = []
    for _ in range(8):
        assert not delay.is_batch_full(1)
        delay.on_timeout()
        delay.flushed(2)
        count = 0
        while delay.is_batch_full(1):
            count += 1
            delay.flushed(2)
        alone.append(count)
    assert alone[:2] == [ALONE_FIRST, 2 * ALONE_FIRST]
    assert alone == sorted(alone) and alone[-1] == ALONE_MAX


def test_returning_senders_are_waited_for_again() -> None:
    delay = GroupCommitDelay()
    delay.flushed(2)
    delay.on_timeout()
    for _ in range(ALONE_FIRST):
        delay.flushed(2)
        assert delay.is_batch_full(1)
    delay.flushed(2)
    assert not delay.is_batch_full(1) and delay.is_batch_full(2)
    delay.flushed(2)
    assert not delay.is_batch_full(1)
