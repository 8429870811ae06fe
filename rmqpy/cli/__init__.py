"""``rmqpy``: the commands, one module a group of them.

A group is a module with ``add_commands(commands)``, which adds its subparsers; each sets the
default ``command``: a function of the parsed options that returns an exit code
(:mod:`rmqpy.cli.parsing`). A new group is one more line in ``GROUPS``.

What a command runs is imported in its function: a broker shall not pay for the demo when it starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqpy import __version__
from rmqpy.cli import demo, servers, store
from rmqpy.cli.parsing import EXIT_DONE, EXIT_FAILED, EXIT_NO, Parser
from rmqpy.model.errors import RmqError
from rmqpy.net.log_lines import configure_logging

if TYPE_CHECKING:
    import argparse

__all__ = ["EXIT_DONE", "EXIT_FAILED", "EXIT_NO", "GROUPS", "main"]

GROUPS = (servers, demo, store)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    configure_logging(as_json=options.log_json, level=options.log_level)
    try:
        return command(options)
    except (RmqError, OSError) as error:
        print(f"rmqpy: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED


def _parser() -> Parser:
    parser = Parser(
        prog="rmqpy",
        description="RocketMQ-compatible name server and broker that switch to DLedger in place.",
    )
    parser.add_argument("--version", action="version", version=f"rmqpy {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for group in GROUPS:
        group.add_commands(commands)
    return parser
