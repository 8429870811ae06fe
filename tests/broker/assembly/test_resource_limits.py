"""The warning before the system refuses more consume queues."""

from __future__ import annotations

import logging

import pytest

from rmqpy.broker.assembly import resource_limits
from rmqpy.broker.assembly.resource_limits import QueueLimitWarning, SystemLimits
from rmqpy.testing.harness import BuildBroker


@pytest.mark.parametrize(
    ("limits", "queues", "expected"),
    [
        (SystemLimits(65_530, 1_048_576), 50_000, None),
        (SystemLimits(65_530, 1_048_576), 52_424, "52424 of the 65530 mappings"),
        (SystemLimits(None, 100_000), 79_999, None),
        (SystemLimits(None, 100_000), 80_000, "80000 of the 100000 open files"),
        (SystemLimits(None, None), 10_000_000, None),
    ],
)
def test_the_limit_that_is_reached_first_is_named(
    limits: SystemLimits,
    queues: int,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_limits, "DESCRIPTORS_OF_QUEUE", 1)
    text = limits.warning(queues)
    assert (text is None) == (expected is None)
    assert text is None or (expected is not None and expected in text)


def test_the_warning_is_repeated_after_a_tenth_more(caplog: pytest.LogCaptureFixture) -> None:
    warning = QueueLimitWarning(SystemLimits(100, None))
    for count in (79, 80, 81, 87, 88, 88, 96, 97):
        warning.check(count)
    assert [text.split()[0] for text in caplog.messages] == ["80", "88", "97"]


def test_descriptors_do_not_limit_queues_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "DESCRIPTORS_OF_QUEUE", 0)
    assert SystemLimits(None, 1000).warning(100_000) is None


def test_a_process_knows_its_limits() -> None:
    limits = SystemLimits.read()
    assert limits.mappings is None or limits.mappings > 1000
    assert limits.descriptors is None or limits.descriptors > 10


def test_a_broker_checks_when_it_starts_and_later(
    build: BuildBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemLimits, "read", lambda: SystemLimits(4, None))
    harness = build()
    caplog.set_level(logging.WARNING)
    for queue_id in range(4):
        harness.send(queue_id=queue_id)
    assert "need" not in caplog.text
    harness.scheduler.advance(61_000)
    assert "4 consume queues in use need 4 of the 4 mappings" in caplog.text
