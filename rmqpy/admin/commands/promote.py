"""``rmqpy admin promote``: let a slave of a classic group take over from the master, without losing
an acknowledged message, whether the master is synchronous or not.

::

    all fenced and level ──► master becomes slave ──► target becomes master ──► the others follow it
       │                        │
       └── opened again ◄───────┘ made master again, if the target refuses

Never are there two masters. A Java master cannot become a slave while it runs: with ``--java`` its
write permission is taken, and the command waits until it has been stopped; if its end moves before,
a client still sends to it, and the promotion ends. If the command ends between the two changes, the
group has no master; the brokers have lost nothing, and ``--no-master`` goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from attrs import define

from rmqpy.admin.command import Command, CommandContext, UsageError, addresses_with, option
from rmqpy.admin.commands.fence import (
    POLL_S,
    QUIET,
    MemberFence,
    fence_member,
    fence_members,
    open_quietly,
)
from rmqpy.admin.output import CommandResult
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import ConnectFailedError, NetworkError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.headers import ChangeRoleRequestHeader

SECONDS: Final = 60
SLAVE: Final = "SLAVE"


@define(slots=True, frozen=True)
class Takeover:
    """Who takes over from whom. ``master`` is None if the group has none."""

    target: MemberFence
    master: MemberFence | None
    others: tuple[MemberFence, ...]
    role: str
    """The role of the new master."""

    @property
    def target_id(self) -> int:
        assert self.target.broker_id is not None
        return self.target.broker_id


async def promote(call: CommandContext) -> CommandResult:
    """Fence the group, exchange the roles, and open it again."""
    name, address = call.args.text("brokerName"), call.args.text("target")
    seconds = call.args.number("seconds", SECONDS)
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds}: expected a positive number")
    addresses = await addresses_with(call, name, address)
    master = addresses.get(MASTER_ID)
    if master == address:
        raise UsageError(f"{address} is the master of {name} already")
    if master is None and not call.args.has("no-master"):
        raise RmqError(
            f"found no master of {name}, expected one to take over from; start it, or add"
            " --no-master: messages that only the missing master has are then lost"
        )
    await _check(call, address)
    members, reasons = await fence_members(call, list(addresses.values()), seconds)
    try:
        if reasons:
            raise RmqError(f"not level after {seconds} s: {'; '.join(reasons)}")
        takeover = await _takeover(call, members, address, master)
        if not call.args.has("shorter"):
            _check_begin(takeover)
        if takeover.master is not None:
            await _release(call, takeover, seconds)
        await _take(call, takeover)
    except BaseException:
        await open_quietly(call, members)
        raise
    notes = await _follow(call, takeover)
    end = takeover.target.end
    value = {
        "master": address,
        "former": master,
        "role": takeover.role,
        "end": end,
        "notes": notes,
    }
    text = f"{address} is the master of {name} ({takeover.role}); every member ends at {end}"
    return CommandResult(value, "\n".join([text, *notes]), bool(notes))


async def _check(call: CommandContext, address: str) -> None:
    """Raise RmqError unless the broker is a slave of ours in a classic group."""
    state = await fence_member(call, address, None)
    config = await call.admin.broker_config(address)
    if state.is_java:
        raise RmqError(
            f"{address}: found a Java broker, expected rmqpy; stop the master, and start this one"
            " with brokerRole=ASYNC_MASTER and brokerId=0"
        )
    if config.get("enableDLegerCommitLog") == "true":
        raise RmqError(
            f"{address}: found a member of a DLedger group, whose roles follow its elections;"
            " expected a slave of a classic group; set preferredLeaderId to choose a leader"
        )


async def _takeover(
    call: CommandContext, members: Sequence[MemberFence], address: str, master: str | None
) -> Takeover:
    by_address = {member.address: member for member in members}
    target = by_address.pop(address)
    former = None if master is None else by_address.pop(master)
    role = (await call.admin.broker_config(master or address)).get("brokerRole", SLAVE)
    if role == SLAVE:  # an interrupted promotion
        role = "ASYNC_MASTER"
    return Takeover(target, former, tuple(by_address.values()), role)


def _check_begin(takeover: Takeover) -> None:
    """Raise RmqError if the target lacks old messages."""
    target, master = takeover.target, takeover.master
    if master is not None and target.begin > master.begin:
        raise RmqError(
            f"{target.address} begins at offset {target.begin}, {master.address} at {master.begin}:"
            f" {target.begin - master.begin} bytes of old messages could not be read any more; let"
            " a slave with haFetchFromBeginning=true and an empty store copy the whole log, or add"
            " --shorter if nobody needs them"
        )


async def _release(call: CommandContext, takeover: Takeover, seconds: int) -> None:
    """Wait until the master is no master any more."""
    master = takeover.master
    assert master is not None
    if not master.is_java:
        await _make_slave(call, takeover, master, takeover.target_id)
        return
    call.show(f"every member ends at {master.end}: stop the Java broker {master.address} now")
    deadline_s = asyncio.get_running_loop().time() + seconds
    while (end := await _end(call, master)) is not None:
        if end != master.end:
            raise RmqError(
                f"{master.address} still accepts messages: its end moved from {master.end} to"
                f" {end}; nothing was changed: let it run, stop producers that name the queue"
                " themselves, and repeat with a longer --quiet"
            )
        if asyncio.get_running_loop().time() >= deadline_s:
            raise RmqError(
                f"{master.address} still runs after {seconds} s; nothing was changed: stop it"
                " sooner, or allow more --seconds"
            )
        await asyncio.sleep(POLL_S)


async def _end(call: CommandContext, master: MemberFence) -> int | None:
    """Return the end of the log of the master; None if nobody listens at its port any more.

    A late answer does not show that it has stopped: there would be two masters.
    """
    try:
        table = await call.admin.runtime_info(master.address)
    except ConnectFailedError:
        return None
    except NetworkError:
        return master.end
    return int(table["commitLogMaxOffset"])


async def _take(call: CommandContext, takeover: Takeover) -> None:
    """Make the target master, or the master a master again if the target refuses."""
    header = ChangeRoleRequestHeader(role=takeover.role, end=takeover.target.end)
    try:
        await call.admin.call(takeover.target.address, RequestCode.RMQPY_CHANGE_ROLE, header)
    except RmqError as error:
        master = takeover.master
        if master is None or master.is_java:
            raise
        try:
            state = await fence_member(call, takeover.target.address, None)
            if state.broker_id == MASTER_ID:  # Only its answer was lost.
                return
            await call.admin.call(master.address, RequestCode.RMQPY_CHANGE_ROLE, header)
        except RmqError as second:
            raise RmqError(
                f"{takeover.target.address} did not become master ({error}), and whether it or"
                f" {master.address} is one now is unknown ({second}); look at both with rmqpy admin"
                " brokerStatus, and repeat this command, with --no-master if both are slaves"
            ) from error
        raise RmqError(
            f"{takeover.target.address} did not become master: {error};"
            f" {master.address} is the master again"
        ) from error


async def _follow(call: CommandContext, takeover: Takeover) -> list[str]:
    """Let the others follow the new master, open everything, and return what is left to do."""
    notes = []
    for member in takeover.others:
        if not member.is_java:  # Java's slaves ask the name server.
            try:
                await _make_slave(call, takeover, member, member.broker_id or takeover.target_id)
            except RmqError as error:
                notes.append(f"{member.address} does not follow yet: {error}")
    master = takeover.master
    if master is not None and master.is_java:
        notes.append(
            f"before {master.address} starts again, set brokerRole=SLAVE,"
            f" brokerId={takeover.target_id} and brokerPermission=6 in its broker.conf"
        )
    elif master is not None:
        try:
            await _make_slave(call, takeover, master, takeover.target_id)
        except RmqError as error:
            notes.append(f"{master.address} does not follow yet: {error}")
    fenced = (takeover.target, *takeover.others)
    await open_quietly(call, fenced if master is None or master.is_java else (*fenced, master))
    return notes


async def _make_slave(
    call: CommandContext, takeover: Takeover, member: MemberFence, broker_id: int
) -> None:
    header = ChangeRoleRequestHeader(
        role=SLAVE,
        end=member.end,
        broker_id=broker_id,
        master_addr=takeover.target.address,
        ha_server_addr=takeover.target.ha_address,
    )
    await call.admin.call(member.address, RequestCode.RMQPY_CHANGE_ROLE, header)


COMMANDS = (
    Command(
        name="promote",
        help="let a slave of a classic group take over from the master, losing no message",
        run=promote,
        options=(
            option("m", "brokerName", "the brokerName of the group", required=True),
            option("t", "target", "the slave that becomes master (host:port)", required=True),
            option("s", "seconds", f"the time to wait for equal ends (default {SECONDS})"),
            option(
                "j",
                "java",
                "take over from a Java master, which you stop when the command asks for it",
                flag=True,
            ),
            QUIET,
            option(
                "o",
                "shorter",
                "promote although the log of the target begins later than that of the master",
                flag=True,
            ),
            option(
                "N",
                "no-master",
                "promote although the group has no master: what only a lost master has is lost",
                flag=True,
            ),
        ),
        ours=True,
    ),
)
