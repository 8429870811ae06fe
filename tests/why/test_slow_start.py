"""``rmqpy why slow-start``: what a start has to read and rebuild."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.store import StoreRig
from why.conftest import LiveBroker, Ran

from rmqpy.store.files.disk import OsFileSystem
from rmqpy.why.gathering.start import start_of_directory
from rmqpy.why.questions.slow_start import StartFacts, explain_slow_start
from rmqpy.why.sources.directory import StoreDirectorySource

GIB = 1 << 30


def facts(**fields: Any) -> StartFacts:
    values: dict[str, Any] = {
        "subject": "store",
        "target": "store",
        "running": False,
        "settings": {},
        "settings_from": "broker.conf",
    }
    return StartFacts(**(values | fields))


CASES = {
    "unclean": (facts(clean=False, scan_java=GIB), "the last stop was unclean: the log is read"),
    "big files": (facts(scan_java=3 * GIB), "the last three files of the log are read: 3.0 GiB"),
    "queues lag": (facts(dispatch_rmqpy=GIB), "the consume queues end 1.0 GiB before the log"),
    "no queue": (facts(missing_queues=("Orders",)), "1 topic of topics.json with messages"),
    "rebuilds": (facts(rebuilds=2), "2 consume queues are cut and rebuilt"),
    "index": (facts(lost_index_files=1, lost_index_bytes=GIB), "1 index file (1.0 GiB) may be"),
    "many files": (facts(queue_files=20_000, queue_count=9), "20000 consume queue files of 9"),
    "warm": (facts(settings={"warmMapedFileEnable": "true"}), "a Java broker touches every page"),
    "pool": (facts(settings={"transientStorePoolEnable": "true"}), "a Java broker allocates"),
    "half done": (facts(unfinished="applying"), "an upgrade is half done (applying)"),
    "tail": (facts(tail="9 bytes after 4 are junk"), "the log does not end cleanly"),
    "behind": (facts(is_live=True, behind_bytes=GIB), "the start is still under way: 1.0 GiB"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(case: str) -> None:
    known, expected = CASES[case]
    assert explain_slow_start(known).causes[0].text.startswith(expected)


def test_the_most_work_comes_first() -> None:
    known = facts(clean=False, scan_java=GIB, lost_index_files=1, lost_index_bytes=3 * GIB)
    assert "index file" in explain_slow_start(known).causes[0].text


def test_many_mapped_files_near_the_limit_are_named() -> None:
    text = explain_slow_start(facts(queue_files=60_000, map_limit=65_530)).causes[0]
    assert "Java keeps all of them mapped: its start fails when the limit of mappings" in text.text
    assert text.next[-1].startswith("for Java: sysctl vm.max_map_count")


def test_the_time_of_reading_is_given_if_it_is_known() -> None:
    known = facts(clean=False, scan_java=3 * GIB, scan_rmqpy=1 << 20, bytes_per_second=1 << 26)
    answer = explain_slow_start(known)
    expected = "(by Java 3.0 GiB, 48 s; by rmqpy 1.0 MiB, less than 1 s)"
    assert expected in answer.causes[0].text
    assert ("reading", "64.0 MiB a second, measured now") in answer.facts
    unknown = explain_slow_start(facts(clean=False, scan_java=3 * GIB))
    assert "by Java 3.0 GiB;" in unknown.causes[0].text


def test_the_rate_is_measured_at_the_end_of_the_log(tmp_path: Path) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path), changes=dict(mapped_file_size_commit_log=8 << 20))
    store = rig.open()
    for number in range(50):
        rig.put(store, number, body=bytes(100_000))
    store.shutdown()
    times = iter((10.0, 12.0))
    source = StoreDirectorySource(OsFileSystem(), str(tmp_path))
    found = start_of_directory(source, 0, lambda: next(times))
    assert found.bytes_per_second == found.log_end / 2


# -- stores of Java


def test_a_clean_store_has_no_cause(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run("why", "slow-start", store_of("C-upgraded-v497/n0"))
    assert ran.code == 2 and "the next start has nothing to repair" in ran.out


def test_a_killed_broker_left_abort(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run("why", "slow-start", store_of("A-classic-killed-v497"), "--format", "json")
    assert ran.code == 0
    assert ran.json["answer"].startswith("the last stop was unclean")
    assert "abort exists" in ran.json["causes"][0]["evidence"]


def test_a_damaged_checkpoint_makes_java_read_everything(
    copy_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = copy_of("A-classic-killed-v497")
    before = run("why", "slow-start", store, "--format", "json")
    (store / "checkpoint").write_bytes(b"x")
    after = run("why", "slow-start", store, "--format", "json")
    evidence = after.json["causes"][0]["evidence"]
    assert any("Java reads the whole log" in text for text in evidence)
    assert f"Java reads from commitlog/{0:020d} on" in evidence
    assert f"Java reads from commitlog/{0:020d} on" not in before.json["causes"][0]["evidence"]


def test_lost_consume_queues_are_derived_again(
    copy_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = copy_of("A-classic-clean-v497")
    shutil.rmtree(store / "consumequeue")
    ran = run("why", "slow-start", store)
    assert ran.code == 0 and "before the log: a start derives the rest from the log" in ran.out


@pytest.mark.slow
def test_a_running_broker_reports_what_it_has_to_dispatch(
    live: LiveBroker, run: Callable[..., Ran]
) -> None:
    ran = run("why", "slow-start", live.address)
    assert ran.code == 2
    assert "dispatch: the consume queues have everything that is in the log" in ran.out
