"""``rmqpy rehearse``: copy a live group as an observer, and try on the copy what is planned."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING

from rmqpy.cli.connecting import NO_NAME_SERVER, add_connection_options, client_settings
from rmqpy.cli.parsing import (
    CAN_BE_REPEATED,
    EXIT_DONE,
    EXIT_NO,
    add_format_option,
    add_log_options,
    add_rate_option,
)
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.net.loop import AsyncioScheduler
    from rmqpy.rehearsal.copying import CopyStatus

RATE_MIB = 20.0
DAY_S = 86_400
NO_HEARTBEAT_MS = 3_600_000_000
"""No heartbeat is sent: this client belongs to no group."""


def add_commands(commands: Commands) -> None:
    rehearse = commands.add_parser(
        "rehearse",
        help="copy a live group without taking part in it, and go to DLedger and back on the copy",
    )
    add_connection_options(rehearse)
    rehearse.add_argument(
        "-b",
        "--brokerName",
        dest="broker_name",
        required=True,
        metavar="BROKERNAME",
        help="the brokerName of the group",
    )
    rehearse.add_argument(
        "--dir",
        dest="folder",
        required=True,
        metavar="DIR",
        help="the directory of the copy: empty, or that of an earlier rehearsal of this group",
    )
    add_rate_option(rehearse, "copy at most MIB MiB a second", RATE_MIB)
    rehearse.add_argument(
        "--keep",
        action="store_true",
        help="continue to follow the group until Ctrl-C, and rehearse again every day",
    )
    add_format_option(rehearse)
    add_log_options(rehearse)
    rehearse.set_defaults(command=_rehearse, interrupted=CAN_BE_REPEATED)


def _rehearse(options: argparse.Namespace) -> int:
    from rmqpy.cli.errors import error_json
    from rmqpy.cli.progress import StatusLine
    from rmqpy.cli.upgrade.base.output import print_result
    from rmqpy.net.loop import run
    from rmqpy.rehearsal.session import RehearsalPlan, rehearse
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    if not options.name_servers:
        raise RmqError(NO_NAME_SERVER)
    plan = RehearsalPlan(
        client=client_settings(options, options.name_servers, NO_HEARTBEAT_MS),
        broker_name=options.broker_name,
        folder=options.folder,
        bytes_per_second=options.rate * (1 << 20),
        again_s=DAY_S if options.keep else 0,
    )
    code = EXIT_DONE
    line = StatusLine()

    async def every_report(scheduler: AsyncioScheduler) -> None:
        nonlocal code
        _cancel_on_sigterm()
        reports = rehearse(
            plan,
            scheduler,
            lambda status: line.show(text_of(status)),
            lambda step: line.show(f"rehearsing: {step}"),
        )
        async with aclosing(reports):
            async for report in reports:
                line.clear()
                print_result(options, report.as_json(), report.lines())
                sys.stdout.flush()
                code = EXIT_DONE if report.is_ready else EXIT_NO

    try:
        with line:
            run(every_report)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except UpgradeRefusedError as refused:
        value = error_json(refused, EXIT_NO, {"refused": str(refused)})
        print_result(options, value, [f"rmqpy: refused: {refused}"], sys.stderr)
        return EXIT_NO
    return code


def _cancel_on_sigterm() -> None:
    """End on SIGTERM as on Ctrl-C: the copy is closed, and brokers of a walk are ended, too."""
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def text_of(status: CopyStatus) -> str:
    """Return the line for one look."""
    from rmqpy.model.text import format_bytes, format_duration

    done, total = status.end - status.begin, status.goal - status.begin
    text = (
        f"{status.state} {format_bytes(done)} of {format_bytes(total)},"
        f" {format_bytes(round(status.rate))}/s, lag {format_bytes(status.lag)}"
    )
    if status.left_s:
        text += f", {format_duration(status.left_s)} left"
    if status.proof_age_s is not None:
        text += f", rehearsed {format_duration(status.proof_age_s)} ago"
    return f"{text}; {status.reason}" if status.reason else text
