"""Collect the data of an audit's HTML report, one store after the other, during the audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmqpy.audit.checks.engine import StoreAudit
from rmqpy.audit.picture.reading import PLACES_MAX
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.jobs.html_report import PageStore, render_page
from rmqpy.pipeline.jobs.timeline import Run, TimeTask, count_over_time, run_here

__all__ = ["AuditReport"]

Sink = Callable[[list[Finding]], None]


class AuditReport:
    """The report of an audit.

    ``run`` reads the logs again for the times.
    """

    def __init__(self, run: Run = run_here) -> None:
        self._run = run
        self._stores: list[PageStore] = []
        self._files: list[FileSystem] = []

    def sink(self, files: FileSystem, root: str, downstream: Sink) -> Sink:
        """Return a sink for the next store, which is in ``files``.

        It passes findings to ``downstream`` and adds them to the report.
        """
        store = PageStore(root=root)
        self._stores.append(store)
        self._files.append(files)

        def take(findings: list[Finding]) -> None:
            store.findings += findings[: PLACES_MAX - len(store.findings)]
            downstream(findings)

        return take

    def add(self, audit: StoreAudit) -> None:
        """Add the audit of the store whose sink was requested last."""
        self._stores[-1].audit = audit

    def write(self, file: str) -> None:
        """Count the messages over time and write the report."""
        tallies = [log.tally for store in self._stores for log in store.audit.logs]
        times = [(tally.min_store_ms, tally.max_store_ms) for tally in tallies if tally.records > 0]
        first = min((time for time, _ in times), default=0)
        last = max((time for _, time in times), default=0)
        for store, files in zip(self._stores, self._files, strict=True):
            limit = store.audit.facts.confirmed_end
            directory = read_directory(files, store.root)
            task = TimeTask(first, last, files)
            store.over_time = count_over_time(directory, task, limit, self._run)
        page = render_page(self._stores, (first, last))
        Path(file).write_text(page, encoding="utf-8")
