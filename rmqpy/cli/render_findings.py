"""Render findings as they arrive, for a person or as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rmqpy.audit.checks.engine import StoreAudit
from rmqpy.audit.scan.findings import Finding
from rmqpy.cli.errors import error_json
from rmqpy.cli.terminal import show
from rmqpy.model.text import count_text


class Report:
    """Writes findings to ``stream`` as soon as they are found, so that memory stays bounded.

    ``before`` is called before something is written, so that a progress line can make room.
    """

    def __init__(
        self,
        as_json: bool,
        stream: TextIO | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._as_json = as_json
        self._before = before
        self._stream = stream or sys.stdout
        self._count = 0
        self._begun = False

    def _begin(self) -> None:
        if self._as_json and not self._begun:
            self._stream.write('{"findings": [')
        self._begun = True

    def fail(self, error: Exception, exit_code: int) -> None:
        """End the document after an error in the audit. Raise the error again if the output is
        text.
        """
        if not self._as_json:
            raise error
        self._begin()
        self._before()
        self._stream.write("\n], " + json.dumps(error_json(error, exit_code))[1:] + "\n")

    def findings(self, findings: list[Finding]) -> None:
        self._begin()
        self._before()
        for finding in findings:
            if self._as_json:
                separator = ",\n" if self._count else "\n"
                self._stream.write(separator + json.dumps(finding.as_json()))
            else:
                show([f"{finding.code.severity.value:<8} {finding}"], self._stream)
            self._count += 1

    def end(self, audit: StoreAudit) -> None:
        """Write the summary after the last finding."""
        self._begin()
        self._before()
        if self._as_json:
            rest = {
                "clean": audit.is_clean,
                "counts": {code.name: count for code, count in audit.counts.items()},
                "records": audit.records,
                **({"files": [*_file_trees(audit)]} if audit.md5s else {}),
                "facts": audit.facts.as_json(),
            }
            self._stream.write("\n], " + json.dumps(rest)[1:] + "\n")
            return
        show(_summary_lines(audit), self._stream)


def _summary_lines(audit: StoreAudit) -> Iterator[str]:
    for code, count in audit.counts.items():
        yield f"{count:>8} {code.name}: {code.text}; {code.remedy}"
    if audit.md5s:
        yield f"{'md5':<32}  {'md5 of the valid bytes':<32}  file"
    for tree in _file_trees(audit):
        text = f"{tree['file']}, {tree['valid_bytes']} of {tree['bytes']} bytes valid"
        yield f"{tree['md5']}  {tree['valid_md5']}  {text}"
    verdict = "clean" if audit.is_clean else "damage was found"
    queues = count_text(audit.queue_count, "queue")
    yield f"{count_text(audit.records, 'record')}, {queues}: {verdict}"


def _file_trees(audit: StoreAudit) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the log files whose md5 was computed."""
    for log in audit.logs if audit.md5s else ():
        for file in log.files:
            sums = audit.md5s[file.file]
            yield {
                "file": file.file,
                "bytes": file.file_size,
                "valid_bytes": file.valid_bytes,
                "md5": sums.md5,
                "valid_md5": sums.valid_md5,
            }
