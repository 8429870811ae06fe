"""A replay as a page: the same run, with its members, messages, faults, and violations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulator.__main__ import main
from simulator.replay import RunRecorder
from simulator.runner import FAMILIES, cluster_of


def data_of(page: str) -> dict[str, Any]:
    text = page.partition('id="data">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["nodes", "lonely", "switch"])
def test_a_recorded_run_is_the_same_run(family: str) -> None:
    plain = cluster_of(FAMILIES[family](3), trace=[])
    expected = plain.run()
    cluster = cluster_of(FAMILIES[family](3), trace=[])
    recorder = RunRecorder(cluster)
    assert cluster.run() == expected and cluster.trace == plain.trace
    data = data_of(recorder.page("a run", ""))
    assert data["end"] == expected.simulated_ms and data["events"] and not data["dropped"]
    for rows in data["members"].values():
        assert rows == sorted(rows, key=lambda row: row[0]) and rows[-1][3] > 0
    sent = [row for row in data["messages"] if row[1] >= 0]
    assert len(sent) > 100 and all(at <= arrived for at, arrived, *_ in sent)
    assert "answer" in data["kinds"] and "piece" not in data["kinds"]


@pytest.mark.slow
def test_a_planted_bug_is_shown_with_its_member(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.html"
    planted = ["--mutations", "acknowledged_before_quorum"]
    assert main(["--replay", "0", *planted, "--html", str(path)]) == 1
    assert "violation: n1 names" in capsys.readouterr().out
    data = data_of(path.read_text())
    assert data["accused"] == ["n1"] and data["events"][-1][2] == "violation"


def test_no_text_leaves_the_data_of_the_page() -> None:
    recorder = RunRecorder(cluster_of(FAMILIES["nodes"](3), trace=[]))
    page = recorder.page("<b>", "</script><script>alert(1)</script>")
    assert page.count("<script") == 2 and "<title>&lt;b&gt;" in page
    assert data_of(page)["violation"].endswith("alert(1)</script>")


@pytest.mark.parametrize(
    "words",
    [
        ["--html", "run.html"],
        ["--replay", "1", "--mutations", "no_such_bug"],
        ["--replay", "1", "--mutations", "vote_not_persisted", "acknowledged_before_quorum"],
    ],
)
def test_wrong_options_are_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2 and "expected" in capsys.readouterr().err
