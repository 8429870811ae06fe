"""docs/reference/compatibility.md shows the results that are kept, and each failure has a cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from compatibility.cases import CASES
from compatibility.page import PAGE, Cause, UnexplainedFailureError, page, read_causes
from compatibility.results import (
    FOLDER,
    JudgeResult,
    JudgeRun,
    Outcome,
    merge_run,
    read_results,
)
from compatibility.targets import TARGETS
from foreign_clients import CLIENTS


def result_of(**outcomes: str) -> JudgeResult:
    run = JudgeRun("2026-01-31", "0123abcd", {n: Outcome(each) for n, each in outcomes.items()})
    return JudgeResult("some-1.0", "Some client 1.0", {"classic": run})


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text("utf-8") == page(read_results(), read_causes()), (
        "run: tox -e card -- --page"
    )


def test_every_client_has_results_or_a_reason() -> None:
    results = {result.judge: result for result in read_results()}
    assert {"apache-4.9.7", *CLIENTS} <= set(results)
    for result in results.values():
        assert result.runs or result.missing
        assert set(result.runs) <= set(TARGETS)


def test_every_result_is_of_a_known_case() -> None:
    for result in read_results():
        for run in result.runs.values():
            if result.judge in CLIENTS:
                assert set(run.outcomes) <= set(CASES)
            assert run.count("passed", "failed") > 0


def test_a_failure_without_a_cause_has_no_page() -> None:
    result = result_of(sync="passed", sql="failed")
    with pytest.raises(UnexplainedFailureError, match=r"some-1\.0 sql: no cause"):
        page([result], [Cause("other-*", "*", "another"), Cause("some-*", "sync", "another")])
    text = page([result], [Cause("some-*", "sql", "It has no parser.")])
    assert "| Some client 1.0 | 1 of 2 | 2026-01-31 |" in text
    assert "| Some client 1.0 | `sql` | classic | It has no parser. |" in text


def test_calls_that_a_client_lacks_are_not_counted() -> None:
    text = page([result_of(sync="passed", batch="absent")], [])
    assert "| Some client 1.0 | 1 of 1 | 2026-01-31 |" in text
    assert "no call" in text and "\nNone.\n" in text


def test_outcomes_of_a_part_are_added_to_what_is_known(tmp_path: Path) -> None:
    for outcomes in ({"sync": "failed", "tags": "passed"}, {"sync": "passed"}):
        run = result_of(**outcomes).runs["classic"]
        merge_run("some-1.0", "Some client 1.0", "classic", run, tmp_path)
    (known,) = read_results(tmp_path)
    kept = known.runs["classic"].outcomes
    assert {name: each.outcome for name, each in kept.items()} == {
        "sync": "passed",
        "tags": "passed",
    }
    assert tmp_path != FOLDER
