"""The results of judges, kept as data beside this module.

One file for each judge, ``results/<judge>.json``::

    {"judge": "go-2.1.2", "title": "…",
     "runs": {"classic": {"date": "2026-01-31", "commit": "0123abcd", "leaders": [],
                          "outcomes": {"sync": "passed", "sql": "failed | the error"}}}}

The key of a run is a name in :data:`compatibility.targets.TARGETS`. A judge that cannot run on a
machine has ``"missing": "the reason"`` and no runs.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import define, field

FOLDER: Final = Path(__file__).resolve().parent / "results"
OUTCOMES: Final = ("passed", "failed", "skipped", "absent")
"""``skipped`` by the judge itself; ``absent``: the client has no such call."""


@define(frozen=True)
class Outcome:
    """The end of one test."""

    outcome: str
    detail: str = ""
    """The error, or why it was skipped or is absent."""


@define
class JudgeRun:
    """One judge against one kind of servers; a test that was run again has its last outcome."""

    date: str
    commit: str
    outcomes: dict[str, Outcome] = field(factory=dict)
    leaders: list[str] = field(factory=list)
    """The kinds of the members that led the groups at the start."""

    def count(self, *outcomes: str) -> int:
        return sum(each.outcome in outcomes for each in self.outcomes.values())


@define
class JudgeResult:
    """All that is known of one judge."""

    judge: str
    title: str
    runs: dict[str, JudgeRun] = field(factory=dict)
    missing: str = ""


def read_results(folder: Path = FOLDER) -> list[JudgeResult]:
    return [_decode(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def merge_run(
    judge: str, title: str, target: str, run: JudgeRun, folder: Path = FOLDER
) -> JudgeResult:
    """Add outcomes to the file of a judge. Those of tests that were not run again are kept."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / f"{judge}.json"
        before = path.read_text(encoding="utf-8") if path.exists() else None
        result = JudgeResult(judge, title) if before is None else _decode(before)
        known = result.runs.get(target)
        if known is not None:
            run.outcomes = {**known.outcomes, **run.outcomes}
        result.runs[target] = run
        result.title, result.missing = title, ""
        return write_result(result, folder)


def write_result(result: JudgeResult, folder: Path = FOLDER) -> JudgeResult:
    """Write the file of a judge, whose lines are the tests, in order."""
    data: dict[str, object] = {"judge": result.judge, "title": result.title}
    if result.missing:
        data["missing"] = result.missing
    data["runs"] = {name: _encode(run) for name, run in sorted(result.runs.items())}
    text = json.dumps(data, indent=1, ensure_ascii=False)
    (folder / f"{result.judge}.json").write_text(text + "\n", encoding="utf-8")
    return result


def _encode(run: JudgeRun) -> dict[str, object]:
    outcomes = {
        name: " | ".join(filter(None, (each.outcome, each.detail)))
        for name, each in sorted(run.outcomes.items())
    }
    return {"date": run.date, "commit": run.commit, "leaders": run.leaders, "outcomes": outcomes}


def _decode(text: str) -> JudgeResult:
    data = json.loads(text)
    runs = {name: _decode_run(run) for name, run in data["runs"].items()}
    return JudgeResult(data["judge"], data["title"], runs, data.get("missing", ""))


def _decode_run(data: Mapping[str, object]) -> JudgeRun:
    outcomes, leaders = data["outcomes"], data["leaders"]
    assert isinstance(outcomes, dict) and isinstance(leaders, list)
    ends = {name: Outcome(*_split(text)) for name, text in outcomes.items()}
    return JudgeRun(str(data["date"]), str(data["commit"]), ends, leaders)


def _split(text: str) -> Iterable[str]:
    outcome, _, detail = text.partition(" | ")
    assert outcome in OUTCOMES, text
    return outcome, detail
