"""The commands that judge a store, run as a user runs them, and what they say."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from attrs import define

from campaign.stores import Group
from rmqpy.cli import main
from rmqpy.cli.parsing import EXIT_DONE

__all__ = ["COMMANDS", "Answer", "Judges"]

COMMANDS = ("fsck", "check", "verify", "verify --before")

_FINDING = re.compile(r"\d+\. \[")
_UNREAD = "DATA_UNREAD"


@define(frozen=True)
class Answer:
    """The exit code and the lines of one command."""

    code: int
    lines: frozenset[str]

    def new_lines(self, healthy: Answer, *, notes: bool) -> frozenset[str]:
        """Return the lines that the healthy store did not cause.

        Those of a command that ended well count only with ``notes``.
        """
        return self.lines - healthy.lines if notes or self.code != EXIT_DONE else frozenset()

    @property
    def only_unread(self) -> bool:
        """Whether all that ``check`` found is data of 5.x that rmqpy does not read."""
        found = [line for line in self.lines if _FINDING.match(line)]
        return bool(found) and all(_UNREAD in line for line in found)


def run(*words: str) -> Answer:
    """Run ``rmqpy`` with these arguments in this process."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            code = main(words)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    return Answer(code, frozenset(output.getvalue().splitlines()))


@define
class Judges:
    """The commands for one group. ``manifests`` are those of its healthy stores."""

    group: Group
    manifests: Mapping[str, Path]

    @classmethod
    def of(cls, group: Group, base: Path) -> Judges:
        """Return the judges of a healthy group; its manifests are written to ``base``."""
        judges = cls(group, {})
        manifests = {}
        for node in group.stores:
            manifests[node] = base / f"{node}.manifest.json"
            text = judges._output("upgrade", "manifest", *judges._stores(node), "--format", "json")
            json.loads(text)
            manifests[node].write_text(text)
        return cls(group, manifests)

    def answers(self, node: str) -> dict[str, Answer]:
        """Run every command; ``node`` is the one whose store may be damaged."""
        everything = self._stores(*self.group.stores)
        before = ["--before", str(self.manifests[node])]
        return {
            "fsck": run(
                "store", "fsck", str(self.group.stores[node]), "-c", str(self.group.configs[node])
            ),
            "check": run("upgrade", "check", *everything),
            "verify": run("upgrade", "verify", *everything),
            "verify --before": run("upgrade", "verify", *self._stores(node), *before),
        }

    def _stores(self, *nodes: str) -> list[str]:
        words = [f"{node}={self.group.stores[node]}" for node in nodes]
        for node in nodes:
            words += ["-c", f"{node}={self.group.configs[node]}"]
        return words

    @staticmethod
    def _output(*words: str) -> str:
        output = io.StringIO()
        with redirect_stdout(output):
            code = main(words)
        if code != EXIT_DONE:
            raise RuntimeError(f"rmqpy {' '.join(words)}: exit code {code}")
        return output.getvalue()
