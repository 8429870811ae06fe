"""The scheduler of virtual time, and the channel that keeps frames in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.testing.manual_scheduler import START_MS, ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel


def test_callbacks_run_when_due_and_in_the_order_of_their_calls() -> None:
    scheduler = ManualScheduler()
    ran: list[tuple[str, int, int]] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: ran.append((name, scheduler.monotonic_ms(), scheduler.now_ms() - START_MS))

    scheduler.call_later(20, note("late"))
    scheduler.call_later(10, note("b"))
    scheduler.call_later(10, note("c"))
    scheduler.call_soon(note("a"))
    scheduler.call_later(5, note("never")).cancel()
    assert (scheduler.waiting, scheduler.next_due_ms) == (4, 0)
    scheduler.run_until_idle()
    assert ran == [("a", 0, 0)]
    scheduler.advance(19)
    assert ran[1:] == [("b", 10, 10), ("c", 10, 10)]
    assert scheduler.monotonic_ms() == 19
    scheduler.jump_wall_clock(-1000)
    scheduler.advance(1)
    assert ran[3:] == [("late", 20, -980)]
    assert scheduler.next_due_ms is None


def test_a_callback_added_by_a_callback_runs_in_the_same_advance_if_due() -> None:
    scheduler = ManualScheduler()
    ran: list[int] = []

    def again() -> None:
        ran.append(scheduler.monotonic_ms())
        scheduler.call_later(10, again)

    again()
    scheduler.advance(35)
    assert ran == [0, 10, 20, 30]


def test_blocking_work_takes_virtual_time_and_passes_on_its_error() -> None:
    scheduler = ManualScheduler(blocking_ms=3)
    seen: list[tuple[int | None, str | None]] = []

    def done(result: int | None, error: BaseException | None) -> None:
        seen.append((result, str(error) if error is not None else None))

    def fails() -> int:
        raise OSError("EIO")

    scheduler.run_blocking(lambda: 7, done)
    scheduler.run_blocking(fails, done)
    scheduler.advance(2)
    assert seen == []
    scheduler.advance(1)
    assert seen == [(7, None), (None, "EIO")]


def test_a_failing_callback_reaches_the_test() -> None:
    def fails() -> None:
        raise OSError("EIO")

    scheduler = ManualScheduler()
    scheduler.call_soon(fails)
    with pytest.raises(OSError, match="EIO"):
        scheduler.run_until_idle()


def test_a_channel_keeps_frames_and_commands() -> None:
    channel = MemoryChannel()
    first = encode_command(RemotingCommand(1, 5, body=b"x"))
    second = encode_command(RemotingCommand(2, 6, serialize_type=1))
    channel.write(memoryview(first + second))
    assert channel.written == [first, second]
    assert [each.opaque for each in channel.take()] == [5, 6]
    assert channel.take() == []
    with pytest.raises(AssertionError, match="complete frames"):
        channel.write(first[:-1])
    channel.close()
    channel.write(first)
    assert channel.take() == []
