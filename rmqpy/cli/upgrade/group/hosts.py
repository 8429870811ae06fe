"""The other hosts of a group: links over ssh, and the verbs that are run there.

A verb is run on a member's host in its long form: the member is a directory there, and every other
member is written ``NAME=driver:``, which means that this machine answers for it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from attrs import define, field

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.group.group_file import GroupFile, GroupMember
    from rmqpy.upgrade.link.driver import AgentLink
    from rmqpy.upgrade.link.frames import Frame

DRIVER: Final = "driver:"
"""The address of a replica that the driving machine answers for."""
PROGRAM: Final = "rmqpy"


@define(slots=True)
class Hosts:
    """The links of one command, opened when they are needed."""

    _links: dict[str, AgentLink] = field(factory=dict)

    def link(self, host: str, program: str = PROGRAM) -> AgentLink:
        """Return the link to ``ssh://[USER@]HOST[:PORT]``."""
        from rmqpy.upgrade.link.driver import AgentLink, ssh_command

        if host not in self._links:
            self._links[host] = AgentLink(host, ssh_command(host, program), _note)
        return self._links[host]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


def _note(text: str) -> None:
    print(f"rmqpy: {text}", file=sys.stderr)


def linked_replica(options: argparse.Namespace, name: str, address: str, config: str) -> Replica:
    """Return the replica ``ssh://[USER@]HOST[:PORT]/DIR``; ``config`` is a path there, or ""."""
    from rmqpy.upgrade.checks.replica import LinkedReplica

    parts = urlsplit(address)
    link = hosts_of(options).link(f"ssh://{parts.netloc}", program_of(options, name))
    at = {"name": name, "directory": parts.path, "config": config}
    return LinkedReplica(name, address, fetch=lambda what, query: link.get(what, query, at))


def driver_replica(options: argparse.Namespace, name: str) -> Replica:
    """Return a replica that the driving machine answers for."""
    from rmqpy.upgrade.checks.replica import LinkedReplica

    ask: Callable[[str, str, object], bytes] | None = getattr(options, "ask_driver", None)
    if ask is None:
        raise RmqError(
            f"{name}={DRIVER}: found no machine that drives this command, expected one; give"
            f" {name}=DIR or {name}=https://HOST:PORT"
        )
    return LinkedReplica(name, DRIVER, fetch=lambda what, query: ask(name, what, query))


def hosts_of(options: argparse.Namespace) -> Hosts:
    hosts: Hosts | None = getattr(options, "hosts", None)
    if hosts is None:
        raise RmqError("found a replica over ssh, expected a directory or an https:// address")
    return hosts


def program_of(options: argparse.Namespace, name: str) -> str:
    """Return the path of rmqpy on the host of a member."""
    group = getattr(options, "given_group", None)
    return group.file.member(name).rmqpy or PROGRAM if group is not None else PROGRAM


def run_there(
    options: argparse.Namespace,
    member: GroupMember,
    words: Sequence[str],
    replicas: Sequence[Replica] = (),
    plan: bytes = b"",
) -> Any:
    """Run a verb of ``rmqpy upgrade`` on the member's host, and return its JSON result.

    ``replicas`` answer its questions about other members. ``{plan}`` among the words is the path of
    a file with ``plan``. Raise UpgradeRefusedError or RmqError with the reason if it fails.
    """
    from rmqpy.upgrade.link.frames import Frame
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    link = hosts_of(options).link(member.host, member.rmqpy or PROGRAM)
    frame = Frame("run", {"words": [*words, "--format", "json"]}, plan)
    done = link.request(frame, partial(_answered, {each.name: each for each in replicas}))
    code = int(done.head["code"])
    try:
        value = json.loads(done.body)
    except ValueError:
        value = {}
    if code == EXIT_NO and "refused" in value:
        raise UpgradeRefusedError(f"{member.name}: {value['refused']}")
    if code == EXIT_NO and "wrong" in value:
        raise UpgradeRefusedError(f"{member.name}: {'; '.join(value['wrong'])}")
    if code != EXIT_DONE:
        reason = value.get("error") or f"its host has printed the reason (exit code {code})"
        raise RmqError(f"{member.name}: {reason}")
    return value


def _answered(replicas: Mapping[str, Replica], question: Frame) -> Frame:
    """Return the answer to a question of an agent about another member."""
    from rmqpy.upgrade.checks.replica import LocalReplica, RemoteReplica
    from rmqpy.upgrade.checks.requests import ReplicaRequests
    from rmqpy.upgrade.link.frames import Frame

    what, query = question.head["what"], question.head["query"]
    replica = replicas.get(question.head["replica"])
    try:
        if isinstance(replica, LocalReplica):
            return Frame("data", {}, ReplicaRequests(replica).answer(what, query))
        if isinstance(replica, RemoteReplica):
            return Frame("data", {}, replica.raw(what, query))
        text = f"found no member {question.head['replica']}, expected one of {', '.join(replicas)}"
    except (RmqError, ValueError, KeyError, OSError) as error:
        text = str(error)
    return Frame("refused", {"text": text})


def shell_there(options: argparse.Namespace, member: GroupMember, command: str) -> tuple[int, str]:
    """Run a command on the member's host; return its exit code and the end of its output."""
    from rmqpy.upgrade.link.frames import Frame

    link = hosts_of(options).link(member.host, member.rmqpy or PROGRAM)
    done = link.request(Frame("shell", {"command": command}))
    return int(done.head["code"]), done.body.decode("utf-8", "replace")


def long_form(group: GroupFile, member: GroupMember) -> list[str]:
    """Return the arguments that name the members for a verb on the host of one of them."""
    others = [f"{each.name}={DRIVER}" for each in group.members if each is not member]
    return [f"{member.name}={member.directory}", *others, "-c", f"{member.name}={member.config}"]


def by_hand(group: GroupFile, member: GroupMember, words: Sequence[str]) -> str:
    """Return the command to run on the host of a member that is only read, over https."""
    others = [each.replica for each in group.members if each is not member and not each.is_local]
    given = [f"{member.name}={member.directory}", *others]
    config = ["-c", f"{member.name}={member.config}"]
    return shlex.join(["rmqpy", "upgrade", *words, *given, *config])
