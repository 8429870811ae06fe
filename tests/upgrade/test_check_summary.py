"""The summary of ``rmqpy upgrade check``: what happened, in words, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rmqpy.cli import main
from rmqpy.upgrade.checks.findings import finding, note
from rmqpy.upgrade.checks.group_checks import CHECKS
from rmqpy.upgrade.checks.summary import CheckCause, CheckSummary, Precondition, _grouped

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs ``rmqpy upgrade check`` and returns exit code and output."""

    def run(*words: object) -> tuple[int, str]:
        code = main(["upgrade", "check", *(str(word) for word in words)])
        return code, capsys.readouterr().out

    return run


def named(root: Path, *names: str) -> list[str]:
    return [f"{name}={root / name}" for name in names]


def test_an_empty_member_is_one_line(
    golden_copy: Callable[[str], Path], tmp_path: Path, check: Check
) -> None:
    (tmp_path / "n2").mkdir()
    replicas = named(golden_copy("B-master-slave-v497"), "master", "slave")
    code, out = check(*replicas, f"n2={tmp_path / 'n2'}")
    assert code == 2
    lines = out.splitlines()
    assert lines[0] == "NOT READY for switching master, slave, n2: 1 cause"
    assert lines[1] == "1. n2 is empty: plan fills it (279 messages, 216.8 KiB) (hazard H15)"
    assert lines[2] == "   -> rmqpy upgrade plan, then apply"
    assert "FINDING" not in out and len(lines) <= 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "sentences"),
    [
        (
            0,
            (
                "FINDING [tables-agree] n0, n1: delayOffset.json: n0 is behind n1 by 7 messages",
                "note    [offsets-in-range] n0: delayOffset.json: delay level 1 is at 0, whose"
                " message was due 29 s before the last message was stored",
            ),
        ),
        (900, ("FINDING [offsets-in-range] n0: delayOffset.json: n0 has 1 impossible offset",)),
    ],
)
def test_a_delay_offset_that_is_overdue_or_ahead_is_found(
    classic: Path, check: Check, offset: int, sentences: tuple[str, ...]
) -> None:
    for path in (classic / "n0/config").glob("delayOffset.json*"):
        path.write_text(re.sub(r"\b1:\d+", f"1:{offset}", path.read_text()))
    code, out = check(*named(classic, "n0", "n1", "n2"), "--details")
    assert code == 2
    assert all(sentence in out for sentence in sentences), out


def test_a_switch_that_lost_messages_names_them(
    golden_copy: Callable[[str], Path], check: Check
) -> None:
    root = golden_copy("X-gap_same_file-v497")
    code, out = check(*named(root, "n0", "n1", "n2"))
    assert code == 2
    lines = out.splitlines()
    assert lines[0] == "NOT READY for starting n0, n1, n2: 1 cause"
    assert lines[1] == (
        "1. the switch lost 5 messages (Normal queue 0 offset 30-34) on n1, n2; n0 has them"
        " (hazard H2)"
    )
    assert "  failed:  log-sound, queues-match, same-log" in lines


def test_a_slave_that_lags_is_one_cause(golden_copy: Callable[[str], Path], check: Check) -> None:
    root = golden_copy("B-lagging-slave-v497")
    code, out = check(*named(root, "master", "slave"))
    assert code == 2
    found = out.splitlines()[1]
    assert found.startswith("1. slave lags behind master by 70 messages (Keyed queue 0 offset")
    assert found.endswith("109.1 KiB (hazard H1)")


def test_details_show_every_finding(golden_copy: Callable[[str], Path], check: Check) -> None:
    replicas = named(golden_copy("X-gap_same_file-v497"), "n0", "n1", "n2")
    _, short = check(*replicas)
    _, long = check(*replicas, "--details")
    assert "FINDING" not in short and len(re.findall("^FINDING ", long, re.MULTILINE)) == 8
    assert "  passed:  " in long and short.splitlines()[-1] == long.splitlines()[-1]


def test_checks_are_listed_as_passed_failed_or_not_run(
    golden_copy: Callable[[str], Path], check: Check
) -> None:
    root = golden_copy("B-lagging-slave-v497")
    _, out = check(*named(root, "master", "slave"), "--format", "json")
    value = json.loads(out)
    summary: dict[str, Any] = value["summary"]
    not_run = [name for each in summary["not_run"] for name in each["checks"]]
    assert sorted([*summary["passed"], *summary["failed"], *not_run]) == sorted(CHECKS)
    assert summary["failed"] == ["same-log", "same-divide"] and not summary["ready"]
    assert "peers" in not_run and "-c NAME=FILE" in summary["not_run"][0]["reason"]
    assert [each["hazard"] for each in summary["causes"]] == ["H1"]
    (one,) = named(root, "master")
    alone = json.loads(check(one, "--format", "json")[1])["summary"]
    reasons = [each["reason"] for each in alone["not_run"]]
    assert alone["ready"] and any("they compare replicas" in reason for reason in reasons)


def test_the_same_finding_of_several_replicas_is_one_cause() -> None:
    same = [finding("peers", name, f"{name}.conf has port 1", "fix it") for name in ("a", "b")]
    (cause,) = _grouped([*same])
    assert cause.text == "[peers] a, b: a.conf has port 1 (and 1 more finding like it)"
    other = finding("peers", "c", "the peers differ")
    assert len(_grouped([*same, other])) == 2


def test_long_lists_are_capped() -> None:
    cause = CheckCause(text="x", findings=(finding("peers", "a", "x"),))
    many = CheckSummary(
        names=("a",),
        is_switched=False,
        causes=(cause,) * 30,
        notes=(evolve(cause, findings=(note("peers", "a", "x"),)),) * 9,
        passed=("a",),
        failed=("b",),
        not_run=(Precondition(("c", "d"), "because"),),
    )
    lines = list(many.lines(details=False))
    assert "   ... and 22 more causes; --details shows all" in lines
    assert "   ... and 5 more notes; --details shows all" in lines
    assert "checks: 1 passed, 1 failed, 2 not run" in lines
    assert "  not run: c, d; because" in lines
    assert sum(line == "note: x" for line in many.lines(details=True)) == 9
