"""Of the parsers of all commands, a command line builds those that it needs, and its help, its
options, and its errors are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from rmqpy.cli.command_line import _parse, _parser, every_parser
from rmqpy.cli.parsing import BadUsageError, Parser, _Unused

WRONG = (
    "pipelin audit",
    "pipeline audti DIR",
    "pipeline",
    "pipeline audit",
    "pipeline audit DIR --engene local",
    "pipeline audit DIR --engine lokal",
    "admin topicLst",
    "upgrade swich",
    "store fsck",
    "why not-deletd x",
    "replay",
)


def walk(parser: argparse.ArgumentParser) -> Iterator[Parser]:
    assert isinstance(parser, Parser)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                assert not isinstance(child, _Unused)
                yield from walk(child)


EVERY = {parser.prog: parser for parser in walk(every_parser())}


@pytest.mark.parametrize("path", [path for path in EVERY if " " in path])
def test_the_help_of_a_command_is_that_of_the_whole_parser(path: str) -> None:
    words = path.split()[1:]
    few = {parser.prog: parser for parser in walk(_parser(words, words))}
    assert len(few) < len(EVERY)
    assert few[path].format_usage() == EVERY[path].format_usage()
    if not any(other.startswith(f"{path} ") for other in EVERY):
        assert few[path].format_help() == EVERY[path].format_help()
    with pytest.raises(SystemExit) as ended:  # which prints the whole list of a group
        _parse([*words, "--help"], {})
    assert ended.value.code == 0


def test_the_help_of_a_group_lists_all_of_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("pipeline", "upgrade", "store", "admin"):
        with pytest.raises(SystemExit):
            _parse([group, "--help"], {})
        assert capsys.readouterr().out == EVERY[f"rmqpy {group}"].format_help()


@pytest.mark.parametrize("line", WRONG)
def test_the_error_is_that_of_the_whole_parser(line: str) -> None:
    with pytest.raises(BadUsageError) as expected:
        every_parser().parse_args(line.split())
    with pytest.raises(BadUsageError) as found:
        _parse(line.split(), {})
    assert (str(found.value), found.value.usage) == (str(expected.value), expected.value.usage)


def test_aliases_and_given_attributes_are_kept() -> None:
    found = _parse(["pipeline", "audit", "a", "--engine", "local", "b"], {"extra": 1})
    assert (found.directories, found.engine, found.extra) == (["a", "b"], "local", 1)
