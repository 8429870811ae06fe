"""``rmqpy why not-deleted``: one case for each rule of retention."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from why.conftest import LiveBroker, Ran

from rmqpy.why.answer import Certainty
from rmqpy.why.questions.not_deleted import explain_not_deleted
from rmqpy.why.questions.retention_facts import (
    HOUR_MS,
    DiskFacts,
    LogFileFacts,
    RetentionFacts,
)
from rmqpy.why.sources.interface import DeletedFile
from rmqpy.why.sources.process import configuration_of_process, deleted_files

NOON = datetime(2026, 3, 15, 12)
NOW_MS = round(NOON.timestamp() * 1000)
DAY_MS = 24 * HOUR_MS


def file(days: float, *, stored_days: float | None = None, end: int = 4096) -> LogFileFacts:
    """Return a file that was modified ``days`` ago and whose last message was stored then, or
    ``stored_days`` ago.
    """
    stored = days if stored_days is None else stored_days
    return LogFileFacts(
        name=f"commitlog/{end - 4096:020d}",
        size=4096,
        end_offset=end,
        mtime_ms=NOW_MS - round(days * DAY_MS),
        last_ms=NOW_MS - round(stored * DAY_MS),
    )


YOUNG, OLD, NEWEST = file(1), file(5), file(0, end=8192)


def facts(oldest: LogFileFacts = OLD, used: float = 0.4, **fields: Any) -> RetentionFacts:
    values: dict[str, Any] = {
        "subject": "store",
        "target": "store",
        "is_live": False,
        "running": True,
        "now_ms": NOW_MS,
        "settings": {"fileReservedTime": "72", "deleteWhen": "04"},
        "settings_from": "broker.conf",
        "classic": (oldest, NEWEST),
        "disks": (DiskFacts("store", used),),
        "held": (),
    }
    given = dict(fields)
    values["settings"] = {**values["settings"], **given.pop("settings", {})}
    return RetentionFacts(**(values | given))


CASES = {
    "stopped": (facts(running=False), "no broker runs on the directory"),
    "only file": (facts(classic=(OLD,)), "commitlog/00000000000000000000 is the only file"),
    "not expired": (facts(YOUNG), "commitlog/00000000000000000000 is not expired"),
    "touched": (
        facts(file(1, stored_days=9)),
        "commitlog/00000000000000000000 was modified 8 d after its last message: something touched",
    ),
    "sealed by the switch": (
        facts(classic=(file(1, stored_days=9),), ledger=(NEWEST,)),
        "commitlog/00000000000000000000 was modified 8 d after its last message: the switch",
    ),
    "clock": (facts(file(-2)), "commitlog/00000000000000000000 was modified in the future"),
    "hour": (
        facts(OLD),
        "1 file expired, commitlog/00000000000000000000 first, but expired files are deleted in"
        " the hours 04 only, next at 2026-03-16 04:00:00",
    ),
    "the queues lag": (
        facts(OLD, queues_to=100, settings={"deleteWhen": "12"}),
        "the consume queues on disk cover the log up to 100 only",
    ),
    "a removal failed": (
        facts(OLD, failure="x: permission denied", settings={"deleteWhen": "12"}),
        "a removal failed: x: permission denied",
    ),
    "held open": (
        facts(classic=(), held=(DeletedFile("store/commitlog/0", 1 << 30),)),
        "1.0 GiB are not free yet: the broker's process still has deleted files open",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_proven(case: str) -> None:
    known, expected = CASES[case]
    first = explain_not_deleted(known).causes[0]
    assert first.certainty is Certainty.PROVEN
    assert first.text.startswith(expected), first.text


def texts(known: RetentionFacts) -> list[str]:
    return [cause.text for cause in explain_not_deleted(known).causes]


def test_a_disk_above_75_percent_deletes_expired_files_only() -> None:
    young = texts(facts(YOUNG, used=0.8))
    assert any("only *expired* files are deleted" in text for text in young)
    assert not any("only *expired*" in text for text in texts(facts(YOUNG, used=0.7)))


def test_a_nearly_full_disk_deletes_files_of_any_age_unless_that_is_off() -> None:
    off = texts(facts(YOUNG, used=0.88, settings={"cleanFileForciblyEnable": "false"}))
    assert any("but that is switched off" in text for text in off)
    forced = explain_not_deleted(facts(YOUNG, used=0.88)).causes
    assert not any("not expired" in cause.text for cause in forced)
    assert all(cause.certainty is Certainty.POSSIBLE for cause in forced)


def test_due_files_that_are_still_there_have_possible_causes_only() -> None:
    causes = explain_not_deleted(facts(OLD, settings={"deleteWhen": "4;12"})).causes
    assert [cause.certainty for cause in causes] == [Certainty.POSSIBLE] * 3
    assert any(
        "destroyMapedFileIntervalForcibly" in text for cause in causes for text in [cause.text]
    )


def test_a_dledger_file_is_kept_an_hour_longer_and_not_while_old_files_exist() -> None:
    just = file(73 / 24 - 0.001)
    assert "not expired" in texts(facts(classic=(), ledger=(just, NEWEST)))[0]
    assert "expired files are deleted in" in texts(facts(classic=(just, NEWEST)))[0]
    joined = texts(facts(classic=(just,), ledger=(NEWEST,)))
    assert any("while files of the old commit log exist" in text for text in joined)


def test_a_broker_reports_no_times_so_expiry_is_proven_only_if_it_is_too_early() -> None:
    unknown = evolve(OLD, mtime_ms=-1, last_ms=-1)
    live = {"is_live": True, "first_ms": NOW_MS - DAY_MS}
    early = explain_not_deleted(facts(unknown, **live)).causes[0]
    assert early.certainty is Certainty.PROVEN and "is not expired before" in early.text
    late = explain_not_deleted(facts(unknown, **(live | {"first_ms": 1}))).causes[0]
    assert late.certainty is Certainty.POSSIBLE


# -- stores of Java


def test_a_touched_file_of_a_real_store_is_found(
    copy_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = copy_of("A-classic-clean-v497")
    now_s = datetime.now().timestamp()
    oldest = store / "commitlog" / f"{0:020d}"
    stored_s = float(oldest.stat().st_mtime)
    os.utime(oldest, (now_s, max(now_s, stored_s + 7200)))
    ran = run("why", "not-deleted", store, "--format", "json")
    answers = [cause["text"] for cause in ran.json["causes"]]
    assert any("after its last message: something touched it" in text for text in answers)
    assert ran.code == 0 and ran.json["not_examined"]


@pytest.mark.slow
def test_a_running_broker_answers_from_its_directory_and_over_the_network(
    live: LiveBroker, run: Callable[..., Ran]
) -> None:
    oldest = live.store / "commitlog" / f"{0:020d}"
    old_s = datetime.now().timestamp() - 30 * 86_400
    os.utime(oldest, (old_s, old_s))
    ran = run("why", "not-deleted", live.store, "--format", "json")
    assert "fileReservedTime=72" in str(ran.json["facts"])
    assert "broker.conf" in str(ran.json["facts"])  # found by the process of the broker
    assert "no broker runs" not in ran.out
    asked = run("why", "not-deleted", live.address, "--format", "json")
    assert asked.json["subject"] == live.address
    assert "the times of the files" in str(asked.json["not_examined"])


@pytest.mark.slow
def test_a_process_shows_its_configuration_and_deleted_files(
    live: LiveBroker, tmp_path: Path
) -> None:
    path = configuration_of_process(live.process)
    assert path is not None and path.endswith("broker.conf")
    with open(tmp_path / "gone", "wb") as file:
        file.write(bytes(4096))
        file.flush()
        os.unlink(file.name)
        found = deleted_files(os.getpid(), str(tmp_path))
    assert found == [DeletedFile(str(tmp_path / "gone"), 4096)]
    assert configuration_of_process(2**30) is None and deleted_files(2**30, "/") is None
