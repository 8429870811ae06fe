"""The limits of the system that a broker names before it reaches them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.broker.assembly import resource_limits
from rmqpy.broker.assembly.resource_limits import (
    Demand,
    Limit,
    ResourceLimits,
    SystemLimits,
    Usage,
    limits_of,
)
from rmqpy.testing.harness import BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler

SMALL = Demand(
    log_files=2,
    log_bytes=2 << 30,
    connections=20_000,
    buffered_bytes=64 << 20,
    next_bytes=2 << 30,
    free_bytes=100 << 30,
)


def found(limits: SystemLimits, usage: Usage, demand: Demand = SMALL) -> dict[str, Limit]:
    return {limit.name: limit for limit in limits_of(limits, usage, demand)}


@pytest.mark.parametrize(
    ("limits", "usage", "near"),
    [
        (SystemLimits(mappings=65_530), Usage(mappings=52_423), set()),
        (SystemLimits(mappings=65_530), Usage(mappings=52_424), {"mappings"}),
        (SystemLimits(descriptors=1_000), Usage(descriptors=800), {"descriptors"}),
        (SystemLimits(memory=1 << 30), Usage(memory=900 << 20), {"memory"}),
        (SystemLimits(address_space=8 << 30), Usage(address_space=7 << 30), {"address_space"}),
        (SystemLimits(), Usage(10**6, 10**6, 1 << 40, 1 << 50), set()),
    ],
)
def test_a_limit_is_near_at_80_percent(limits: SystemLimits, usage: Usage, near: set[str]) -> None:
    assert {name for name, limit in found(limits, usage).items() if limit.is_near} == near


def test_free_disk_space_must_suffice_for_the_next_files() -> None:
    assert not found(SystemLimits(), Usage())["disk"].is_near
    full = evolve(SMALL, free_bytes=2_500 << 20)
    assert found(SystemLimits(), Usage(), full)["disk"].is_near


def test_what_files_and_settings_may_need_is_known_before_it_is_used() -> None:
    limits = SystemLimits(1_000, 1_024, 64 << 20, 1 << 30)
    demand = evolve(SMALL, log_files=990)
    short = {
        name: limit.needed
        for name, limit in found(limits, Usage(20, 10, 30 << 20, 100 << 20), demand).items()
        if limit.needed > limit.maximum
    }
    assert short == {
        "mappings": 1_010,
        "descriptors": 990 + 64 + 1_000,
        "memory": (30 + 64) << 20,
        "address_space": (2 << 30) + (100 << 20),
    }


def test_the_smallest_limit_of_memory_counts(tmp_path: Path) -> None:
    groups = tmp_path / "proc/self/cgroup"
    groups.parent.mkdir(parents=True)
    groups.write_text("4:memory:/service/broker\n1:cpu:/\n0::/unified\n")
    mount = tmp_path / "sys/fs/cgroup"
    for path, text in (
        ("memory/service/broker/memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory/service/memory.limit_in_bytes", f"{300 << 20}\n"),
        ("unified/memory.max", "max\n"),
        ("memory.max", f"{200 << 20}\n"),
    ):
        (mount / path).parent.mkdir(parents=True, exist_ok=True)
        (mount / path).write_text(text)
    assert SystemLimits.read(str(tmp_path)).memory == 200 << 20
    (mount / "memory.max").unlink()
    assert SystemLimits.read(str(tmp_path)).memory == 300 << 20


def test_a_process_knows_its_limits_and_what_it_uses() -> None:
    limits, usage = SystemLimits.read(), Usage.read()
    if usage == Usage():
        pytest.skip("no /proc/self")
    assert limits.mappings is None or 0 < usage.mappings < limits.mappings
    assert limits.descriptors is None or 0 < usage.descriptors < limits.descriptors
    assert limits.memory is not None and 0 < usage.memory < limits.memory
    assert usage.address_space > usage.memory


def test_a_warning_is_repeated_after_a_tenth_more_and_after_a_relief(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualScheduler()
    limits = ResourceLimits(clock, lambda: SMALL)
    monkeypatch.setattr(SystemLimits, "read", lambda: SystemLimits(mappings=100))
    warned = []
    for count in (79, 80, 81, 87, 88, 88, 97, 60, 80):
        monkeypatch.setattr(Usage, "read", lambda count=count: Usage(mappings=count))
        caplog.clear()
        limits.check()
        clock.run_until_idle()
        warned += [count for text in caplog.messages if f"mappings: {count} of 100" in text]
    assert warned == [80, 88, 97, 80]
    assert [limit.used for limit in limits.found if limit.name == "mappings"] == [80]


def test_a_shortage_is_named_once_at_the_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualScheduler()
    limits = ResourceLimits(clock, lambda: SMALL)
    monkeypatch.setattr(SystemLimits, "read", lambda: SystemLimits(descriptors=1_024))
    monkeypatch.setattr(Usage, "read", lambda: Usage(descriptors=20))
    for _ in range(2):
        limits.check()
        clock.run_until_idle()
    [text] = caplog.messages
    assert "descriptors: 20 of 1024 in use, 1066 may be needed" in text
    assert "LimitNOFILE" in text


def test_a_broker_measures_when_it_starts_and_each_minute(
    build: BuildBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemLimits, "read", lambda: SystemLimits(descriptors=100))
    monkeypatch.setattr(Usage, "read", lambda: Usage(descriptors=5))
    harness = build()
    harness.scheduler.run_until_idle()
    assert [limit.used for limit in harness.broker.limits.found if limit.name != "disk"] == [5]
    caplog.set_level(logging.WARNING)
    caplog.clear()
    harness.scheduler.advance(61_000)
    assert "limit of the system" not in caplog.text
    monkeypatch.setattr(Usage, "read", lambda: Usage(descriptors=90))
    harness.scheduler.advance(resource_limits.CHECK_PERIOD_MS)
    assert "near a limit of the system: descriptors: 90 of 100 in use" in caplog.text
    assert "ulimit" in caplog.text
