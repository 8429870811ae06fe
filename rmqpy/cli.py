"""``rmqpy``: the commands. Exit codes: 0 done, 1 could not be done (bad usage included), 2 the
answer is no.

What a command runs is imported in its function: a broker shall not pay for the demo when it starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rmqpy import __version__
from rmqpy.model.config import (
    BrokerConfiguration,
    NamesrvConfiguration,
    effective_lines,
    load_broker_configuration,
    load_namesrv_configuration,
)
from rmqpy.model.errors import RmqError
from rmqpy.net.log_lines import configure_logging

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_NO = 2


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
    loaded = load_broker_configuration(options.config, overrides, os.environ)
    if options.print_settings:
        return _print_settings(loaded.configuration)
    from rmqpy.broker.process import run_broker

    run_broker(loaded, force_truncate=options.force_truncate)
    return EXIT_DONE


def _demo(options: argparse.Namespace) -> int:
    from rmqpy.demo import DemoPlan, run_demo

    plan = DemoPlan(store=options.store, keep=options.keep, config=options.config)
    return EXIT_DONE if run_demo(plan) else EXIT_NO


def _print_settings(configuration: BrokerConfiguration | NamesrvConfiguration) -> int:
    for line in sorted(effective_lines(configuration)):
        print(line)
    return EXIT_DONE


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    pairs = {}
    for text in options.set:
        key, separator, value = text.partition("=")
        if not separator:
            raise _usage(f"--set {text}: expected KEY=VALUE")
        pairs[key] = value
    return pairs


def _usage(text: str) -> RmqError:
    return RmqError(text)


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 on bad usage; here 2 means that a check said no."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rmqpy",
        description="RocketMQ-compatible name server and broker that switch to DLedger in place.",
    )
    parser.add_argument("--version", action="version", version=f"rmqpy {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    namesrv = commands.add_parser("namesrv", help="run a name server")
    _server_options(namesrv, "namesrv.conf")
    namesrv.set_defaults(command=_namesrv)

    broker = commands.add_parser("broker", help="run a broker")
    _server_options(broker, "broker.conf")
    broker.add_argument(
        "-n", dest="name_server", metavar="HOST:PORT[;HOST:PORT]", help="name servers (namesrvAddr)"
    )
    broker.add_argument(
        "--force-truncate",
        action="store_true",
        help="give up everything behind damage in the middle of the log; the bytes are kept in"
        " rmqpy/quarantine",
    )
    broker.set_defaults(command=_broker)

    demo = commands.add_parser(
        "demo", help="fill a classic store, switch it to DLedger in place, compare every message"
    )
    demo.add_argument(
        "--store", metavar="DIR", help="work on a copy of this storePathRootDir instead"
    )
    demo.add_argument(
        "-c", dest="config", metavar="FILE", help="broker.conf that the store was written with"
    )
    demo.add_argument("--keep", metavar="DIR", help="put everything there and leave it")
    _log_options(demo, level="WARNING")
    demo.set_defaults(command=_demo)
    return parser


def _server_options(parser: argparse.ArgumentParser, config: str) -> None:
    parser.add_argument("-c", dest="config", metavar="FILE", help=f"{config} in Java's form")
    parser.add_argument(
        "-p", dest="print_settings", action="store_true", help="print the effective settings"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, over the file's",
    )
    _log_options(parser, level="INFO")


def _log_options(parser: argparse.ArgumentParser, level: str) -> None:
    parser.add_argument("--log-json", action="store_true", help="log JSON lines")
    parser.add_argument(
        "--log-level",
        default=level,
        choices=["DEBUG", "INFO", "WARNING", "ERROR"],
        help=f"default {level}",
    )


if __name__ == "__main__":
    sys.exit(main())
