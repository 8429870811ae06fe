"""The other hosts of a group: links over ssh or TLS, and the verbs that are run there.

A verb is run on a member's host in its long form: the member is a directory there, and every other
member is written ``NAME=driver:``, which means that this machine answers for it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from attrs import define, field

from rmqpy.cli.given_files import read_token
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.group.group_file import GroupFile, MemberSpec
    from rmqpy.upgrade.link.connections import AgentConnection
    from rmqpy.upgrade.link.driver import AgentLink
    from rmqpy.upgrade.link.frames import Frame

DRIVER: Final = "driver:"
"""The address of a replica that the driving machine answers for."""
PROGRAM: Final = "rmqpy"


@define(slots=True)
class Hosts:
    """The links of one command, opened when they are needed."""

    _links: dict[str, AgentLink] = field(factory=dict)

    def over_ssh(self, host: str, program: str = PROGRAM) -> AgentLink:
        """Return the link to ``ssh://[USER@]HOST[:PORT]``."""
        from rmqpy.upgrade.link.connections import ssh_command, start_program

        command = ssh_command(host, program)
        remedy = "check that ssh reaches it without a password and that rmqpy is installed there"
        return self._link(host, lambda: start_program(command), remedy)

    def over_tls(self, url: str, token: str, authority: str | None) -> AgentLink:
        """Return the link to the agent of ``rmqpy upgrade serve --drive``."""
        from rmqpy.upgrade.link.connections import connect_served

        remedy = "check that rmqpy upgrade serve --drive runs there"
        return self._link(url, lambda: connect_served(url, token, authority), remedy)

    def _link(self, host: str, connect: Callable[[], AgentConnection], remedy: str) -> AgentLink:
        from rmqpy.upgrade.link.driver import AgentLink

        if host not in self._links:
            self._links[host] = AgentLink(host, connect, remedy, note)
        return self._links[host]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


def note(text: str) -> None:
    print(f"rmqpy: {text}", file=sys.stderr)


def linked_replica(options: argparse.Namespace, name: str, address: str, config: str) -> Replica:
    """Return the replica ``ssh://[USER@]HOST[:PORT]/DIR``; ``config`` is a path there, or ""."""
    from rmqpy.upgrade.checks.replica import LinkedReplica

    parts = urlsplit(address)
    link = hosts_of(options).over_ssh(f"ssh://{parts.netloc}", program_of(options, name))
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


def link_to(options: argparse.Namespace, member: MemberSpec) -> AgentLink:
    """Return the link over which the member can be changed."""
    hosts = hosts_of(options)
    if member.is_over_ssh:
        return hosts.over_ssh(member.host, member.rmqpy or PROGRAM)
    return hosts.over_tls(member.host, read_token(options.token_file), options.authority)


def reach_hosts(options: argparse.Namespace, group: GroupFile) -> None:
    """Connect to all other hosts, so that one that lets nothing be changed refuses before the first
    change. Raise RmqError with its reason.
    """
    for member in group.linked:
        link_to(options, member).open()


def run_there(
    options: argparse.Namespace,
    member: MemberSpec,
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

    link = link_to(options, member)
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
        raise RmqError(f"{member.name}: {_typed_here(reason, member.directory)}")
    return value


def _typed_here(text: str, directory: str) -> str:
    """Return a text with the commands that a host names for its directory as they are typed on the
    machine that drives the group: without it.
    """
    for verb in ("apply --resume", "rollback", "finalize"):
        here = verb.partition(" ")[0]
        text = text.replace(f"rmqpy upgrade {verb} {directory}", f"rmqpy upgrade {here}")
    return text


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


def shell_there(
    options: argparse.Namespace, member: MemberSpec, command: str, *, dry_run: bool = False
) -> tuple[int, str]:
    """Run a command on the member's host; return its exit code and the end of its output.

    With ``dry_run`` the host only says whether it would. Raise RmqError if it would not.
    """
    from rmqpy.upgrade.link.frames import Frame

    done = link_to(options, member).request(
        Frame("shell", {"command": command, "dry_run": dry_run})
    )
    return int(done.head["code"]), done.body.decode("utf-8", "replace")


def long_form(group: GroupFile, member: MemberSpec) -> list[str]:
    """Return the arguments that name the members for a verb on the host of one of them."""
    others = [f"{each.name}={DRIVER}" for each in group.members if each is not member]
    return [f"{member.name}={member.directory}", *others, "-c", f"{member.name}={member.config}"]
