"""``rmqpy upgrade serve``: let other hosts read a directory, or drive its upgrade."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import check_readable, read_token
from rmqpy.cli.parsing import EXIT_DONE, port_number
from rmqpy.cli.upgrade.base.options import add_verb
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.base.replicas import local_replicas
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.checks.replica import LocalReplica


def add_verbs(verbs: Commands) -> None:
    serve = add_verb(
        verbs,
        "serve",
        "serve this directory to other hosts: to read it, and with --drive to upgrade it",
        _serve,
    )
    serve.add_argument("directory", metavar="DIR", help="a broker's storePathRootDir")
    serve.add_argument(
        "-c", dest="config", action="append", default=[], metavar="FILE", help="its broker.conf"
    )
    serve.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    serve.add_argument("--port", type=port_number, default=0, help="default: any free port")
    serve.add_argument("--token-file", metavar="FILE", help="token that clients must send")
    serve.add_argument("--certificate", metavar="FILE", help="TLS certificate, PEM")
    serve.add_argument("--key", metavar="FILE", help="key of the certificate")
    serve.add_argument(
        "--drive",
        action="store_true",
        help="also carry out apply, switch, leave, rollback, and finalize in this directory for the"
        " machine that drives the group; requires a token, TLS, and -c",
    )
    serve.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="COMMAND",
        help="with --drive: a start or stop command in group.toml that may be run here",
    )
    serve.set_defaults(every_md5=True, may_be_empty=True)


def _serve(options: argparse.Namespace) -> int:
    try:
        from rmqpy.upgrade.serve import TokenAuth, run
    except ModuleNotFoundError as error:
        raise RmqError(
            f"serve needs {error.name}, which is not installed: pip install 'rmqpy[upgrade]'"
        ) from error

    options.replica = [options.directory]
    (replica,) = local_replicas(options)
    token = read_token(options.token_file)
    check_readable(options.certificate, "the certificate")
    check_readable(options.key, "the key of the certificate")
    auth = TokenAuth(
        host=options.host,
        port=options.port,
        token=token,
        certificate=options.certificate,
        key=options.key,
    )
    agent = _agent_command(options, replica) if options.drive else None

    def is_ready(address: str) -> None:
        print_result(options, {"ready": address}, [f"ready: {address}"])
        sys.stdout.flush()

    run(replica, auth, is_ready, agent)
    return EXIT_DONE


def _agent_command(options: argparse.Namespace, replica: LocalReplica) -> list[str]:
    """Return the command that starts the agent of a driving machine."""
    if replica.plan.config_path is None:
        raise RmqError("serve --drive needs the broker.conf, which switch writes: add -c FILE")
    words = ["upgrade", "agent", "--only", replica.root, "-c", replica.plan.config_path]
    words += [word for command in options.allow for word in ("--allow", command)]
    return [sys.executable, "-m", "rmqpy.cli", *words]
