"""The command ``rmqpy demo``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO, add_log_options

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="master and slave, check, align, switch, leader killed, certificate, the way back",
    )
    demo.add_argument("--store", metavar="DIR", help="work on a copy of this storePathRootDir")
    demo.add_argument(
        "-c", dest="config", metavar="FILE", help="broker.conf with which the store was written"
    )
    demo.add_argument("--keep", metavar="DIR", help="write everything to DIR and keep it")
    add_log_options(demo)
    demo.set_defaults(command=_demo)


def _demo(options: argparse.Namespace) -> int:
    from rmqpy.demo import DemoPlan, run_demo

    plan = DemoPlan(store=options.store, keep=options.keep, config=options.config)
    return EXIT_DONE if run_demo(plan) else EXIT_NO
