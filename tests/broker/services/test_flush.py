"""Group commit: whether a flush waits for company."""

from __future__ import annotations

from rmqpy.broker.services.flush import ALONE_FIRST, ALONE_MAX, GroupCommitDelay


def test_the_first_flush_waits_for_nobody() -> None:
    assert GroupCommitDelay().is_batch_full(1)


def test_all_who_were_on_the_way_are_waited_for() -> None:
    company = GroupCommitDelay()
    company.flushed(256)
    assert not company.is_batch_full(128) and not company.is_batch_full(255)
    assert company.is_batch_full(256)
    assert company.is_batch_full(1), "only once a flush"


def test_who_sends_alone_is_flushed_at_once() -> None:
    company = GroupCommitDelay()
    for _ in range(3):
        company.flushed(1)
        assert company.is_batch_full(1)


def test_waiting_in_vain_is_done_ever_more_seldom() -> None:
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


def test_company_that_comes_again_is_waited_for_again() -> None:
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
