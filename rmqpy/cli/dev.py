"""The command ``rmqpy dev``."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, add_log_options
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    dev = commands.add_parser(
        "dev",
        help="run a name server and a broker for tests, on free ports and with a temporary store",
    )
    kind = dev.add_mutually_exclusive_group()
    kind.add_argument("--dledger", action="store_true", help="a broker with a DLedger log")
    kind.add_argument(
        "--group", type=int, metavar="N", help="a DLedger group of N members (0: no broker)"
    )
    dev.add_argument("-c", "--config", metavar="FILE", help="broker.conf with further settings")
    dev.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting of the brokers"
    )
    dev.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME[:QUEUES]",
        help="create a topic; others are created by the first message",
    )
    dev.add_argument("-n", dest="name_server", metavar="HOST:PORT", help="use this name server")
    dev.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="open and change this store; the names are broker, or n0, n1, ... in a group",
    )
    dev.add_argument("--keep", metavar="DIR", help="write everything to DIR and keep it")
    dev.add_argument(
        "--parent", type=int, metavar="PID", help="end with this process (default: the parent)"
    )
    add_log_options(dev)
    dev.set_defaults(command=_dev, serves=True)


def _dev(options: argparse.Namespace) -> int:
    # Nearly all objects of a start stay alive.
    gc.disable()
    from rmqpy.testing.dev.cluster import DevPlan
    from rmqpy.testing.dev.serve import ServePlan, serve_dev

    stores = _pairs("--store", "NAME=DIR", options.store)
    plan = DevPlan(
        members=1 if options.group is None else options.group,
        dledger=options.dledger or options.group == 1,
        topics=options.topic,
        settings=_pairs("--set", "KEY=VALUE", options.set),
        config=Path(options.config) if options.config else None,
        name_server=options.name_server,
        stores={name: Path(store) for name, store in stores.items()},
        root=Path(options.keep) if options.keep else None,
    )
    serve_dev(ServePlan(cluster=plan, parent_pid=options.parent))
    return EXIT_DONE


def _pairs(option: str, form: str, texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise RmqError(f"{option} {text}: expected {form}")
        pairs[key] = value
    return pairs
