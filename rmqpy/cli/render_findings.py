"""Render findings as they arrive, for a person or as one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rmqpy.audit.checks.engine import StoreAudit
from rmqpy.audit.scan.findings import Finding
from rmqpy.cli.errors import error_json


class Report:
    """Writes findings to ``stream`` as soon as they are found, so that memory stays bounded."""

    def __init__(self, as_json: bool, stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._stream = stream or sys.stdout
        self._count = 0
        self._begun = False

    def _begin(self) -> None:
        if self._as_json and not self._begun:
            self._stream.write('{"findings": [')
        self._begun = True

    def fail(self, error: Exception, exit_code: int) -> None:
        """End the document after an error in the middle of the audit. Raise the error again if
        nothing was written, or if the output is text.
        """
        if not (self._as_json and self._begun):
            raise error
        self._stream.write("\n], " + json.dumps(error_json(error, exit_code))[1:] + "\n")

    def findings(self, findings: list[Finding]) -> None:
        self._begin()
        for finding in findings:
            if self._as_json:
                separator = ",\n" if self._count else "\n"
                self._stream.write(separator + json.dumps(finding.as_json()))
            else:
                self._stream.write(f"{finding.code.severity.value:<8} {finding}\n")
            self._count += 1

    def end(self, audit: StoreAudit) -> None:
        """Write the summary after the last finding."""
        self._begin()
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
        for code, count in audit.counts.items():
            self._stream.write(f"{count:>8} {code.name}: {code.text}; {code.remedy}\n")
        if audit.md5s:
            self._stream.write(f"{'md5':<32}  {'md5 of the valid bytes':<32}  file\n")
        for tree in _file_trees(audit):
            text = f"{tree['file']}, {tree['valid_bytes']} of {tree['bytes']} bytes valid"
            self._stream.write(f"{tree['md5']}  {tree['valid_md5']}  {text}\n")
        queues = len(audit.queues)
        verdict = "clean" if audit.is_clean else "damage was found"
        self._stream.write(f"{audit.records} records, {queues} queues: {verdict}\n")


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
