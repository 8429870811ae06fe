"""``--format json`` of every command: one document on stdout, of a refusal and of a result.

The commands are those of the parser, so that a new one cannot be left out.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from rmqpy.cli import main
from rmqpy.cli.command_line import every_parser

KEYS: Final = {"error", "found", "expected", "remedy", "exit_code"}
WITHOUT: Final = {
    "rmqpy broker": "runs until it is stopped",
    "rmqpy completion": "prints a script",
    "rmqpy console": "runs until it is stopped",
    "rmqpy demo": "shows steps to a person",
    "rmqpy dev": "runs until it is stopped",
    "rmqpy namesrv": "runs until it is stopped",
    "rmqpy pipeline append": "writes a table",
    "rmqpy pipeline doctor": "shows the environment to a person",
    "rmqpy pipeline export": "writes a table",
    "rmqpy record": "prints JSON lines",
    "rmqpy store dump": "prints JSON lines",
    "rmqpy store map": "writes a page",
    "rmqpy upgrade agent": "speaks frames with the machine that started it",
}
"""The commands without ``--format``, and why."""


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers that run a command."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in dict.fromkeys(action.choices.values()):
            yield from leaves(each)


def has_format(parser: argparse.ArgumentParser) -> bool:
    return any("--format" in each.option_strings and each.choices for each in parser._actions)


LISTS: Final = "rmqpy pipeline query"
"""Its example lists what is built in."""
PARSER: Final = every_parser()
COMMANDS: Final = {each.prog: each for each in leaves(PARSER)}
JSON: Final = [name for name, parser in COMMANDS.items() if has_format(parser)]


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building the parser of all commands takes most of the time of a refusal."""
    monkeypatch.setattr("rmqpy.cli.command_line._parser", lambda *_: PARSER)


def test_a_command_without_the_option_has_a_reason() -> None:
    assert {name for name in COMMANDS if name not in JSON} == WITHOUT.keys()


def words_of(command: str) -> list[str]:
    """Return the first example of a command, at an address where nothing listens."""
    text = COMMANDS[command].format_help().partition("examples:\n")[2]
    line = text.splitlines()[0].partition(" > ")[0].strip()
    line = re.sub(r"\b\d+\.\d+\.\d+\.\d+:\d+", "127.0.0.1:1", line)
    line = line.replace("AC11000100002A9F", "7F00000100000001")  # an offset id has an address
    words = [word for word in shlex.split(line)[1:] if word not in ("--format", "json")]
    return [*words, "--format", "json"]


def document(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Run a command; return its exit code and the one document that it prints."""
    try:
        code: object = main(words)
    except SystemExit as ended:
        code = ended.code
    assert isinstance(code, int)
    return code, json.loads(capsys.readouterr().out)


def refused(
    command: str, capsys: pytest.CaptureFixture[str], folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Run the example of a command in an empty folder: nothing that it names is there."""
    patch.chdir(folder)
    code, value = document(words_of(command), capsys)
    assert code in (1, 2) or command == LISTS, value
    if code == 1 or (isinstance(value, dict) and "error" in value):
        assert value.keys() >= KEYS and value["exit_code"] == code


@pytest.mark.parametrize("command", [name for name in JSON if not name.startswith("rmqpy admin ")])
def test_a_refusal_is_one_document(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused(command, capsys, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name in JSON if name.startswith("rmqpy admin ")])
def test_so_is_one_without_a_name_server(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused(command, capsys, tmp_path, monkeypatch)


@pytest.mark.parametrize("command", JSON)
def test_wrong_usage_is_one_document(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split()[1:], "--no-such-option", "--format", "json"]
    code, value = document(words, capsys)
    assert code == value["exit_code"] == 1 and value.keys() >= KEYS


def test_an_interrupted_command_ends_its_document(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmqpy.cli.upgrade.base.given.load_group", interrupt)
    monkeypatch.chdir(tmp_path)
    code, value = document(["upgrade", "apply", "--format", "json"], capsys)
    assert code == value["exit_code"] == 130 and value["error"].startswith("interrupted; ")
