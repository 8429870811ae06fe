"""``rmqpy console``: the web console of a cluster."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli.connecting import NO_NAME_SERVER, add_connection_options, client_settings
from rmqpy.cli.given_files import check_readable, read_token
from rmqpy.cli.parsing import EXIT_DONE, add_log_file_option, add_log_options, port_number
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands

FIRST_HEARTBEAT_MS = 3_600_000
"""The console is a member of no group, so it has no heartbeat to send."""


def add_commands(commands: Commands) -> None:
    console = commands.add_parser("console", help="show a cluster in the browser")
    add_connection_options(console)
    console.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    console.add_argument(
        "--port", type=port_number, default=8080, help="default 8080; 0: any free port"
    )
    console.add_argument(
        "--token-file", metavar="FILE", help="token that browsers must give; for other hosts"
    )
    console.add_argument("--certificate", metavar="FILE", help="TLS certificate, PEM")
    console.add_argument("--key", metavar="FILE", help="key of the certificate")
    console.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name of this host in the browser's address bar; addresses need none",
    )
    console.add_argument(
        "--allow-writes",
        action="store_true",
        help="also change the cluster, after a login with one of its accounts",
    )
    console.add_argument(
        "--group",
        metavar="DIR",
        help="also show the migration of the group whose group.toml is in DIR",
    )
    add_log_options(console, level="INFO")
    add_log_file_option(console)
    console.set_defaults(command=_console, serves=True)


def _console(options: argparse.Namespace) -> int:
    if not options.name_servers:
        raise RmqError(NO_NAME_SERVER)
    try:
        from rmqpy.console.web.console import ConsoleOptions, serve_console
        from rmqpy.console.web.guard import Listening
    except ModuleNotFoundError as error:
        raise RmqError(
            f"console needs {error.name}, which is not installed: pip install 'rmqpy[console]'"
        ) from error
    check_readable(options.certificate, "the certificate")
    check_readable(options.key, "the key of the certificate")
    listening = Listening(
        host=options.host,
        port=options.port,
        token=read_token(options.token_file),
        certificate=options.certificate,
        key=options.key,
        names=tuple(options.name),
    )
    console = ConsoleOptions(
        cluster=client_settings(options, options.name_servers, FIRST_HEARTBEAT_MS),
        listening=listening,
        allow_writes=options.allow_writes,
        group=_group_folder(options.group),
    )
    serve_console(console, lambda url: print(f"console at {url}", file=sys.stderr, flush=True))
    return EXIT_DONE


def _group_folder(given: str | None) -> Path | None:
    """Return the folder of a group.toml. Raise RmqError if it has none."""
    if given is None:
        return None
    folder = Path(given).absolute()
    if not (folder / "group.toml").is_file():
        raise RmqError(
            f"found no group.toml in {folder}, expected the directory of a group; write the file"
            " there with rmqpy upgrade init"
        )
    return folder
