"""``rmqpy admin leave``: let a classic slave that follows a DLedger group take over from it. No
acknowledged message is lost, and no log is converted.

::

    check ──► with --apply: all fenced and level ──► you stop the members ──► the slave is master
                                 └── opened again, if that does not happen in time

The members serve their entries to slaves as a classic log (``haServeEntries``), so the slave has
the log that ``rmqpy upgrade leave`` would write. There are never two masters: the slave becomes one
when no member runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rmqpy.admin.command import Command, CommandContext, UsageError, addresses_with, option
from rmqpy.admin.commands.fence import (
    POLL_S,
    MemberFence,
    check_complete,
    fence_member,
    fence_members,
    open_quietly,
)
from rmqpy.admin.output import CommandResult
from rmqpy.broker.services.fence import SECONDS_MAX
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.text import format_bytes
from rmqpy.remoting.headers import ChangeRoleRequestHeader

SECONDS: Final = 120
MARGIN_S: Final = 60
"""The time for which the fence stays closed after the wait for the members to stop."""
ROLE: Final = "ASYNC_MASTER"


async def leave(call: CommandContext) -> CommandResult:
    """Check members and slave; with ``--apply``, let the slave take over. The answer is no if
    something prevents it.
    """
    name, address = call.args.text("brokerName"), call.args.text("target")
    seconds = call.args.number("seconds", SECONDS)
    if not 0 < seconds <= SECONDS_MAX - MARGIN_S:
        raise UsageError(f"--seconds {seconds}: expected 1 to {SECONDS_MAX - MARGIN_S}")
    brokers = await addresses_with(call, name, address)
    states = [await fence_member(call, each, None) for each in brokers.values()]
    members = [state.address for state in states if state.is_member]
    reasons = _reasons(name, states, address, shorter=call.args.has("shorter"))
    if not reasons:
        await check_complete(call, members)
    if reasons or not call.args.has("apply"):
        lines = [f"{address} would become the master of {name}, instead of {', '.join(members)}"]
        if reasons:
            lines += ["it cannot take over:", *(f"  {reason}" for reason in reasons)]
        else:
            lines.append(f"nothing prevents it, {_lag(states, address)}; nothing was changed: add")
            lines.append("--apply to leave, and be ready to stop the members")
        value = {"members": members, "target": address, "reasons": reasons}
        return CommandResult(value, "\n".join(lines), bool(reasons))
    return await _take_over(call, members, address, seconds)


def _reasons(name: str, states: Sequence[MemberFence], address: str, *, shorter: bool) -> list[str]:
    """Return what prevents the target from taking over, as sentences."""
    (target,) = (state for state in states if state.address == address)
    leaders = [state for state in states if state.is_member and state.broker_id == MASTER_ID]
    reasons = []
    if target.is_member:
        reasons.append(
            f"{address} is a member of the DLedger group itself, expected a classic slave; to turn"
            " the members into classic brokers, use rmqpy upgrade leave"
        )
    if target.is_java:
        reasons.append(
            f"{address} is a Java broker, expected rmqpy; fence the members (rmqpy admin fence),"
            " stop them, and start it with brokerRole=ASYNC_MASTER and brokerId=0"
        )
    if not leaders:
        reasons.append(f"found no rmqpy leader of the DLedger group {name}, expected one")
        return reasons
    (leader,) = leaders
    if leader.stream_end is None:
        reasons.append(
            f"{leader.address} serves no slaves; set haServeEntries=true on all members, and"
            " restart them one by one"
        )
    if target.begin > leader.begin and not shorter:
        reasons.append(
            f"{address} begins at offset {target.begin}, {leader.address} at {leader.begin}:"
            f" {target.begin - leader.begin} bytes of old messages could not be read any more; let"
            " a slave with haFetchFromBeginning=true and an empty store copy the whole log, or add"
            " --shorter if nobody needs them"
        )
    return reasons


def _lag(states: Sequence[MemberFence], address: str) -> str:
    (target,) = (state for state in states if state.address == address)
    ends = [state.stream_end for state in states if state.stream_end is not None]
    behind_bytes = max(0, max(ends) - target.end)
    return (
        f"the slave lags by {format_bytes(behind_bytes)}" if behind_bytes else "the slave is level"
    )


async def _take_over(
    call: CommandContext, members: Sequence[str], address: str, seconds: int
) -> CommandResult:
    brokers = [*members, address]
    found, reasons = await fence_members(call, brokers, seconds, java=False)
    try:
        if reasons:
            raise RmqError(f"not level after {seconds} s: {'; '.join(reasons)}")
        # The deadline of the fence must not pass while the members are stopped.
        before = [state.end for state in found]
        found, reasons = await fence_members(call, brokers, seconds + MARGIN_S, java=False)
        if reasons or [state.end for state in found] != before:
            raise RmqError("the fence was opened meanwhile; repeat the command")
        call.show(f"{address} has all messages: stop {', '.join(members)} now, for good")
        await _wait_until_stopped(call, members, seconds)
        target = found[-1]
        header = ChangeRoleRequestHeader(role=ROLE, end=target.end)
        await call.admin.call(address, RequestCode.RMQPY_CHANGE_ROLE, header)
    except BaseException:
        await open_quietly(call, found)
        raise
    await open_quietly(call, [target])
    text = (
        f"{address} is the master ({ROLE}), and ends at {target.end}; do not start the former"
        " members again with these settings: they would be a second master of the same name. A"
        " new slave starts with an empty store"
    )
    return CommandResult({"master": address, "end": target.end, "former": list(members)}, text)


async def _wait_until_stopped(call: CommandContext, members: Sequence[str], seconds: int) -> None:
    """Wait until no member answers. Raises RmqError if one still does after ``seconds``, or was
    started again: it is open then, and could accept messages that the slave does not have.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while True:
        running = []
        for member in members:
            try:
                state = await fence_member(call, member, None)
            except NetworkError:
                continue
            running.append(member)
            if not state.closed_ms:
                raise RmqError(
                    f"{member} is open again, expected a fenced or stopped member; keep it from"
                    " being restarted, and repeat the command"
                )
        if not running:
            return
        if loop.time() >= deadline_s:
            raise RmqError(
                f"{', '.join(running)} still run after {seconds} s; the slave is no master: start"
                " the members that you have stopped, or repeat the command with more --seconds"
            )
        await asyncio.sleep(POLL_S)


COMMANDS = (
    Command(
        name="leave",
        help="let a classic slave take over from its DLedger group (checks only, without --apply)",
        run=leave,
        options=(
            option("m", "brokerName", "the brokerName of the group", required=True),
            option("t", "target", "the slave that becomes master (host:port)", required=True),
            option("y", "apply", "take over, if nothing prevents it", flag=True),
            option(
                "s",
                "seconds",
                f"the time to wait for equal ends, and for the members to stop (default {SECONDS})",
            ),
            option(
                "o",
                "shorter",
                "take over although the log of the target begins later than that of the leader",
                flag=True,
            ),
        ),
        ours=True,
    ),
)
