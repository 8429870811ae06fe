"""A file with the result of each seed, so that a long run can be interrupted and resumed.

Each line is a JSON object: the version of the code, and a :class:`Result`. Results of another
version prove nothing about this one; they are kept and not read.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from attrs import asdict, define

from simulator.cluster import Outcome
from simulator.runner import Result

UNKNOWN = "unknown"
MODIFIED = "-modified"


@define(slots=True, frozen=True)
class SeedLog:
    """The results of ``version`` in a file."""

    path: Path
    version: str

    @property
    def is_resumable(self) -> bool:
        """Whether the version names one state of the code."""
        return self.version != UNKNOWN and not self.version.endswith(MODIFIED)

    def known(self, family: str, seeds: range) -> Iterator[Result]:
        """Yield the results of these seeds that the file already has."""
        if not self.is_resumable or not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # An interrupted run has not completed this line.
            outcome = fields.pop("outcome")
            if fields.pop("version") != self.version:
                continue
            result = Result(**fields, outcome=Outcome(**outcome) if outcome else None)
            if result.family == family and result.seed in seeds:
                yield result

    def add(self, result: Result) -> None:
        """Append a result. The line starts with its newline: the one before may be incomplete."""
        with self.path.open("a") as file:
            file.write("\n" + json.dumps({"version": self.version, **asdict(result)}))


def code_version() -> str:
    """Return the commit of the checkout that contains this file, marked if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", f"--dirty={MODIFIED}", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return found.stdout.strip()
