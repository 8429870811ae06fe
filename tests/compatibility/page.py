"""The content of docs/reference/compatibility.md, from the results of the judges.

Every failure needs a cause in causes.toml; without one there is no page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from attrs import define
from foreign_clients import CLIENTS

from compatibility.cases import CASES
from compatibility.results import JudgeResult, JudgeRun, Outcome
from compatibility.targets import TARGETS
from rmqpy.testing.java.install import DEFAULT_VERSION

CAUSES: Final = Path(__file__).resolve().parent / "causes.toml"
PAGE: Final = Path(__file__).resolve().parents[2] / "docs/reference/compatibility.md"
HEAD: Final = """# Compatibility card

<!-- Created by tox -e card -->

What others wrote judges the servers of rmqpy: Apache's own integration tests, unchanged, and the
clients of other languages. `tox -e card` runs all of it and writes this page from
`tests/compatibility/results/`; `tox -e card -- --judges go-2.1.2 --servers dledger` runs a part.
`tests/interop/test_compatibility.py` is a sample. The same judges run against Java's broker 4.9.7,
which shows whether a failure belongs to rmqpy.

"""
MEANING: Final = """
*passed* of *run*. Skipped tests are those that Apache skips, and calls that a client does not have
are not counted. Each test counts with its last run. In groups, clients have the case *failover*
alone. `delay.NormalMsgDelayIT` allows half a second more or less, and was run on a quiet machine;
on a busy one, it failed with Java's broker, too. {mixed}{namesrv}
"""
CLIENTS_HEAD: Final = """
## What the clients do

Each case sends and receives with the client alone (`tests/compatibility/cases.py`). *yes*: it
passed on all servers above; *no call*: the client has none for it.

"""


@define(frozen=True)
class Cause:
    """Why tests fail. Judge and test are patterns of fnmatch."""

    judge: str
    test: str
    text: str

    def explains(self, judge: str, test: str) -> bool:
        return fnmatch(judge, self.judge) and fnmatch(test, self.test)


class UnexplainedFailureError(AssertionError):
    """A failure without a cause in causes.toml."""


def read_causes(path: Path = CAUSES) -> list[Cause]:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Cause(each["judge"], each["test"], each["text"]) for each in data.get("cause", ())]


def page(results: Sequence[JudgeResult], causes: Sequence[Cause]) -> str:
    """Return the whole page."""
    ran = [result for result in results if result.runs]
    clients = [result for result in ran if not result.judge.startswith("apache")]
    columns = [name for name in TARGETS if any(name in result.runs for result in ran)]
    lines = [
        HEAD + "## Results",
        "",
        _row("judge", *(TARGETS[name].title for name in columns), "last run"),
        _row(*["---"] * (len(columns) + 2)),
        *(_summary(result, columns) for result in ran),
        MEANING.format(mixed=_leaders(ran), namesrv=_name_servers(ran)) + CLIENTS_HEAD.rstrip("\n"),
        "",
        _row("client", *CASES),
        _row(*["---"] * (len(CASES) + 1)),
        *(_client_row(result) for result in clients),
        "",
        *(f"- *{name}*: {title}" for name, (title, _) in CASES.items()),
        "",
        "## Failures",
        "",
        *_failures(ran, causes),
        *_not_run(results),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _summary(result: JudgeResult, columns: Sequence[str]) -> str:
    cells = [_score(result.runs.get(name)) for name in columns]
    last = max(run.date for run in result.runs.values())
    return _row(result.title, *cells, last)


def _score(run: JudgeRun | None) -> str:
    if run is None:
        return ""
    skipped = run.count("skipped")
    more = f", {skipped} skipped" if skipped else ""
    return f"{run.count('passed')} of {run.count('passed', 'failed')}{more}"


def _leaders(results: Sequence[JudgeResult]) -> str:
    mixed = [result.runs["mixed"] for result in results if "mixed" in result.runs]
    leaders = [leader for run in mixed for leader in run.leaders]
    if not leaders:
        return ""
    ours = leaders.count("rmqpy")
    return (
        f"In the mixed groups, the leader at the start of a run was one of rmqpy {ours} times, and"
        f" Java's {len(leaders) - ours} times; the case *failover* kills it."
    )


def _name_servers(results: Sequence[JudgeResult]) -> str:
    """Return a sentence about the clients that Java's usual name server cannot serve."""
    versions = {
        result.title: CLIENTS[result.judge].java_namesrv
        for result in results
        if result.judge in CLIENTS
    }
    return "".join(
        f" Java's brokers were judged by {title} with Java's name server {version}, because it"
        f" cannot read the routes of {DEFAULT_VERSION}."
        for title, version in versions.items()
        if version != DEFAULT_VERSION
    )


def _client_row(result: JudgeResult) -> str:
    return _row(result.title, *(_cell(result, case) for case in CASES))


def _cell(result: JudgeResult, case: str) -> str:
    found = {run.outcomes[case].outcome for run in result.runs.values() if case in run.outcomes}
    if "failed" in found:
        return "[fails](#failures)"
    return "no call" if found == {"absent"} else "yes" if found == {"passed"} else ""


def _failures(results: Sequence[JudgeResult], causes: Sequence[Cause]) -> list[str]:
    rows = []
    for result in results:
        failed = {test for run in result.runs.values() for test in _failed(run)}
        for test in sorted(failed):
            where = [name for name, run in result.runs.items() if test in _failed(run)]
            titles = "; ".join(TARGETS[name].title for name in TARGETS if name in where)
            rows.append(_row(result.title, f"`{test}`", titles, _cause(result.judge, test, causes)))
    if not rows:
        return ["None.", ""]
    return [_row("judge", "test", "fails on", "cause"), _row(*["---"] * 4), *rows, ""]


def _failed(run: JudgeRun) -> Mapping[str, Outcome]:
    return {name: each for name, each in run.outcomes.items() if each.outcome == "failed"}


def _cause(judge: str, test: str, causes: Sequence[Cause]) -> str:
    for cause in causes:
        if cause.explains(judge, test):
            return cause.text
    raise UnexplainedFailureError(f"{judge} {test}: no cause in {CAUSES.name}")


def _not_run(results: Sequence[JudgeResult]) -> list[str]:
    missing = [result for result in results if not result.runs]
    if not missing:
        return []
    rows = [_row(result.title, result.missing) for result in missing]
    return ["## Not run", "", _row("judge", "reason"), _row("---", "---"), *rows]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
