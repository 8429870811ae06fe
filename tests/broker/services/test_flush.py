"""Group commit: whether a flush waits for more replies."""

from __future__ import annotations

from rmqpy.broker.services.flush import ALONE_FIRST, ALONE_MAX, GroupCommitDelay


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
