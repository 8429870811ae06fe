"""The demo as a new user runs it, and its checks, which report every difference."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.config.loading import load_store_settings
from rmqpy.demo import DemoPlan, run_demo
from rmqpy.demo.cluster import DemoCluster
from rmqpy.demo.comparison import ClientMessageValue, Reading, compare
from rmqpy.demo.store_copy import QueueOnDisk, copy_store, detected_sizes, queues_on_disk
from rmqpy.demo.walkthrough import SECONDS_MAX
from rmqpy.demo.workload import SendWorkload
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.testing.ports import free_port_block

STEPS = (
    r"a master and its slave",
    r"rmqpy upgrade check: [1-9]\d* findings",
    r"rmqpy upgrade plan, apply: \d+ operations, 0 findings left",
    r"three members, n\d leads, dividedCommitlogOffset \d+; no send was acknowledged for [\d.]+ s",
    r"the leader is killed \(SIGKILL\): n\d leads",
    r"after the switch: CONTAINED; [1-9][\d,]* messages the same on all three, 0 missing",
    r"rmqpy upgrade leave: \d+ operations",
    r"after the way back: CONTAINED",
    r"master and slave again: [\d,]+ messages read, 0 lost, \d+ more sent",
    r"every earlier message reads the same after the switch",
    r"attempts refused meanwhile, 0 lost",
)


def assert_all_steps(printed: str) -> None:
    """Assert that the demo printed every step, in order."""
    position = 0
    for step in STEPS:
        found = re.compile(step).search(printed, position)
        assert found is not None, (step, printed)
        position = found.end()


@pytest.mark.slow
def test_the_demo_runs_on_a_new_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert run_demo(DemoPlan(keep=str(tmp_path)))
    assert time.monotonic() - started < SECONDS_MAX
    assert_all_steps(capsys.readouterr().out)
    certificate = Certificate.decode((tmp_path / "certificate.json").read_bytes())
    assert certificate.holds and len(certificate.subjects) == 4
    for member in ("n0", "n1", "n2"):
        assert len(list((tmp_path / member / "store/commitlog").iterdir())) >= 2


def test_the_brokers_of_the_demo_delete_nothing_on_a_nearly_full_disk(tmp_path: Path) -> None:
    cluster = DemoCluster(tmp_path, {"fileReservedTime": "1"})
    try:
        for member in ("n0", "n1", "n2"):
            settings = load_store_settings(str(tmp_path / member / "broker.conf"))
            assert not settings.clean_file_forcibly_enable
            assert settings.file_reserved_time > 24 * 365
    finally:
        cluster.close()


@pytest.mark.crash
@pytest.mark.parametrize("name", ["A-classic-killed-v497"])
def test_the_demo_runs_on_a_copy_of_a_java_store(
    name: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = golden(name) / "store"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    assert run_demo(DemoPlan(store=str(source)))
    assert_all_steps(capsys.readouterr().out)
    assert before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}, (
        "the original changed"
    )


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no directory commitlog"):
        run_demo(DemoPlan(store=str(tmp_path)))


def test_a_store_that_already_runs_dledger_is_refused(golden: Callable[[str], Path]) -> None:
    with pytest.raises(StoreError, match="already runs DLedger"):
        run_demo(DemoPlan(store=str(golden("C-upgraded-v497") / "n0")))


def test_a_keep_directory_that_has_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n0").mkdir()
    with pytest.raises(RmqError, match="exists already"):
        run_demo(DemoPlan(keep=str(tmp_path)))


def test_sizes_are_detected_from_the_files(golden: Callable[[str], Path]) -> None:
    assert detected_sizes(golden("A-classic-clean-v497") / "store") == {
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }


def test_a_copy_is_equal_and_sparse(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "commitlog").mkdir(parents=True)
    path = source / "commitlog" / ("0" * 20)
    with path.open("wb") as file:
        file.truncate(1 << 24)
        file.seek(1 << 20)
        file.write(b"x" * 5000)
    copied = copy_store(source, tmp_path / "b")
    copy = tmp_path / "b" / "commitlog" / path.name
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
    assert 5000 <= copied < 1 << 20


def test_every_queue_directory_is_listed(golden: Callable[[str], Path]) -> None:
    queues = queues_on_disk(golden("A-classic-clean-v497") / "store")
    assert [each for each in queues if each.topic == "Normal"] == [
        QueueOnDisk("Normal", queue_id) for queue_id in range(4)
    ]


VALUE = ClientMessageValue(100, 200, "id", "offset id", 1, 2, (("k", "v"),), b"body")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (evolve(VALUE, physical_offset=101), "physical_offset"),
        (evolve(VALUE, body_crc=9), "body_crc"),
        (evolve(VALUE, properties=()), "properties"),
        (evolve(VALUE, body=b"other"), "body"),
        (evolve(VALUE, msg_id="x"), "msg_id"),
    ],
)
def test_a_difference_is_named(changed: ClientMessageValue, named: str) -> None:
    before = Reading({("T", 0, 0): VALUE})
    after = Reading({("T", 0, 0): changed})
    result = compare(before, after, divided_offset=1000)
    assert not result.is_same
    assert result.differences == [f"T queue 0 offset 0: {named}"]


def test_a_missing_message_and_one_above_the_divided_offset_are_differences() -> None:
    before = Reading({("T", 0, 0): VALUE, ("T", 0, 1): evolve(VALUE, physical_offset=300)})
    after = Reading({("T", 0, 1): evolve(VALUE, physical_offset=300), ("T", 0, 2): VALUE})
    result = compare(before, after, divided_offset=250)
    assert result.differences == [
        "T queue 0 offset 0: missing",
        "T queue 0 offset 1: not below the divided offset",
    ]


def test_a_queue_that_can_no_longer_be_read_is_a_difference() -> None:
    before = Reading(closed=[("half", 0)])
    after = Reading(closed=[("half", 0), ("T", 1)])
    result = compare(before, after, divided_offset=1000)
    assert result.differences == ["T queue 1: can no longer be read"]


def test_the_table_counts_messages_on_both_sides_of_the_divided_offset() -> None:
    above = evolve(VALUE, physical_offset=1000)
    before = Reading({("T", 0, 0): VALUE})
    after = Reading({("T", 0, 0): VALUE, ("T", 0, 1): above, ("U", 3, 0): above}, lookups=2)
    result = compare(before, after, divided_offset=1000)
    assert result.is_same
    lines = [line.split() for line in result.table()]
    assert lines[1:4] == [
        ["topic", "before", "below", "above", "same"],
        ["T", "1", "1", "1", "1"],
        ["U", "0", "0", "1", "0"],
    ]
    assert " ".join(lines[-2]) == "2 of them also fetched by id and by key"
    assert " ".join(lines[-1]) == "every earlier message reads the same after the switch"


def test_the_table_lists_at_most_twenty_differences() -> None:
    before = Reading({("T", 0, offset): VALUE for offset in range(25)})
    lines = list(compare(before, Reading(), divided_offset=1000).table())
    assert lines[-1] == "25 differences"
    assert sum(line.startswith("DIFFERENT T queue 0 offset ") for line in lines) == 20


def test_waiting_for_acknowledgements_ends_with_the_error_of_the_sender() -> None:
    """A producer that cannot start must not leave the demo waiting for ever."""

    async def scenario() -> None:
        with pytest.raises(RmqError, match="name server"):
            async with SendWorkload(""):
                pass

    asyncio.run(scenario())


def test_waiting_for_acknowledgements_ends_if_nobody_answers() -> None:
    block = free_port_block()

    async def scenario() -> None:
        load = SendWorkload(f"127.0.0.1:{block.first}", stall_s=0.2)
        with pytest.raises(RmqError, match=r"acknowledged for 0\.2 s: found 0 of 20 messages"):
            async with load:
                pass
        assert len(asyncio.all_tasks()) == 1, "the sender has ended"

    asyncio.run(scenario())


def test_members_stop_when_their_key_indexes_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a member that was killed is built again in the background. If it stopped before
    the end, the certificate said DIFFERENT.
    """
    lags, done = iter([0, 300 << 20, 0, 0, 90 << 20, 0, 0, 1000, 0]), []

    async def note(_cluster: DemoCluster, *_members: str) -> None:
        done.append("level or stop")

    monkeypatch.setattr(DemoCluster, "_runtime", lambda *_: {"indexBehindBytes": next(lags)})
    monkeypatch.setattr(DemoCluster, "_fence", lambda _cluster: done.append("fence"))
    monkeypatch.setattr(DemoCluster, "level", note)
    monkeypatch.setattr(DemoCluster, "stop", note)
    cluster = DemoCluster(tmp_path, {})
    try:
        asyncio.run(cluster.stop_group())
    finally:
        cluster.close()
    assert done == ["fence", "level or stop", "level or stop"]
    assert list(lags) == []
