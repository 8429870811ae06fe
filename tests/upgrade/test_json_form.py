"""The JSON form of every verb of ``rmqpy upgrade``, on the way to DLedger and back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

import pytest
from harness.upgrade import RunUpgrade, write_first_entry

from rmqpy.cli.command_line import every_parser

NAMES: Final = ("n0", "n1", "n2")
STATE: Final = {"group", "state", "meaning", "served", "next", "command", "back"}
GROUP: Final = STATE | {"members", "contradictions"}
PLAN: Final = {"id", "steps", "nodes", "facts", "conflicts"}
CHECK: Final = {"replicas", "checks", "findings", "notes", "ages", "summary", "verdict"}
CAUSE: Final = {"text", "next", "hazard", "checks", "findings"}
REFUSED: Final = {"error", "found", "expected", "remedy", "exit_code", "refused"}
WALK: Final[tuple[tuple[str, int, Set[str]], ...]] = (
    ("init n0.conf n1.conf n2.conf", 0, {"file", "members"}),
    ("status", 0, GROUP),
    ("check", 2, CHECK),
    ("prepare --rate 0 --dry-run", 0, STATE | {"members"}),
    ("prepare --rate 0", 0, STATE | {"members"}),
    ("manifest n0 -c n0.conf", 0, {"name", "files", "logs"}),
    ("plan", 0, PLAN | {"space"}),
    ("apply --dry-run", 0, {"wrong"}),
    ("apply", 0, STATE | {"members"}),
    ("rollback", 0, STATE | {"members"}),
    ("next", 2, REFUSED),
    ("next --yes", 0, GROUP | {"step", "code", "result"}),
    ("run --until aligned --yes", 0, GROUP | {"steps", "stuck"}),
    ("switch --runbook java", 0, {"runbook"}),
    ("switch --dry-run", 0, PLAN),
    ("switch", 0, STATE | {"plan", "nodes"}),
    ("finalize", 2, REFUSED),
    ("START", 0, set()),
    ("verify", 0, {"verdict", "subjects"}),
    ("join n1 --from n0=n0 -c n1=n1.conf --dry-run", 0, PLAN),
    ("leave", 0, PLAN),
    ("apply", 0, STATE | {"members"}),
    ("status n0 n1", 0, {"members"}),
    ("run --until left-verified", 2, REFUSED),
    ("run --until left-verified --yes", 0, GROUP | {"steps", "stuck"}),
    ("finalize", 0, STATE | {"members"}),
)
"""The lines, their exit codes, and the members that their documents have at least."""
STREAMS: Final = {"agent", "serve"}
"""They run until they are stopped; that ``serve`` says where it listens is tested with it."""


def verbs() -> Iterator[str]:
    for commands in every_parser()._actions:
        if isinstance(commands, argparse._SubParsersAction):
            for action in commands.choices["upgrade"]._actions:
                if isinstance(action, argparse._SubParsersAction):
                    yield from action.choices


def test_the_walk_has_every_verb() -> None:
    assert {line.split()[0] for line, _, _ in WALK} - {"START"} == set(verbs()) - STREAMS


@pytest.mark.slow
def test_every_verb_prints_one_document(lagging: Path, run: RunUpgrade) -> None:
    for line, expected, members in WALK:
        if line == "START":
            write_first_entry(lagging)
            continue
        code, out, err = run(f"{line} --format json")
        assert code == expected, (line, out, err)
        value = json.loads(out)
        assert value.keys() >= members, (line, set(members) - value.keys())
        assert err == "", line
        if line == "check":
            for cause in value["summary"]["causes"]:
                assert cause.keys() >= CAUSE and cause["next"]
        if members >= STATE:
            assert value["command"] and value["next"], line
        if "members" in value and line.partition(" ")[0] != "init":
            names = [row["member"] for row in value["members"]]
            assert names == (["n0", "n1"] if line.startswith("status n0 n1") else [*NAMES]), line
