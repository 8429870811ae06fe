"""The rows of docs/reference/conformance.md: all codes and commands, and existing tests.

tests/interop/test_conformance.py, which needs Java, compares the content of the rows.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from conformance.page import read_codes, read_commands

from rmqpy.admin.commands import COMMANDS
from rmqpy.model.codes import RequestCode

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/conformance.md"
CODES_LISTED = 80
"""The number of codes of 4.9.7 with the priorities P0 and P1."""


def rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]


def test_every_code_of_the_list_has_a_row() -> None:
    listed = read_codes(ROOT / "tests/interop/request-codes.tsv")
    assert len(listed) == CODES_LISTED
    found = {int(row[0]): row[1] for row in rows() if row[0].isdigit()}
    assert found == {row.code: row.name for row in listed}
    assert all(RequestCode(row.code).name == row.name for row in listed)


def test_every_command_has_a_row() -> None:
    listed = read_commands(ROOT / "tests/admin/mqadmin-4.9.7.tsv")
    found = [row[0] for row in rows() if row[0] in {command.name for command in COMMANDS}]
    assert found == listed and len(listed) == 57


def test_every_test_in_a_row_exists() -> None:
    named = set(re.findall(r"`(tests/\S+\.py)`: `(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named
    for file, name in named:
        module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
