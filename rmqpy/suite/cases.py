"""The results of a suite: one case per stage of each store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import asdict, define, field

FINDINGS_SHOWN = 20
"""The largest number of differences, or problems of one kind, that a case lists."""


class CaseStatus(Enum):
    """``NOT_TESTED``: the case could not be carried out; its findings say why."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TESTED = "not tested"


@define(frozen=True, kw_only=True)
class CaseResult:
    """One case. ``facts`` are counts, and times in s; ``findings`` are sentences."""

    store: str
    case: str
    status: CaseStatus
    seconds: float = 0.0
    facts: Mapping[str, float | str] = field(factory=dict)
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> CaseResult:
        lists = {key: tuple(tree[key]) for key in ("findings", "notes")}
        return cls(**{**tree, **lists, "status": CaseStatus(tree["status"])})


@define(slots=True, eq=False)
class OpenCase:
    """The case that is being carried out."""

    facts: dict[str, float | str] = field(factory=dict)
    findings: list[str] = field(factory=list)
    notes: list[str] = field(factory=list)

    def limit(self, fact: str, found: float, limit: float) -> None:
        """Keep a time, and add a finding if it is above its limit."""
        self.facts[fact] = round(found, 3)
        if found > limit:
            self.findings.append(f"{fact}: found {found:.1f}, expected at most {limit:g}")


@define(frozen=True)
class SuiteResult:
    """The cases of all stores, in order."""

    name: str
    cases: tuple[CaseResult, ...]

    def count(self, status: CaseStatus) -> int:
        return sum(case.status is status for case in self.cases)

    @property
    def verdict(self) -> str:
        """One line: the counts, and whether the suite has passed."""
        passed, failed, left = (self.count(status) for status in CaseStatus)
        word = "PASSED"
        if failed:
            word = "FAILED"
        elif left or not passed:
            word = "NOT TESTED"
        return f"{word}: {passed} passed, {failed} failed, {left} not tested"

    def as_json(self) -> dict[str, Any]:
        cases = [case.as_json() for case in self.cases]
        return {"name": self.name, "verdict": self.verdict, "cases": cases}


def encode_results(results: Iterable[CaseResult]) -> str:
    return json.dumps([each.as_json() for each in results], indent=1)


def decode_results(text: str) -> list[CaseResult]:
    return [CaseResult.from_json(each) for each in json.loads(text)]
