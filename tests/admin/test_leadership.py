"""``rmqpy admin elections`` and ``transfer`` on a whole group in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from attrs import define
from harness.dledger_group import MEMBERS, Group

from rmqpy.admin.api import Admin
from rmqpy.admin.command import CommandContext, ParsedArguments
from rmqpy.admin.commands import COMMANDS
from rmqpy.admin.leadership import peers_of
from rmqpy.admin.output import CommandResult
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.testing.memory_channel import MemoryChannel

BY_NAME = {command.name: command for command in COMMANDS}
ROUNDS_MAX = 100


@define
class GroupInstance:
    """A client in virtual time: port 10911 is that of clients, any other that of members."""

    group: Group

    async def invoke(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        host, _, port = address.partition(":")
        member = self.group.members[int(host[-1])]
        command = RemotingCommand.request(code, header, body)
        if member.broker is None or member.driver is None:
            raise NetworkError(f"{address}: connection refused")
        if port == "10911":
            return self.group.ask(member, command)
        channel = MemoryChannel()
        member.driver.handle(channel, [command])
        member.driver.turn_ended()
        for _ in range(ROUNDS_MAX):
            self.group.run(100)
            answers = channel.take()
            if answers:
                return answers[0]
        raise NetworkError(f"{address}: no answer")


def run_command(group: Group, name: str, **values: str) -> CommandResult:
    instance: Any = GroupInstance(group)
    call = CommandContext(Admin(instance, ()), ParsedArguments(values), print)

    async def run() -> CommandResult:
        return await BY_NAME[name].run(call)

    return asyncio.run(run())


def all_members() -> str:
    return ";".join(f"10.0.0.{number}:10911" for number in range(len(MEMBERS)))


def test_leadership_is_transferred_and_the_elections_say_so() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    assert leader.driver is not None
    term = leader.driver.node.term
    group.run(2_000)
    successor = next(each for each in group.members if each is not leader)
    result = run_command(group, "transfer", brokerAddr=all_members(), successor=successor.name)
    assert result.text == (
        f"{leader.name}, the leader of term {term}, has handed over to {successor.name}"
    )
    group.run(2_000)
    assert group.leader() is successor
    shown = run_command(group, "elections", brokerAddr=all_members())
    latest, before = json.loads(shown.as_json())["terms"][:2]
    assert (latest["leader"], before["leader"]) == (successor.name, leader.name)
    assert shown.text.startswith(f"term {latest['term']}, led by {successor.name}\n")
    assert f"{successor.name} asks" in shown.text and not shown.says_no


def test_what_cannot_be_transferred_is_refused_with_a_reason() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    group.run(2_000)
    for successor, reason in (
        ("n9", "expected a member of the group broker-a: n0, n1, n2"),
        (leader.name, "which leads already"),
    ):
        with pytest.raises(RmqError, match=reason):
            run_command(group, "transfer", brokerAddr=all_members(), successor=successor)
    down = next(each for each in group.members if each is not leader)
    group.kill(down.number)
    up = ";".join(
        address for number, address in enumerate(all_members().split(";")) if number != down.number
    )
    with pytest.raises(RmqError, match="did not hand over"):
        run_command(group, "transfer", brokerAddr=up, successor=down.name)
    group.run(2_000)
    assert group.leader() is leader


def test_members_without_a_record_are_named() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    group.kill(leader.number)
    shown = run_command(group, "elections", brokerAddr=all_members())
    assert "connection refused" in shown.text and not shown.says_no
    alone = run_command(group, "elections", brokerAddr=f"10.0.0.{leader.number}:10911")
    assert alone.says_no


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "expected a member of a DLedger group"),
        ({"enableDLegerCommitLog": "true", "dLegerPeers": "n0"}, "is not id-host:port"),
        ({"enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:1"}, "a group of one member"),
    ],
)
def test_brokers_without_a_group_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(RmqError, match=reason):
        peers_of(settings, "a:1")
