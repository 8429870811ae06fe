"""``rmqpy upgrade switch | leave --runbook``: print the commands for a group."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.base.replicas import absolute, is_remote, name_of, named
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.group.group_file import MemberSpec

Runbook = Callable[[Sequence["MemberSpec"], str, Sequence[str]], Iterator[str]]


def print_runbook(options: argparse.Namespace, lines_of: Runbook) -> int:
    """Print the runbook of the group in ``group.toml``, or of the replicas in the command."""
    if options.given_group is not None:
        lines = list(lines_of(options.given_group.file.members, options.runbook, ()))
    else:
        members = [_member(options, text) for text in options.replica]
        lines = list(lines_of(members, options.runbook, list(map(_init_argument, members))))
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
