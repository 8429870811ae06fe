"""Tests of the log that lets a long run of seeds be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator import __main__ as command
from simulator.cluster import Outcome
from simulator.runner import Result
from simulator.seed_log import MODIFIED, UNKNOWN, SeedLog

SEEDS = range(10)


def result(seed: int, family: str = "nodes", failure: str = "") -> Result:
    outcome = None if failure else Outcome(1, 2, 3, 4, 5, 6, 7, f"digest {seed}")
    return Result(family, seed, 0.5, 60_000, outcome, failure)


def test_a_log_has_the_results_of_its_version_family_and_seeds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = SeedLog(path, "one")
    expected = [result(3), result(4, failure="n0 and n1 lead in term 2")]
    for each in (*expected, result(5, "group"), result(30)):
        log.add(each)
    SeedLog(path, "two").add(result(6))
    assert list(log.known("nodes", SEEDS)) == expected


def test_an_incomplete_line_is_no_result(tmp_path: Path) -> None:
    log = SeedLog(tmp_path / "log", "one")
    log.add(result(1))
    log.add(result(2))
    text = log.path.read_text()
    for end in range(len(text) - 1, text.rindex("\n"), -1):
        log.path.write_text(text[:end])
        assert list(log.known("nodes", SEEDS)) == [result(1)]
        log.add(result(3))
        assert list(log.known("nodes", SEEDS)) == [result(1), result(3)]


@pytest.mark.parametrize("version", [UNKNOWN, f"abc{MODIFIED}"])
def test_code_without_a_name_is_never_skipped(tmp_path: Path, version: str) -> None:
    log = SeedLog(tmp_path / "log", version)
    log.add(result(1))
    assert list(log.known("nodes", SEEDS)) == []


def test_a_run_continues_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures that the log has are printed and counted again."""
    path = tmp_path / "log"
    for each in (result(2, failure="an old failure"), result(3)):
        SeedLog(path, "abc").add(each)
    ran: list[int] = []

    def run(family: str, seeds: list[int], _jobs: int) -> list[Result]:
        ran.extend(seeds)
        return [result(seed, family) for seed in seeds]

    monkeypatch.setattr(command, "code_version", lambda: "abc")
    monkeypatch.setattr(command, "run_seeds", run)
    line = ["--family", "nodes", "--first", "1", "--seeds", "5", "--log", str(path)]
    assert command.main(line) == 1
    assert ran == [1, 4, 5]
    printed = capsys.readouterr().out
    assert "an old failure" in printed and "5 seeds, 1 failed" in printed
    assert "seeds 1 to 5 at abc, 2 of them from the log" in printed
    assert command.main(line) == 1
    assert ran == [1, 4, 5]
