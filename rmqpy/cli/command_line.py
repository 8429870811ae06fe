"""Parse a command line and run its command; the commands are one module per group.

A group is a module with ``add_commands(commands)``, which adds its subparsers. Each subparser sets
the default ``command``, a function of the parsed options that returns an exit code
(:mod:`rmqpy.cli.parsing`), and may set ``interrupted``, the hint printed after Ctrl-C. A new group
needs one more line in ``GROUPS``.

Only the group of the given command is imported, and its functions import the code that they run, so
that the other commands do not slow down the start of a broker.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import takewhile
from typing import Final

from rmqpy.cli import EXIT_INTERRUPTED
from rmqpy.cli.errors import report_error, wants_json
from rmqpy.cli.parsing import EXIT_FAILED, EXIT_NO_READER, BadUsageError, Parser
from rmqpy.cli.version import PrintVersion
from rmqpy.model.errors import RmqError
from rmqpy.net.logging_setup import configure_logging

__all__ = ["GROUPS", "every_parser", "run"]

GROUPS: Mapping[str, tuple[str, ...]] = {
    "servers": ("namesrv", "broker"),
    "dev": ("dev",),
    "demo": ("demo",),
    "store": ("store",),
    "admin": ("admin",),
    "upgrade": ("upgrade",),
    "rehearse": ("rehearse",),
    "suite": ("suite",),
    "traffic": ("record", "replay"),
    "pipeline": ("pipeline",),
    "why": ("why", "where"),
    "console": ("console",),
    "completion": ("completion",),
}
"""The modules of this package, each with the commands that it adds."""
YOUNG_OBJECTS = 100_000
"""How many objects a command may add before Python looks for cycles among them: nearly all that
describe a large store stay alive until the end.
"""
_THRESHOLDS: Final = gc.get_threshold()


def run(words: Sequence[str], **given: object) -> int:
    """Run one command and return its exit code; ``given`` are further attributes of its options."""
    as_json = wants_json(words)
    options = argparse.Namespace(**given)
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        options = _parse(words, given)
        command: Callable[[argparse.Namespace], int] = options.command
        configure_logging(
            as_json=options.log_json,
            level=options.log_level,
            path=getattr(options, "log_file", None),
        )
        if getattr(options, "serves", False):
            gc.set_threshold(*_THRESHOLDS)
            result = command(options)
        else:
            result = command(options)
            _refuse_lost_pages()
        sys.stdout.flush()
        return result
    except BadUsageError as error:
        if not as_json:
            print(error.usage, end="", file=sys.stderr)
        sys.exit(report_error(error, EXIT_FAILED, as_json=as_json))
    except BrokenPipeError:
        return _end_without_reader()
    except (RmqError, OSError) as error:
        return report_error(error, EXIT_FAILED, as_json=as_json)
    except KeyboardInterrupt:
        hint = _hint_of(options)
        return report_error(f"interrupted{hint and '; '}{hint}", EXIT_INTERRUPTED, as_json=as_json)


def _hint_of(options: argparse.Namespace) -> str:
    """Return what an interrupted command leaves to do; a group's verbs are typed without DIR."""
    hint: str = getattr(options, "interrupted", "")
    if getattr(options, "given_group", None) is None:
        return hint
    return hint.replace(" --resume DIR", "").replace(" DIR", "")


def _end_without_reader() -> int:
    """End as other programs do whose output nobody reads any more, as after ``| head``."""
    with suppress(OSError, ValueError):  # what is buffered would fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_NO_READER


def _refuse_lost_pages() -> None:
    """Raise LostPagesError if the command has read a file that the disk could not deliver as a
    whole, because its result does not hold then.
    """
    found = sys.modules.get("rmqpy.store.files.lost_pages")  # not imported: no file was mapped
    if found is not None:
        found.raise_if_any()


def _parse(words: Sequence[str], given: Mapping[str, object]) -> argparse.Namespace:
    """Return the options of a command line. Raise BadUsageError."""
    chosen = tuple(takewhile(lambda word: not word.startswith("-"), words))
    try:
        return _parser(words, chosen).parse_args(words, argparse.Namespace(**given))
    except BadUsageError:
        if not chosen:
            raise
        # The sentence may name other commands, whose parsers are needed then.
        return _parser(words).parse_args(words, argparse.Namespace(**given))


def _parser(words: Sequence[str], chosen: Sequence[str] = ()) -> Parser:
    """Return a parser of the commands in the modules of ``words``, or of ``chosen`` only."""
    parser = Parser(
        chosen,
        prog="rmqpy",
        description="RocketMQ-compatible name server and broker that switch to DLedger in place.",
    )
    parser.add_argument(
        "--version",
        action=PrintVersion,
        nargs=0,
        help="show version, core (C or Python), event loop, Python, and commit, and exit",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in _modules(words):
        import_module(f"rmqpy.cli.{module}").add_commands(commands)
    return parser


def every_parser() -> Parser:
    """Return the parser with all commands."""
    return _parser([])


def _modules(words: Sequence[str]) -> list[str]:
    """Return the module of the command in ``words``, or all modules if it names none."""
    command = next((word for word in words if not word.startswith("-")), None)
    found = [module for module, names in GROUPS.items() if command in names]
    return found or list(GROUPS)
