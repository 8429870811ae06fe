"""Virtual time and the remembering channel."""

from __future__ import annotations

import pytest

from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.testing.manual_scheduler import START_MS, ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel


def test_callbacks_run_at_their_time_and_in_their_order() -> None:
    scheduler = ManualScheduler()
    ran = []

    def note(name):
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


def test_what_a_callback_adds_runs_in_the_same_advance_when_it_falls_due() -> None:
    scheduler = ManualScheduler()
    ran = []

    def again():
        ran.append(scheduler.monotonic_ms())
        scheduler.call_later(10, again)

    again()
    scheduler.advance(35)
    assert ran == [0, 10, 20, 30]


def test_blocking_work_takes_virtual_time_and_hands_on_its_error() -> None:
    scheduler = ManualScheduler(blocking_ms=3)
    seen = []

    def fails():
        raise OSError("EIO")

    scheduler.run_blocking(lambda: 7, lambda result, error: seen.append((result, error)))
    scheduler.run_blocking(fails, lambda result, error: seen.append((result, str(error))))
    scheduler.advance(2)
    assert seen == []
    scheduler.advance(1)
    assert seen == [(7, None), (None, "EIO")]


def test_a_failing_callback_reaches_the_test() -> None:
    scheduler = ManualScheduler()
    scheduler.call_soon(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
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
