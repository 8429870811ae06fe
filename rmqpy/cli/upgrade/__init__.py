"""``rmqpy upgrade``: check, plan, apply, switch, verify, and the way back.

A replica is written ``[NAME=]DIR`` or ``NAME=http(s)://HOST:PORT`` (another host's ``serve``), its
broker.conf ``-c [NAME=]FILE``. Exit codes: 0 done or clean; 1 could not be done; 2 refused by a
safety check, or findings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_commands(commands: Commands) -> None:
    # Not at the top: other commands need single modules of this package.
    from rmqpy.cli.upgrade import (
        aligning,
        checking,
        leaving,
        preparing,
        proving,
        serving,
        status,
        switching,
        undoing,
    )
    from rmqpy.cli.upgrade.group import agent, driving, init

    upgrade = commands.add_parser(
        "upgrade", help="switch from master and slave to DLedger and back, with plans and proofs"
    )
    verbs = upgrade.add_subparsers(required=True, metavar="VERB")
    for module in (
        init,
        driving,
        checking,
        preparing,
        aligning,
        switching,
        leaving,
        undoing,
        proving,
        status,
        serving,
        agent,
    ):
        module.add_verbs(verbs)
