"""Carry out the walks of a suite, each of them once, also if several processes need its results.

::

    WORK/<store>.lock        held (flock) while the walk of the store is carried out
    WORK/<store>/            the copies, while it is carried out; with ``keep``, for good
    WORK/<store>.json        the results, written last, by a rename
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from attrs import define

from rmqpy.model.errors import RmqError
from rmqpy.suite.cases import CaseResult, CaseStatus, SuiteResult, decode_results, encode_results
from rmqpy.suite.store_walk import StoreWalk, remove_copies
from rmqpy.suite.suite_file import SuitePlan, SuiteStore

Show = Callable[[CaseResult], None]


@define(frozen=True, kw_only=True)
class SuiteRun:
    """One run: a plan, and the folder ``work`` for its copies and results."""

    plan: SuitePlan
    work: Path
    keep: bool = False

    def run(self, show: Show) -> SuiteResult:
        """Carry out all walks, and return their results; ``show`` receives each at once."""
        cases: list[CaseResult] = []
        for store in self.plan.stores:
            cases += self.results_of(store, show)
        return SuiteResult(self.plan.name, tuple(cases))

    def results_of(self, store: SuiteStore, show: Show) -> list[CaseResult]:
        """Return the results of one store: those that another process has, or new ones."""
        self.work.mkdir(parents=True, exist_ok=True)
        kept = self.work / f"{store.name}.json"
        with (self.work / f"{store.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if kept.exists():
                return decode_results(kept.read_text(encoding="utf-8"))
            results = self._walk(store, show)
            new = kept.with_suffix(".new")
            new.write_text(encode_results(results), encoding="utf-8")
            os.replace(new, kept)
        return results

    def _walk(self, store: SuiteStore, show: Show) -> list[CaseResult]:
        folder = self.work / store.name
        if folder.exists():
            raise RmqError(
                f"{folder}: found the copies of an earlier run, expected a new folder; remove it,"
                " or give another one"
            )
        try:
            walk = StoreWalk(self.plan, store, folder.resolve(), show)
            return asyncio.run(walk.run())
        finally:
            if not self.keep:
                remove_copies(folder)


def case_of(results: list[CaseResult], name: str) -> CaseResult:
    """Return the result of one case by its name."""
    return next(each for each in results if each.case == name)


def exit_code(result: SuiteResult) -> int:
    """Return 2 if there are findings, 1 if something, or all, was not tested, and otherwise 0."""
    if result.count(CaseStatus.FAILED):
        return 2
    return 1 if result.count(CaseStatus.NOT_TESTED) or not result.cases else 0
