"""The commands ``rmqpy namesrv`` and ``rmqpy broker``."""

from __future__ import annotations

import argparse
import gc
import os
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, add_log_options
from rmqpy.config.loading import (
    BrokerConfiguration,
    NamesrvConfiguration,
    effective_lines,
    load_broker_configuration,
    load_namesrv_configuration,
)
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    namesrv = commands.add_parser("namesrv", help="run a name server")
    _server_options(namesrv, "namesrv.conf")
    namesrv.set_defaults(command=_namesrv, serves=True)

    broker = commands.add_parser("broker", help="run a broker")
    _server_options(broker, "broker.conf")
    broker.add_argument(
        "-n", dest="name_server", metavar="HOST:PORT[;HOST:PORT]", help="name servers (namesrvAddr)"
    )
    broker.add_argument(
        "--force-truncate",
        action="store_true",
        help="give up everything after damage in the middle of the log; the bytes are kept in"
        " rmqpy/quarantine",
    )
    broker.set_defaults(command=_broker, serves=True)


def _namesrv(options: argparse.Namespace) -> int:
    loaded = load_namesrv_configuration(options.config, _overrides(options), os.environ)
    if options.print_settings:
        return _print_settings(loaded.configuration)
    from rmqpy.namesrv.process import run_namesrv

    run_namesrv(loaded)
    return EXIT_DONE


def _broker(options: argparse.Namespace) -> int:
    overrides = _overrides(options)
    if options.name_server:
        overrides["namesrvAddr"] = options.name_server
    # Nearly all objects of a start stay alive. The process enables collection when it is ready.
    gc.disable()
    loaded = load_broker_configuration(options.config, overrides, os.environ)
    if options.print_settings:
        return _print_settings(loaded.configuration)
    from rmqpy.broker.assembly.process import run_broker

    run_broker(loaded, force_truncate=options.force_truncate)
    return EXIT_DONE


def _print_settings(configuration: BrokerConfiguration | NamesrvConfiguration) -> int:
    for line in sorted(effective_lines(configuration)):
        print(line)
    return EXIT_DONE


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    pairs = {}
    for text in options.set:
        key, separator, value = text.partition("=")
        if not separator:
            raise RmqError(f"--set {text}: expected KEY=VALUE")
        pairs[key] = value
    return pairs


def _server_options(parser: argparse.ArgumentParser, config: str) -> None:
    parser.add_argument("-c", dest="config", metavar="FILE", help=f"{config} in Java's format")
    parser.add_argument(
        "-p", dest="print_settings", action="store_true", help="print the effective settings"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, overriding the file",
    )
    add_log_options(parser, level="INFO")
