"""The shared parts of all commands: exit codes, a parser that uses them, logging options.

Exit codes: 0 done or clean; 1 could not be done, including bad usage; 2 the answer is no; 130
interrupted by Ctrl-C, as shells report it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NoReturn

from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]
    _SubParsers = Commands
else:
    _SubParsers = argparse._SubParsersAction

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_NO = 2
EXIT_INTERRUPTED = 130

CHOICES_LISTED = 16
"""The number of choices that an error lists."""

CAN_BE_RESUMED = (
    "if changes were started, rmqpy upgrade apply --resume DIR continues them and rmqpy upgrade"
    " rollback DIR takes them back"
)
"""The ``interrupted`` hint of commands that change a store with a journal."""


class BadUsageError(Exception):
    """The words of a command line are wrong; ``usage`` is the usage of the command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Subcommands(_SubParsers):
    """Subcommands whose description is the text that the list of commands shows."""

    def add_parser(self, name: str, **given: Any) -> Parser:
        text = given.get("description") or given["help"]
        given["description"] = f"{text[0].upper()}{text[1:].rstrip('.')}."
        return super().add_parser(name, **given)


class Parser(argparse.ArgumentParser):
    """A parser that raises BadUsageError, suggests the nearest command, and shows examples and
    exit codes at the end of its help (:mod:`rmqpy.cli.help_texts`).
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **given})
        self.register("action", "parsers", _Subcommands)

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("rmqpy").strip()
        raise BadUsageError(f"{command}: {message}" if command else message, self.format_usage())

    def format_help(self) -> str:
        from rmqpy.cli.help_texts import epilog_of

        self.epilog = epilog_of(self)
        return super().format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError with the nearest choice, or all if there are only a few."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        listed = ", ".join(choices[:CHOICES_LISTED])
        expected = f"one of {listed}" if len(choices) <= CHOICES_LISTED else "one that --help lists"
        hint = did_you_mean(str(value), choices)
        raise argparse.ArgumentError(action, f"found {value!r}, expected {expected}{hint}")


def add_log_options(parser: argparse.ArgumentParser, level: str = "WARNING") -> None:
    """Add ``--log-json`` and ``--log-level``, which every command has."""
    parser.add_argument("--log-json", action="store_true", help="write log lines as JSON")
    parser.add_argument(
        "--log-level",
        default=level,
        choices=["DEBUG", "INFO", "WARNING", "ERROR"],
        help=f"default {level}",
    )


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--format text|json``, the format of stdout."""
    parser.add_argument("--format", default="text", choices=["text", "json"], help="default text")
