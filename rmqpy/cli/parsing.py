"""The shared parts of all commands: exit codes, a parser that uses them, logging options.

Exit codes: 0 done or clean; 1 could not be done, including bad usage; 2 the answer is no; 130
(:data:`rmqpy.cli.EXIT_INTERRUPTED`) interrupted by Ctrl-C, and 141 when nobody reads the output any
more, as shells report both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast

from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    _SubParsers = argparse._SubParsersAction["Parser"]
    Commands: TypeAlias = "_Subcommands"
else:
    _SubParsers = argparse._SubParsersAction

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_NO = 2
EXIT_NO_READER = 141

PORT_MAX = 65_535
_WIDTH: Final = 80
"""The width of lines if there is no terminal."""
CHOICES_LISTED = 16
"""The number of choices that an error lists."""

_REQUIRED, _ONE_OF, _ONE_OF_END = (
    "the following arguments are required: ",
    "one of the arguments ",
    " is required",
)
"""What argparse says of words that are missing."""
_LISTED = ("VERB", "NAME", "COMMAND", "QUESTION")

CAN_BE_RESUMED = (
    "if changes were started, rmqpy upgrade apply --resume DIR continues them and rmqpy upgrade"
    " rollback DIR takes them back"
)
"""The ``interrupted`` hint of commands that change a store with a journal."""
CAN_BE_REPEATED = "run the command again: it continues where it stopped"
"""The hint of commands that need nothing else."""
BEGINS_AGAIN = "run the command again: it begins again"
"""The hint of commands whose result exists as a whole or not at all."""


class BadUsageError(Exception):
    """The words of a command line are wrong; ``usage`` is the usage of the command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Unused:
    """Stands for the parser of a command that was not given, and for its options: to build those of
    all commands takes longer than some commands do.
    """

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given, **_named: self


class _Subcommands(_SubParsers):
    """Subcommands whose description is the text that the list of commands shows.

    ``given`` is the one of the command line, if only its parser is needed.
    """

    given: str | None = None

    def needs(self, *names: str) -> bool:
        """Return whether the parser of one of these commands is needed."""
        return self.given is None or self.given in names

    def add_parser(self, name: str, **given: Any) -> Parser:
        if not self.needs(name, *given.get("aliases", ())):
            return cast("Parser", _Unused())
        text = given.get("description") or given["help"]
        given["description"] = f"{text[0].upper()}{text[1:].rstrip('.')}."
        return super().add_parser(name, **given)


def _width() -> int:
    """Return the width of the terminal as argparse does, which imports ``shutil`` for it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        stdout = sys.__stdout__
        return (os.get_terminal_size(stdout.fileno()).columns if stdout else 0) or _WIDTH
    except (ValueError, OSError):
        return _WIDTH


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width() - 2)


class Parser(argparse.ArgumentParser):
    """A parser that raises BadUsageError, suggests the nearest command, and shows examples and
    exit codes at the end of its help (:mod:`rmqpy.cli.help_texts`).

    ``chosen`` are the commands of the command line, if only their parsers are needed.
    """

    def __init__(self, chosen: Sequence[str] = (), **given: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **given})
        self.register("action", "parsers", _Subcommands)
        self._chosen = chosen
        self._words: Sequence[str] = ()

    def add_subparsers(self, **given: Any) -> _Subcommands:  # type: ignore[override]
        own, *below = self._chosen or (None,)
        found = super().add_subparsers(
            **{"prog": self.prog, "parser_class": partial(Parser, below), **given}
        )
        assert isinstance(found, _Subcommands)
        found.given = own
        return found

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("rmqpy").strip()
        hint = self._unknown_option_hint()
        message = f"{self._explained(message)}{hint}"
        raise BadUsageError(f"{command}: {message}" if command else message, self.format_usage())

    def _explained(self, message: str) -> str:
        """Return argparse's sentence about missing words as one with a remedy."""
        if message.startswith(_REQUIRED):
            names = message.removeprefix(_REQUIRED)
            shown = "lists them" if names in _LISTED else "explains it"
            each = "a value for each" if ", " in names else "one"
            return f"found no {names}, expected {each}; {self.prog} --help {shown}"
        if message.startswith(_ONE_OF) and message.endswith(_ONE_OF_END):
            names = message.removeprefix(_ONE_OF).removesuffix(_ONE_OF_END)
            return f"found none of {names}, expected one; {self.prog} --help explains it"
        return message

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does; take further values of a list after options, too, and refuse what
        is unknown here, where the options of the command are known.
        """
        self._words = sys.argv[1:] if args is None else args
        found, extra = super().parse_known_args(args, namespace)
        if not extra or self._subparsers is not None:
            return found, extra
        self._words = ()  # what is unknown is named below
        options = [word for word in extra if word.startswith("-")]
        listed = [each for each in self._get_positional_actions() if each.nargs in ("*", "+")]
        if listed and not options:
            setattr(found, listed[0].dest, [*getattr(found, listed[0].dest), *extra])
            return found, []
        if not options:
            self.error(f"found {' '.join(extra)!r} in excess, expected nothing more")
        known = self._option_string_actions
        hint = did_you_mean(options[0].partition("=")[0], known)
        self.error(f"found the option {options[0]}, expected one that --help lists{hint}")

    def _unknown_option_hint(self) -> str:
        """Return the option that a misspelled one was meant to be: it may be the missing one."""
        known = self._option_string_actions
        given = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        unknown = [word for word in given if not any(each.startswith(word) for each in known)]
        hints = [f"; {word}{hint}" for word in unknown if (hint := did_you_mean(word, known))]
        return "".join(hints[:1]).replace("; did", ": did", 1)

    def format_help(self) -> str:
        from rmqpy.cli.help_texts import epilog_of

        self.epilog = epilog_of(self)
        return super().format_help()

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return a converted value; say of a number what was found and expected."""
        kind = {int: "a whole number", float: "a number"}.get(action.type)  # type: ignore[call-overload]
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if kind is None:
                raise
            text = f"found {arg_string!r}, expected {kind}; correct it"
            raise argparse.ArgumentError(action, text) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError with the nearest choice, or all if there are only a few."""
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        listed = ", ".join(choices[:CHOICES_LISTED])
        expected = f"one of {listed}" if len(choices) <= CHOICES_LISTED else "one that --help lists"
        hint = did_you_mean(str(value), choices)
        raise argparse.ArgumentError(action, f"found {value!r}, expected {expected}{hint}")


def output_path(text: str) -> str:
    """Return the absolute path of an output, for the ``type`` of an option.

    Raise ArgumentTypeError if its parent is not a directory that can be written.
    """
    path = _path(text)
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        what = "a folder that cannot be written" if os.path.isdir(parent) else "a file"
        raise argparse.ArgumentTypeError(
            f"{text}: found {what} at {parent}, expected a folder to write to; give another path"
        )
    return path


def output_file(text: str) -> str:
    """Return the absolute path of an output file, whose folder must exist."""
    path = output_path(text)
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        what = "a folder" if os.path.isdir(path) else "no folder to write it to"
        raise argparse.ArgumentTypeError(
            f"{text}: found {what}, expected the path of a file in an existing folder"
        )
    return path


def _path(text: str) -> str:
    from rmqpy.model.errors import ConfigError
    from rmqpy.model.local_paths import local_path

    try:
        return local_path(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """Return a whole number of at least 1, for the ``type`` of an option."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number of at least 1")
    return int(text)


def _mib_per_second(text: str) -> float:
    """Return a rate of 0 or more; ``inf`` and ``nan`` are none."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1
    if not 0 <= rate < float("inf"):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected MiB a second, or 0 for no limit; correct it"
        )
    return rate


def port_number(text: str) -> int:
    """Return the number of a port to listen on, 0 for any free one; the ``type`` of an option.

    Raise ArgumentTypeError if there is no such port.
    """
    if not (text.isascii() and text.isdigit()) or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a port from 0 to {PORT_MAX}; correct it"
        )
    return int(text)


def add_log_options(parser: argparse.ArgumentParser, level: str = "WARNING") -> None:
    """Add ``--log-json`` and ``--log-level``, which every command has."""
    parser.add_argument("--log-json", action="store_true", help="write log lines as JSON")
    parser.add_argument(
        "--log-level",
        default=level,
        choices=["DEBUG", "INFO", "WARNING", "ERROR"],
        help=f"default {level}",
    )


def add_log_file_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-file``, which servers have."""
    parser.add_argument(
        "--log-file",
        metavar="FILE",
        help="write log lines to FILE, which may be rotated; default: standard error",
    )


def add_rate_option(parser: argparse.ArgumentParser, meaning: str, default_mib: float) -> None:
    """Add ``--rate``, a limit in MiB per second, 0 for none; ``meaning`` opens its help."""
    parser.add_argument(
        "--rate",
        type=_mib_per_second,
        default=default_mib,
        metavar="MIB",
        help=f"{meaning}; 0: no limit; default {default_mib:.0f}",
    )


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--format text|json``, the format of stdout."""
    parser.add_argument("--format", default="text", choices=["text", "json"], help="default text")
