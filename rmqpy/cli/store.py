"""``rmqpy store``: what a store directory is, what is wrong with it, what is in it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, Parser, add_format_option, add_log_options
from rmqpy.model.config import StoreSettings, load_broker_configuration
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    store = commands.add_parser(
        "store", help="look at a store directory, on a stopped or a running broker's"
    )
    verbs = store.add_subparsers(required=True, metavar="VERB", parser_class=Parser)
    inspect = verbs.add_parser(
        "inspect", help="mode, files, first and last record, divided offset, who can open it"
    )
    _directory_options(inspect)
    add_format_option(inspect)
    add_log_options(inspect)
    inspect.set_defaults(command=_inspect)


def _directory_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the broker's storePathRootDir")
    parser.add_argument(
        "-c",
        dest="config",
        metavar="FILE",
        help="broker.conf that the store was written with: paths that lie elsewhere, file sizes",
    )


def _settings(options: argparse.Namespace) -> StoreSettings | None:
    if options.config is None:
        return None
    return load_broker_configuration(options.config).configuration.store


def _root(options: argparse.Namespace) -> str:
    """The directory, absolute; RmqError when there is none."""
    from pathlib import Path

    path = Path(options.directory)
    if not path.is_dir():
        raise RmqError(f"{options.directory}: not a directory; give a broker's storePathRootDir")
    return str(path.resolve())


def _inspect(options: argparse.Namespace) -> int:
    from rmqpy.audit.facts import read_facts
    from rmqpy.cli.facts_text import facts_lines
    from rmqpy.store.disk import Disk

    facts = read_facts(Disk(), _root(options), _settings(options))
    if options.format == "json":
        json.dump(facts.as_json(), sys.stdout, indent=2)
        print()
    else:
        for line in facts_lines(facts):
            print(line)
    return EXIT_DONE
