"""``rmqpy upgrade init``: write ``group.toml`` from the brokers' own configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import evolve

from rmqpy.cli.given_files import read_given, read_token
from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.hosts import PROGRAM, hosts_of, note
from rmqpy.cli.upgrade.base.options import add_verb
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.group.shell import is_free_port
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.group.proposal import FoundBroker

LOCAL = "local"


def add_verbs(verbs: Commands) -> None:
    init = add_verb(
        verbs,
        "init",
        "write group.toml from the brokers' configuration; the other verbs then need no arguments",
        _init,
    )
    init.add_argument(
        "config",
        nargs="+",
        metavar="FILE",
        help="the broker.conf of each member: a path, ssh://HOST/PATH, or the https:// address of"
        " rmqpy upgrade serve",
    )
    init.add_argument(
        "--rmqpy", metavar="PATH", help="rmqpy on the hosts reached over ssh; default rmqpy"
    )
    init.add_argument("--token-file", metavar="FILE", help="token for https:// addresses")
    init.add_argument("--authority", metavar="FILE", help="certificates to trust, PEM")
    init.add_argument("--force", action="store_true", help="replace an existing group.toml")


def _init(options: argparse.Namespace) -> int:
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.group.group_file import GROUP_FILE, parse_group_file
    from rmqpy.upgrade.group.group_file_text import group_file_text
    from rmqpy.upgrade.group.proposal import propose_group

    path = Path.cwd() / GROUP_FILE
    if path.exists() and not options.force:
        raise RmqError(
            f"found {GROUP_FILE} in this directory, expected none; correct it, or replace it with"
            " --force"
        )
    proposal = propose_group(
        [_found(options, text) for text in options.config], partial(_is_free, options)
    )
    file = evolve(
        proposal.group,
        token_file=options.token_file or "",
        authority=options.authority or "",
        members=tuple(
            evolve(each, rmqpy=options.rmqpy or "") if each.is_over_ssh else each
            for each in proposal.group.members
        ),
    )
    text = group_file_text(file, proposal.remarks)
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


def _found(options: argparse.Namespace, text: str) -> FoundBroker:
    """Return the configuration of a broker. Raise ConfigError for one that it would refuse, unless
    only because of its controller: ``leave`` writes one without.
    """
    from rmqpy.config.loading import parse_broker_configuration
    from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
    from rmqpy.upgrade.group.proposal import FoundBroker
    from rmqpy.upgrade.plan.configuration import ONLY_WITH_A_CONTROLLER, rewritten

    host, path, raw, home = _read(options, text)
    content = decode_properties_bytes(raw)
    alone = rewritten(content, {}, ONLY_WITH_A_CONTROLLER)
    loaded = parse_broker_configuration(alone, path, home).configuration
    root = loaded.store.store_path_root_dir
    return FoundBroker(
        host=host,
        path=path,
        configuration=loaded,
        keys={each.key: each.value.strip() for each in parse_properties(content, path)},
        directory=root if host != LOCAL else str(Path(root).absolute()),
    )


def _read(options: argparse.Namespace, text: str) -> tuple[str, str, bytes, Mapping[str, str]]:
    """Return (host, path there, content, environment) of a broker.conf."""
    from rmqpy.config.properties_file import format_properties
    from rmqpy.upgrade.checks.replica import RemoteReplica
    from rmqpy.upgrade.link.frames import Frame

    if text.startswith("ssh://"):
        parts = urlsplit(text)
        host = f"ssh://{parts.netloc}"
        link = hosts_of(options).over_ssh(host, options.rmqpy or PROGRAM)
        found = link.request(Frame("config", {"path": parts.path}))
        return host, parts.path, found.body, {"HOME": str(found.head["HOME"])}
    if text.startswith(("https://", "http://")):
        token = read_token(options.token_file)
        facts = RemoteReplica("the member", text, token, options.authority, note=note).facts()
        if not facts.config_path:
            raise RmqError(
                f"{text}: found no broker.conf, expected it; run rmqpy upgrade serve there with -c"
            )
        keys = {"storePathRootDir": facts.root, **facts.keys}
        return text, facts.config_path, format_properties(keys).encode(), {}
    scheme, separator, _ = text.partition("://")
    if separator:
        raise RmqError(
            f"{text}: found the scheme {scheme}, expected a path, ssh://HOST/PATH, or"
            f" https://HOST:PORT; correct it{did_you_mean(scheme, ('ssh', 'https'))}"
        )
    return LOCAL, text, read_given(text, "the broker.conf"), os.environ


def _is_free(options: argparse.Namespace, broker: FoundBroker, port: int) -> bool:
    """Return whether no process of the broker's host listens on a port, if that can be known."""
    from rmqpy.upgrade.link.frames import Frame

    if broker.host == LOCAL:
        return is_free_port(port)
    if broker.host.startswith("ssh://"):
        link = hosts_of(options).over_ssh(broker.host, options.rmqpy or PROGRAM)
        answer = link.request(Frame("port", {"port": port}))
        return bool(answer.head["free"])
    return True
