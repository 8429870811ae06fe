"""Requests that are refused because they waited too long, and the responses to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqpy.broker.base.scheduling import SLICE_MS
from rmqpy.broker.processors.fast_failure import NEVER_MS, FastFailure
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel


def sift(
    harness: BrokerHarness, waited_ms: int, *codes: int, flag: int = 0
) -> tuple[list[int], list[RemotingCommand]]:
    """Return the codes of the requests that are kept, and the responses to the others."""
    channel = MemoryChannel()
    commands = [RemotingCommand(code, number, flag) for number, code in enumerate(codes)]
    kept = harness.broker.fast_failure.sift(channel, commands, waited_ms)
    return [command.code for command in kept], channel.take()


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [(10, 200), (310, 200), (320, 200), (36, 200), (11, 5_000), (34, 31_000), (37, 3_000)],
)
def test_the_limits_of_java(harness: BrokerHarness, code: int, limit_ms: int) -> None:
    assert sift(harness, limit_ms - 1, code) == ([code], [])
    kept, (answer,) = sift(harness, limit_ms, code)
    assert (kept, answer.code) == ([], 2)
    assert answer.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {limit_ms}ms, size of queue: 1"
    )


def test_other_requests_are_never_too_old(harness: BrokerHarness) -> None:
    kept, answers = sift(harness, 60_000, 15, 310, 28, 41)
    assert kept == [15, 28, 41]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 2)]
    assert sift(harness, 60_000, 310, flag=2) == ([], []), "a one-way request is not answered"
    assert sift(harness, 60_000, 11, flag=1) == ([11], []), "a response of a client"


@pytest.mark.slow
def test_the_settings_take_effect_at_once(build: BuildBroker) -> None:
    harness = build(broker_fast_failure_enable=False)
    assert harness.broker.fast_failure.patience_ms == NEVER_MS
    assert sift(harness, 60_000, 310) == ([310], [])
    harness = build(wait_time_mills_in_send_queue=7)
    assert harness.broker.fast_failure.patience_ms == 7
    assert sift(harness, 7, 310)[0] == []


class OneTurn(ManualScheduler):
    """A loop in one turn, whose time passes; the callbacks of the next turn wait."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(SLICE_MS * 100, callback)


def test_refusing_takes_a_slice_of_a_turn(harness: BrokerHarness) -> None:
    """All servers of the process share it, whatever the numbers of their own turns."""
    loop = OneTurn()
    sieve = FastFailure(harness.broker.identity, harness.store.appender, loop)
    main, fast = MemoryChannel(), MemoryChannel()
    command = RemotingCommand(310, 1)
    assert sieve.sift(main, [command], 300) == []
    loop.advance(SLICE_MS)
    for channel in (fast, main, fast):
        assert sieve.sift(channel, [command], 300) == [command]
    loop.advance(SLICE_MS * 100)
    assert sieve.sift(fast, [command], 300) == []
    assert sieve.refused == 2


def make_write_slow(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Let one write of the log, which stores a message, take this long."""
    commit = harness.store.log.commit

    def slow() -> None:
        commit()
        harness.scheduler._monotonic_ms += ms

    with monkeypatch.context() as patched:
        patched.setattr(harness.store.log, "commit", slow)
        assert harness.send(b"slow").code == 0


def test_sends_that_wait_during_a_slow_write_are_refused(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = build(os_page_cache_busy_time_out_mills=300)
    assert sift(harness, 199, 310, 11) == ([310, 11], [])
    make_write_slow(harness, monkeypatch, 301)
    assert harness.broker.fast_failure.patience_ms == 1
    kept, answers = sift(harness, 199, 10, 310, 320, 36, 37, 11, 34, 324)
    assert kept == [37, 11, 34, 324]
    assert [answer.code for answer in answers] == [2] * 4
    assert {answer.remark for answer in answers} == {
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 199ms, size of queue: 8"
    }
    assert sift(harness, 199, 310, flag=1) == ([310], []), "a response of a client"
    (answer,) = sift(harness, 200, 310)[1]
    assert (answer.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]")
    harness.broker.server.turn_ended()
    assert harness.broker.fast_failure.patience_ms == 200
    assert sift(harness, 199, 310) == ([310], [])


@pytest.mark.parametrize("fast_failure", [True, False])
def test_sends_that_arrive_after_a_slow_write_are_rejected(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch, fast_failure: bool
) -> None:
    harness = build(os_page_cache_busy_time_out_mills=300, broker_fast_failure_enable=fast_failure)
    make_write_slow(harness, monkeypatch, 301)
    if not fast_failure:
        assert sift(harness, 60_000, 310) == ([310], [])
    codes = (10, 310, 320, 36, 37)
    channel = MemoryChannel()
    harness.broker.server.handle(
        channel, [RemotingCommand(code, number) for number, code in enumerate(codes)]
    )
    rejected = [answer for answer in channel.take() if answer.code == 2]
    assert [answer.opaque for answer in rejected] == [0, 1, 2, 3]
    assert {answer.remark for answer in rejected} == {
        "[REJECTREQUEST]system busy, start flow control for a while"
    }
    harness.broker.server.turn_ended()
    assert harness.send(b"after").code == 0
