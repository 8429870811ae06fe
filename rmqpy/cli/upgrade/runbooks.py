"""``rmqpy upgrade switch | leave --runbook``: print the commands for a group."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.base.replicas import absolute, is_remote, name_of, named
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.group.group_file import MemberSpec
    from rmqpy.upgrade.runbook import RunbookGroup


def print_runbook(
    options: argparse.Namespace, lines_of: Callable[[RunbookGroup], Iterator[str]]
) -> int:
    """Print the runbook of the group in ``group.toml``, or of the replicas in the command."""
    from rmqpy.upgrade.runbook import RunbookGroup

    if options.given_group is not None:
        file = options.given_group.file
        group = RunbookGroup(members=file.members, brokers=options.runbook, broker_name=file.broker)
    else:
        members = [_member(options, text) for text in options.replica]
        init = list(map(_init_argument, members))
        group = RunbookGroup(members=members, brokers=options.runbook, init=init)
    lines = list(lines_of(group))
    print_result(options, {"runbook": lines}, lines)
    return EXIT_DONE


def _member(options: argparse.Namespace, text: str) -> MemberSpec:
    """Return what the command says of a member. Raise RmqError if its broker.conf is missing."""
    from rmqpy.upgrade.group.group_file import LOCAL, MemberSpec

    names = [name_of(each) for each in options.replica]
    name, config = name_of(text), named(options.config, names, "-c").get(name_of(text), "")
    address = text.partition("=")[2]
    over_ssh = address.startswith("ssh://")
    host = LOCAL
    if is_remote(text):
        host = f"ssh://{address.removeprefix('ssh://').partition('/')[0]}" if over_ssh else address
    if not config and (over_ssh or host == LOCAL):
        raise RmqError(
            f"found no broker.conf of {name}, expected it for the runbook; add -c {name}=FILE"
        )
    if host == LOCAL:
        config = absolute(config, folder=False)
    return MemberSpec(
        name=name, host=host, config=config, directory="", address="", id="", peer="", role=""
    )


def _init_argument(member: MemberSpec) -> str:
    """Return the member as an argument of ``rmqpy upgrade init``."""
    if member.is_local:
        return member.config
    return f"{member.host}{member.config}" if member.is_over_ssh else member.host
