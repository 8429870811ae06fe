"""``rmqpy admin fence``: stop all writes of a group, and wait until its members are level: they
have the same end, and the same topics and groups, which members copy after the messages.

Every member is fenced, because another one may become leader. Java's brokers have no fence; with
``--java`` their write permission is taken instead; Java slaves accept no messages and are only
waited for. That is weaker:

=====================  ==========================  ============================================
.                      rmqpy                       Java, with ``--java``
=====================  ==========================  ============================================
messages of clients    refused at once             refused when a client has read its routes
                                                   again, within 30 s by default
delayed messages,      wait                        go on: the command can only wait until the
transaction checks                                 ends have not moved for ``--quiet`` (35) s
opens by itself        after ``--seconds``         never: ``--lift`` gives the permission back
after a restart        open                        still closed: it is in broker.conf
=====================  ==========================  ============================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve

from rmqpy.admin.command import BROKERS, Command, CommandContext, UsageError, group_members, option
from rmqpy.admin.output import Column, CommandResult, OutputTable
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.model.text import count_text
from rmqpy.remoting.fastjson import loads
from rmqpy.remoting.headers import FenceRequestHeader

SECONDS: Final = 300
POLL_S: Final = 0.1
TABLE_POLL_S: Final = 0.5
NAMES_MAX: Final = 5
JAVA_STATISTICS_S: Final = 1.1
JAVA_QUIET_S: Final = 35
"""The time for which the ends of Java's members must not move: ``pollNameServerInterval`` of their
clients, and some time for what was on the way.
"""
READ_ONLY: Final = "4"
READ_WRITE: Final = "6"

_TABLE = OutputTable(
    [
        Column("#Broker", -22),
        Column("#Role", -13),
        Column("#End", 16),
        Column("#Confirmed", 16),
        Column("#Waiting", 9),
        Column("#Opens in", 10),
    ]
)


class JavaBrokerError(RmqError):
    """A member is a Java broker, which has no fence."""


@define(slots=True, frozen=True)
class MemberFence:
    """What a member reports. ``closed_ms`` is the time until it opens; 0 if it is open, None for a
    Java broker.
    """

    address: str
    role: str
    end: int
    confirmed: int
    waiting: int
    closed_ms: int | None
    begin: int = 0
    broker_id: int | None = None
    ha_address: str = ""
    is_member: bool = False
    """True for a member of a DLedger group. Others are classic slaves of such a group, if any."""
    stream_end: int | None = None
    """The end of what a member serves to classic slaves; None if it serves none."""
    is_java_slave: bool = False

    @property
    def is_java(self) -> bool:
        return self.closed_ms is None

    @property
    def needs_permission(self) -> bool:
        """Whether only its write permission keeps clients out: a Java broker that is no slave."""
        return self.is_java and not self.is_java_slave

    def as_json(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "role": self.role,
            "end": self.end,
            "confirmed": self.confirmed,
            "waiting": self.waiting,
            "remaining_ms": self.closed_ms,
        }


async def fence(call: CommandContext) -> CommandResult:
    """Fence all members, wait until they have the same end, and report it; or lift the fence.

    The answer is no if a member is not drained, or the ends differ, when the time has passed.
    """
    addresses = await group_members(call)
    seconds = call.args.number("seconds", SECONDS)
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds}: expected a positive number")
    if call.args.has("lift"):
        return await _lift(call, addresses, call.args.has("java"))
    if call.args.has("brokerName"):
        await check_complete(call, addresses)
    return _report(*await fence_members(call, addresses, seconds))


async def fence_members(
    call: CommandContext, addresses: Sequence[str], seconds: int
) -> tuple[list[MemberFence], list[str]]:
    """Fence the brokers, with ``--java`` also those of Java, and wait until they are level, or
    ``seconds`` have passed. Return them, and the reasons why they must not be stopped yet. After an
    error all are open again.
    """
    quiet_s = call.args.number("quiet", JAVA_QUIET_S)
    if quiet_s <= 0:
        raise UsageError(f"--quiet {quiet_s}: expected a positive number of seconds")
    members = [await fence_member(call, address, None) for address in addresses]
    found = [member.address for member in members if member.needs_permission]
    if found and not call.args.has("java"):
        raise JavaBrokerError(
            f"{', '.join(found)}: found a Java broker, expected rmqpy; Java has no fence: --java"
            " takes the write permission of Java brokers (brokerPermission=4 in their broker.conf)"
            " and waits until their ends stop moving; it stops clients only, not delayed messages"
        )
    if found and seconds <= quiet_s:
        raise UsageError(
            f"--seconds {seconds}: expected more than the {quiet_s} s for which the end of a Java"
            " broker must not move (--quiet)"
        )
    try:
        for member in members:
            if member.needs_permission:
                await set_permission(call, member.address, READ_ONLY)
            elif not member.is_java:
                await fence_member(call, member.address, seconds)
        return await wait_until_level(call, addresses, seconds, quiet_s if found else 0)
    except BaseException:
        await open_quietly(call, members)
        raise


async def check_complete(call: CommandContext, addresses: Sequence[str]) -> None:
    """Raise RmqError if a member of a DLedger group is not registered: it could become leader, and
    write.
    """
    config = await call.admin.broker_config(addresses[0])
    peers = [each for each in config.get("dLegerPeers", "").split(";") if each]
    if config.get("enableDLegerCommitLog") == "true" and len(addresses) < len(peers):
        raise RmqError(
            f"found {len(addresses)} registered members ({', '.join(addresses)}), expected"
            f" {len(peers)} (dLegerPeers={';'.join(peers)}); wait until the others have registered,"
            " or name those to be fenced: -b HOST:PORT;HOST:PORT"
        )


async def wait_until_level(
    call: CommandContext, addresses: Sequence[str], seconds: int, quiet_s: int
) -> tuple[list[MemberFence], list[str]]:
    """Return the members when they are level and no end has moved for ``quiet_s``, or when
    ``seconds`` have passed; and the reasons why they must not be stopped yet.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    moved_s = loop.time()
    before: tuple[int, ...] = ()
    while True:
        members = [await fence_member(call, address, None) for address in addresses]
        ends = tuple(member.end for member in members)
        if ends != before:
            moved_s, before = loop.time(), ends
        still_s = loop.time() - moved_s
        reasons, poll_s = _differences(members), POLL_S
        if not reasons and still_s < quiet_s:
            reasons = [_moved(members, still_s, quiet_s)]
        elif not reasons:
            reasons, poll_s = await _table_differences(call, addresses), TABLE_POLL_S
            if not reasons:
                return members, reasons
        if loop.time() >= deadline_s or any(member.closed_ms == 0 for member in members):
            return members, reasons
        await asyncio.sleep(poll_s)


def _moved(members: Sequence[MemberFence], still_s: float, quiet_s: int) -> str:
    """Return why members with equal ends are not level."""
    java = ", ".join(member.address for member in members if member.needs_permission)
    return (
        f"the end of {java} has not moved for {still_s:.0f} s, expected {quiet_s} s: a client that"
        " has not read its routes again, or names the queue itself, may send, and delayed messages"
        " are delivered; stop such producers, and allow more --seconds"
    )


async def _table_differences(call: CommandContext, addresses: Sequence[str]) -> list[str]:
    """Return the topics and groups that differ, as sentences; nothing is left to copy if there are
    none.
    """
    reasons = []
    for kind, read in (("topic", _topics), ("group", _groups)):
        first, *others = [(address, await read(call, address)) for address in addresses]
        for other in others:
            (one, ours), (two, theirs) = first, other
            names = sorted(
                name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
            )
            if names:
                listed = ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")
                reasons.append(f"{one} and {two} differ in {kind} {listed}")
    return reasons


async def _topics(call: CommandContext, address: str) -> Mapping[str, bytes]:
    """Return the topics. 5.x gives ``attributes`` also where there are none."""
    table = (await call.admin.all_topics(address)).topic_config_table
    return {
        name: evolve(topic, attributes=topic.attributes or None).encode()
        for name, topic in table.items()
    }


async def _groups(call: CommandContext, address: str) -> Mapping[str, bytes]:
    table = (await call.admin.all_groups(address)).subscription_group_table
    return {name: group.encode() for name, group in table.items()}


def _differences(members: Sequence[MemberFence]) -> list[str]:
    """Return the reasons in the logs why the members must not be stopped yet."""
    reasons = []
    for member in members:
        if member.closed_ms == 0:
            reasons.append(f"{member.address} is open: it was restarted, or its time has passed")
        elif member.waiting or member.end != member.confirmed:
            reasons.append(
                f"{member.address} has {member.end - member.confirmed} bytes and"
                f" {count_text(member.waiting, 'message')} without confirmation"
            )
    peers = [member for member in members if member.is_member] or members
    if len({member.end for member in peers}) > 1:
        ends = ", ".join(f"{member.address} at {member.end}" for member in peers)
        reasons.append(f"the ends differ: {ends}")
    streams = [member.stream_end for member in peers if member.stream_end is not None]
    for slave in members:
        if slave in peers or slave.end in streams:
            continue
        served = f"up to {max(streams)}" if streams else "nothing: set haServeEntries=true"
        reasons.append(f"{slave.address} ends at {slave.end}; the members serve slaves {served}")
    return reasons


def _report(members: Sequence[MemberFence], reasons: Sequence[str]) -> CommandResult:
    opens_ms = min((m.closed_ms for m in members if m.closed_ms is not None), default=None)
    lines = [_table_of(members), ""]
    if reasons:
        lines += ["not level:", *(f"  {reason}" for reason in reasons)]
        lines.append("repeat the command; rmqpy admin fence --lift opens the brokers")
    else:
        lines.append(f"level: every member ends at {members[0].end}")
        if opens_ms is not None:
            lines.append(
                f"stop the members within {opens_ms // 1000} s, or repeat the command for a new"
                " deadline; --lift opens them"
            )
        if any(member.needs_permission for member in members):
            lines.append(
                "Java brokers: their own delayed messages and transaction checks go on and can"
                " move an end again; brokerPermission=4 stays in broker.conf until --lift --java"
            )
    value = {"members": [member.as_json() for member in members], "reasons": list(reasons)}
    return CommandResult(value, "\n".join(lines), bool(reasons))


def _table_of(members: Sequence[MemberFence]) -> str:
    return _TABLE.text(
        [
            [
                member.address,
                member.role,
                member.end,
                member.confirmed,
                member.waiting,
                "-" if member.closed_ms is None else f"{member.closed_ms / 1000:.0f} s",
            ]
            for member in members
        ]
    )


async def _lift(call: CommandContext, addresses: Sequence[str], java: bool) -> CommandResult:
    """Open every member; one that does not answer does not keep the others closed."""
    members, failed = [], []
    for address in addresses:
        try:
            member = await fence_member(call, address, 0)
            if member.needs_permission and java:
                await set_permission(call, address, READ_WRITE)
            members.append(member)
        except RmqError as error:
            failed.append(f"{address}: {error}")
    text = "\n".join([_table_of(members), "", *failed] if failed else [_table_of(members)])
    value = {"members": [member.as_json() for member in members], "reasons": failed}
    return CommandResult(value, text, bool(failed))


async def open_quietly(call: CommandContext, members: Sequence[MemberFence]) -> None:
    """Open what was closed, after an error; the deadline opens members that do not answer."""
    for member in members:
        try:
            if member.needs_permission:
                await set_permission(call, member.address, READ_WRITE)
            elif not member.is_java:
                await fence_member(call, member.address, 0)
        except RmqError as error:
            call.show(f"{member.address} was not opened: {error}")


async def fence_member(call: CommandContext, address: str, seconds: int | None) -> MemberFence:
    """Fence one broker, open it (0), or only read its state (None)."""
    try:
        answer = await call.admin.call(
            address, RequestCode.RMQPY_FENCE, FenceRequestHeader(seconds=seconds)
        )
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return await _java_state(call, address)
    state = loads(answer.body)
    if not isinstance(state, dict):
        raise RemoteProtocolError(f"{address}: no state of a fence")
    return MemberFence(
        address,
        str(state["role"]),
        int(state["end"]),
        int(state["confirmed"]),
        int(state["waiting"]),
        int(state["remaining_ms"]),
        int(state["begin"]),
        int(state["broker_id"]),
        str(state["ha_address"]),
        state.get("member") is True,
        state.get("stream_end"),
    )


async def _java_state(call: CommandContext, address: str) -> MemberFence:
    """Return what a Java broker reports: its end is what it has confirmed."""
    try:
        table = await call.admin.runtime_info(address)
    except RequestRejectedError:  # In its first second it has no statistics, and fails.
        await asyncio.sleep(JAVA_STATISTICS_S)
        table = await call.admin.runtime_info(address)
    end = int(table["commitLogMaxOffset"])
    waiting = int(table.get("sendThreadPoolQueueSize", "0"))
    begin = int(table["commitLogMinOffset"])
    config = await call.admin.broker_config(address)
    is_member = config.get("enableDLegerCommitLog") == "true"
    return MemberFence(
        *(address, "java", end, end, waiting, None, begin),
        is_member=is_member,
        is_java_slave=not is_member and config.get("brokerRole") == "SLAVE",
    )


async def set_permission(call: CommandContext, address: str, permission: str) -> None:
    await call.admin.update_broker_config(address, {"brokerPermission": permission})


QUIET: Final = option(
    "q",
    "quiet",
    f"the time for which the end of a Java broker must not move (default {JAVA_QUIET_S}): more than"
    " pollNameServerInterval of its clients",
)

COMMANDS = (
    Command(
        name="fence",
        help="stop all writes of a group for a while, and wait until its members are level",
        run=fence,
        options=(
            BROKERS,
            option("m", "brokerName", "all members of the group with this brokerName"),
            option("s", "seconds", f"open again after this time (default {SECONDS}, at most 3600)"),
            option("l", "lift", "open the brokers now", flag=True),
            option(
                "j",
                "java",
                "take the write permission of Java members (with --lift: give it back)",
                flag=True,
            ),
            QUIET,
        ),
        ours=True,
    ),
)
