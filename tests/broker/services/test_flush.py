"""Group commit: whether a flush waits for company."""

from __future__ import annotations

from rmqpy.broker.services.flush import ALONE_FIRST, ALONE_MAX, GroupCommitDelay


def test_the_first_flush_does_not_wait() -> None:
    assert GroupCommitDelay().is_batch_full(1)


def test_a_flush_waits_for_all_replies_that_were_in_flight() -> None:
    company = GroupCommitDelay()
    company.flushed(256)
    assert not company.is_batch_full(128) and not company.is_batch_full(255)
    assert company.is_batch_full(256)
    assert company.is_batch_full(1), "only once a flush"


def test_a_single_sender_is_flushed_at_once() -> None:
    company = GroupCommitDelay()
    for _ in range(3):
        company.flushed(1)
        assert company.is_batch_full(1)


def test_flushes_that_waited_in_vain_make_waiting_rarer() -> None:
    company = GroupCommitDelay()
    company.flushed(2)
    alone = []
    for _ in range(8):
        assert not company.is_batch_full(1)
        company.on_timeout()
        company.flushed(2)
        count = 0
        while company.is_batch_full(1):
            count += 1
            company.flushed(2)
        alone.append(count)
    assert alone[:2] == [ALONE_FIRST, 2 * ALONE_FIRST]
    assert alone == sorted(alone) and alone[-1] == ALONE_MAX


def test_returning_senders_are_waited_for_again() -> None:
    company = GroupCommitDelay()
    company.flushed(2)
    company.on_timeout()
    for _ in range(ALONE_FIRST):
        company.flushed(2)
        assert company.is_batch_full(1)
    company.flushed(2)
    assert not company.is_batch_full(1) and company.is_batch_full(2)
    company.flushed(2)
    assert not company.is_batch_full(1)
