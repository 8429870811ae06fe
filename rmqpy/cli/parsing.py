"""The shared parts of all commands: exit codes, a parser that uses them, logging options.

Exit codes: 0 done or clean; 1 could not be done, including bad usage; 2 the answer is no; 130
interrupted by Ctrl-C, as shells report it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_NO = 2
EXIT_INTERRUPTED = 130

CAN_BE_RESUMED = (
    "if changes were started, rmqpy upgrade apply --resume DIR continues them and rmqpy upgrade"
    " rollback DIR takes them back"
)
"""The ``interrupted`` hint of commands that change a store with a journal."""


class Parser(argparse.ArgumentParser):
    """A parser that exits with 1 on bad usage, because 2 means that the answer of a check is no."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"{self.prog}: {message}\n")


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
