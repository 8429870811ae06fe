"""Which requests are refused for their age, and what their senders are told."""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.broker.base.scheduling import SLICE_MS
from rmqpy.broker.processors.fast_failure import NEVER_MS
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel


def sift(
    kit: BrokerHarness, waited_ms: int, *codes: int, flag: int = 0
) -> tuple[list[int], list[Any]]:
    """The codes that are left, and the answers."""
    channel = MemoryChannel()
    commands = [RemotingCommand(code, number, flag) for number, code in enumerate(codes)]
    kept = kit.broker.fast_failure.sift(channel, commands, waited_ms, kit.broker.server.turn_number)
    return [command.code for command in kept], channel.take()


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [(10, 200), (310, 200), (320, 200), (36, 200), (11, 5_000), (34, 31_000), (37, 3_000)],
)
def test_the_limits_of_java(kit: BrokerHarness, code: int, limit_ms: int) -> None:
    assert sift(kit, limit_ms - 1, code) == ([code], [])
    kept, (answer,) = sift(kit, limit_ms, code)
    assert (kept, answer.code) == ([], 2)
    assert answer.remark == (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {limit_ms}ms, size of queue: 1"
    )


def test_others_wait_as_long_as_they_must(kit: BrokerHarness) -> None:
    kept, answers = sift(kit, 60_000, 15, 310, 28, 41)
    assert kept == [15, 28, 41]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 2)]
    assert sift(kit, 60_000, 310, flag=2) == ([], []), "who asked one way is not answered"
    assert sift(kit, 60_000, 11, flag=1) == ([11], []), "an answer of a client's"


@pytest.mark.slow
def test_the_settings_are_followed_at_once(build: BuildBroker) -> None:
    kit = build(broker_fast_failure_enable=False)
    assert kit.broker.fast_failure.patience_ms == NEVER_MS
    assert sift(kit, 60_000, 310) == ([310], [])
    kit = build(wait_time_mills_in_send_queue=7)
    assert kit.broker.fast_failure.patience_ms == 7
    assert sift(kit, 7, 310)[0] == []


def test_refusing_takes_a_slice_of_a_turn(kit: BrokerHarness) -> None:
    assert sift(kit, 300, 310)[0] == []
    kit.scheduler.advance(SLICE_MS)
    assert sift(kit, 300, 310)[0] == [310]
    kit.broker.server.turn_ended()
    assert sift(kit, 300, 310)[0] == []
    assert kit.broker.fast_failure.refused == 2


def make_write_slow(kit: BrokerHarness, monkeypatch: Any, ms: int) -> None:
    """The next write of the log takes so long; it stores one message."""
    commit = kit.store.log.commit

    def slow() -> None:
        commit()
        kit.scheduler._monotonic_ms += ms

    with monkeypatch.context() as patched:
        patched.setattr(kit.store.log, "commit", slow)
        assert kit.send(b"slow").code == 0


def test_sends_that_wait_behind_a_slow_write_are_refused(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = build(os_page_cache_busy_time_out_mills=300)
    assert sift(kit, 199, 310, 11) == ([310, 11], [])
    make_write_slow(kit, monkeypatch, 301)
    assert kit.broker.fast_failure.patience_ms == 1
    kept, answers = sift(kit, 199, 10, 310, 320, 36, 37, 11, 34, 324)
    assert kept == [37, 11, 34, 324]
    assert [answer.code for answer in answers] == [2] * 4
    assert {answer.remark for answer in answers} == {
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 199ms, size of queue: 8"
    }
    assert sift(kit, 199, 310, flag=1) == ([310], []), "an answer of a client's"
    (answer,) = sift(kit, 200, 310)[1]
    assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]")
    kit.broker.server.turn_ended()
    assert kit.broker.fast_failure.patience_ms == 200
    assert sift(kit, 199, 310) == ([310], [])


@pytest.mark.parametrize("fast_failure", [True, False])
def test_sends_that_come_behind_a_slow_write_are_rejected(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch, fast_failure: bool
) -> None:
    kit = build(os_page_cache_busy_time_out_mills=300, broker_fast_failure_enable=fast_failure)
    make_write_slow(kit, monkeypatch, 301)
    if not fast_failure:
        assert sift(kit, 60_000, 310) == ([310], [])
    codes = (10, 310, 320, 36, 37)
    channel = MemoryChannel()
    kit.broker.server.handle(
        channel, [RemotingCommand(code, number) for number, code in enumerate(codes)]
    )
    rejected = [answer for answer in channel.take() if answer.code == 2]
    assert [answer.opaque for answer in rejected] == [0, 1, 2, 3]
    assert {answer.remark for answer in rejected} == {
        "[REJECTREQUEST]system busy, start flow control for a while"
    }
    kit.broker.server.turn_ended()
    assert kit.send(b"after").code == 0
