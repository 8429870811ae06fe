"""``rmqpy upgrade init``: write ``group.toml`` from the brokers' own configuration."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.options import add_verb
from rmqpy.cli.upgrade.output import print_result
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.group.proposal import FoundBroker


def add_verbs(verbs: Commands) -> None:
    init = add_verb(
        verbs,
        "init",
        "write group.toml from the brokers' configuration; the other verbs then need no arguments",
        _init,
    )
    init.add_argument("config", nargs="+", metavar="FILE", help="the broker.conf of each member")
    init.add_argument("--force", action="store_true", help="replace an existing group.toml")


def _init(options: argparse.Namespace) -> int:
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.group.group_file import GROUP_FILE, group_file_text, parse_group_file
    from rmqpy.upgrade.group.proposal import propose_group

    path = Path.cwd() / GROUP_FILE
    if path.exists() and not options.force:
        raise RmqError(
            f"found {GROUP_FILE} in this directory, expected none; correct it, or replace it with"
            " --force"
        )
    proposal = propose_group([_found(text) for text in options.config], _is_free)
    text = group_file_text(proposal.group, proposal.remarks)
    parse_group_file(text, GROUP_FILE)
    OsFileSystem().replace_bytes(str(path), text.encode())
    names = ", ".join(each.name for each in proposal.group.members)
    value = {"file": str(path), "members": [each.name for each in proposal.group.members]}
    lines = [
        f"wrote {GROUP_FILE}: {proposal.group.broker} with {names}",
        *(f"{name}: {text}" for name, texts in proposal.remarks.items() for text in texts),
        "read it, correct what is wrong, then run rmqpy upgrade check",
    ]
    print_result(options, value, lines)
    return EXIT_DONE


def _found(text: str) -> FoundBroker:
    """Return the configuration of a broker. Raise ConfigError for one that it would refuse."""
    from rmqpy.config.loading import load_broker_configuration
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.group.group_file import LOCAL
    from rmqpy.upgrade.group.proposal import FoundBroker
    from rmqpy.upgrade.plan.survey import read_config

    path = Path(text)
    loaded = load_broker_configuration(path, {}, os.environ).configuration
    return FoundBroker(
        host=LOCAL,
        path=text,
        configuration=loaded,
        keys=read_config(OsFileSystem(), str(path.resolve())) or {},
        directory=str(Path(loaded.store.store_path_root_dir).absolute()),
    )


def _is_free(broker: FoundBroker, port: int) -> bool:
    """Return whether no process of this host listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
