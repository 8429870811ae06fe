"""``--help`` of every command: a purpose, examples that can be copied, and exit codes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from rmqpy.cli.command_line import _parser, every_parser
from rmqpy.cli.help_texts import HELP
from rmqpy.cli.parsing import Parser


def walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and all parsers below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from walk(below)


PARSERS = {parser.prog: parser for parser in walk(every_parser())}


@pytest.mark.parametrize("command", PARSERS)
def test_every_help_has_a_purpose_examples_and_exit_codes(command: str) -> None:
    parser = PARSERS[command]
    text = parser.format_help()
    assert parser.description and parser.description.endswith("."), "no purpose"
    assert f"examples:\n  {command.split()[0]}" in text, "add it to HELP in cli/help_texts.py"
    assert "exit codes:\n  0  done or clean\n  1  could not be done" in text


def examples() -> Iterator[str]:
    for parser in PARSERS.values():
        lines = parser.format_help().partition("examples:\n")[2].partition("\n\n")[0]
        yield from (line.strip() for line in lines.splitlines())


@pytest.mark.parametrize("example", sorted(set(examples())))
def test_every_example_can_be_parsed(example: str) -> None:
    words = shlex.split(example.partition(" > ")[0])
    assert words[0] == "rmqpy"
    if words[-1] == "--help":
        with pytest.raises(SystemExit) as ended:
            _parser(words[1:]).parse_args(words[1:])
        assert ended.value.code == 0
    else:
        _parser(words[1:]).parse_args(words[1:])


def test_no_help_is_left_of_a_command_that_is_gone() -> None:
    assert {f"rmqpy {path}".strip() for path in HELP} <= set(PARSERS)


def test_a_parser_without_help_has_no_epilog() -> None:
    assert "examples:" not in Parser(prog="rmqpy nothing").format_help()
