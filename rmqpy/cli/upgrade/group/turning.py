"""Start and stop the brokers of a group with the commands of ``group.toml``.

A member without a command is left to the operator, and so are all others then: a group is not
started or stopped in part by this program.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.hosts import shell_there
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.group.facts import view_group
from rmqpy.cli.upgrade.group.fencing import fence_of, set_fence
from rmqpy.cli.upgrade.group.roles import running_roles
from rmqpy.cli.upgrade.group.shell import run_shell
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.cli.upgrade.group.facts import GroupView
    from rmqpy.upgrade.group.group_file import MemberSpec
    from rmqpy.upgrade.group.states import NextStep

TURN_SECONDS_MAX: Final = 300
POLL_SECONDS: Final = 0.2


def turn(
    options: argparse.Namespace, group: GivenGroup, view: GroupView, step: NextStep
) -> tuple[int, dict[str, Any]]:
    """Start or stop the members that are not there yet; return the exit code and what was done.

    A DLedger group is fenced before it is stopped.
    """
    from rmqpy.audit.facts.facts import Mode
    from rmqpy.upgrade.group.states import NextStep

    starts = step is NextStep.START
    turned = [each for each in view.facts.members if each.running is not starts]
    if starts:  # An empty member is not part of the group yet.
        turned = [each for each in turned if each.dledger or each.mode is not Mode.EMPTY]
    wanted = {each.name for each in turned}
    members = [each for each in _ordered(group, view, starts=starts) if each.name in wanted]
    missing = [each for each in members if not _command(each, starts=starts)]
    value: dict[str, Any] = {step.value: [each.name for each in members]}
    fence = None if starts or options.no_fence else fence_of(group, view)
    if missing:
        names = ", ".join(each.name for each in members)
        lines = [f"first stop all writes: {fence.command}"] if fence is not None else []
        lines.append(
            f"{step.value} the brokers of {names}, in this order, then run this command again"
            f" (group.toml has no {step.value} command for {missing[0].name})"
        )
        if options.format != "json":
            print_result(options, None, lines)
        return EXIT_NO, value | ({"fence": fence.command} if fence is not None else {})
    for member in members:
        if not member.is_local:
            shell_there(options, member, _command(member, starts=starts), dry_run=True)
    if fence is not None:
        value["fence"] = set_fence(options, fence)
    for member in members:
        _run_command(options, group, member, _command(member, starts=starts))
        _wait(options, group, member, running=starts)
    return EXIT_DONE, value


def _ordered(group: GivenGroup, view: GroupView, *, starts: bool) -> list[MemberSpec]:
    """Return the master first: slaves then copy its last messages, and find it when they start. The
    master that a controller has elected is stopped last, so that no other one is elected meanwhile.
    """
    members = group.file.members
    if starts or not view.facts.controllers:
        return sorted(members, key=lambda each: each.role == "SLAVE")
    roles = running_roles(group.file, view)
    return sorted(members, key=lambda each: roles.get(each.name) == "master")


def _command(member: MemberSpec, *, starts: bool) -> str:
    return member.start if starts else member.stop


def _run_command(
    options: argparse.Namespace, group: GivenGroup, member: MemberSpec, command: str
) -> None:
    """Run a command on the host of a member."""
    if not member.is_local:
        code, shown = shell_there(options, member, command)
    else:
        code, shown = run_shell(command, group.folder)
    if code:
        raise RmqError(
            f"{member.name}: found exit code {code} of {command!r}, expected 0:"
            f" {shown or 'it printed nothing'}"
        )


def _wait(
    options: argparse.Namespace, group: GivenGroup, member: MemberSpec, *, running: bool
) -> None:
    deadline = time.monotonic() + TURN_SECONDS_MAX
    while True:
        found = {each.name: each for each in view_group(options, group).facts.members}
        if found[member.name].running is running and not found[member.name].problem:
            return
        if time.monotonic() > deadline:
            raise RmqError(
                f"{member.name}: found its store {'not ' if running else ''}locked by a broker"
                f" {TURN_SECONDS_MAX} s after its command, expected the opposite; look into the log"
                " of the broker"
            )
        time.sleep(POLL_SECONDS)
