"""``rmqpy admin leave``: let a classic slave that follows a DLedger group take over from it, while
clients keep sending. No acknowledged message is lost, and no log is converted.

::

    check every broker ──► with --apply: the slave freezes the members, has all, and decides
                                    └── aborted: the DLedger group continues

The members serve their entries to slaves as a classic log (``haServeEntries``), so the slave has
the log that ``rmqpy upgrade leave`` would write. The command may end at any time: the brokers
complete or abort the leave themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from rmqpy.admin.command import Command, CommandContext, UsageError, addresses_with, option
from rmqpy.admin.commands.fence import MemberFence, fence_member
from rmqpy.admin.live_progress import ChangeProgress, Status, control_of, rate_of, rehearsed_ms
from rmqpy.admin.output import CommandResult
from rmqpy.broker.replication.leave_protocol import SLAVE, has_majority
from rmqpy.broker.replication.switch_protocol import Phase, SwitchPlan
from rmqpy.config.keys import parse_dledger_peers
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.text import format_bytes
from rmqpy.remoting.fastjson import dumps, loads

_ENDED: Final = (Phase.COMMITTED.value, Phase.COMPLETE.value, Phase.ABORTED.value)


async def leave(call: CommandContext) -> CommandResult:
    """Check members and slave; with ``--apply``, let the slave take over. The answer is no if
    something prevents it, or the leave was aborted.
    """
    name, address = call.args.text("brokerName"), call.args.text("target")
    brokers = await addresses_with(call, name, address)
    progress = ChangeProgress(
        *(call, "leave", address, {SLAVE: address}, partial(_ask, call)), rehearsed_ms(call, name)
    )
    if (rate := rate_of(call)) is not None:
        await _ask(call, address, "throttle", rate=rate)
    if (step := control_of(call)) is not None:
        status: Status = await _ask(call, address, step)
        if step == "resume" and status["phase"] == Phase.PREPARING.value:
            status = await progress.follow(status["leave"])
        return _report(name, address, status)
    if rate is not None and not call.args.has("apply"):
        return _report(name, address, await _ask(call, address, "status"))
    states = [await fence_member(call, each, None) for each in brokers.values()]
    (target,) = (state for state in states if state.address == address)
    reasons = _reasons(name, states, target, shorter=call.args.has("shorter"))
    plan = None if reasons else await _plan(call, name, states, address)
    if plan is not None:
        for member, broker in sorted(plan.brokers.items()):
            found = await _ask(call, broker, "check", plan=plan.encode(), member=member)
            reasons += [f"{broker}: {problem}" for problem in found["problems"]]
    if plan is None or reasons or not call.args.has("apply"):
        members = [state.address for state in states if state.is_member]
        lag = _lag_bytes(states, target)
        lines = [f"{address} would become the master of {name}, instead of {', '.join(members)}"]
        if reasons:
            lines += ["it cannot take over:", *(f"  {reason}" for reason in reasons)]
        else:
            level = f"the slave lags by {format_bytes(lag)}" if lag else "the slave is level"
            lines.append(f"nothing prevents it, {level}; nothing was changed: add")
            lines.append("--apply to leave")
        value = {"members": members, "target": address, "lag_bytes": lag, "reasons": reasons}
        return CommandResult(value, "\n".join(lines), bool(reasons))
    await _ask(
        *(call, address, "start"),
        plan=plan.encode(),
        member=SLAVE,
        postpone=call.args.has("postpone"),
    )
    return _report(name, address, await progress.follow(plan.switch))


def _reasons(
    name: str, states: Sequence[MemberFence], target: MemberFence, *, shorter: bool
) -> list[str]:
    """Return what prevents the target from taking over, as sentences."""
    leaders = [state for state in states if state.is_member and state.broker_id == MASTER_ID]
    reasons = [
        f"{state.address} is a Java broker, expected rmqpy; fence the members (rmqpy admin fence),"
        f" stop them, and start {target.address} with brokerRole=ASYNC_MASTER and brokerId=0"
        for state in states
        if state.is_java and (state.is_member or state is target)
    ]
    if target.is_member:
        reasons.append(
            f"{target.address} is a member of the DLedger group itself, expected a classic slave;"
            " to turn the members into classic brokers, use rmqpy upgrade leave"
        )
    if not leaders:
        reasons.append(f"found no rmqpy leader of the DLedger group {name}, expected one")
    elif target.begin > leaders[0].begin and not shorter:
        leader = leaders[0]
        reasons.append(
            f"{target.address} begins at offset {target.begin}, {leader.address} at"
            f" {leader.begin}: {target.begin - leader.begin} bytes of old messages could not be"
            " read any more; let a slave with haFetchFromBeginning=true and an empty store copy"
            " the whole log, or add --shorter if nobody needs them"
        )
    return reasons


async def _plan(
    call: CommandContext, name: str, states: Sequence[MemberFence], address: str
) -> SwitchPlan:
    """Return the plan of a leave. Raises RmqError unless every member is registered that is not
    given with ``--without``.
    """
    members, peers = {}, ""
    for state in states:
        if state.is_member:
            config = await call.admin.broker_config(state.address)
            members[config.get("dLegerSelfId", "")] = state.address
            peers = config.get("dLegerPeers", "")
    try:
        ids = [each.peer_id for each in parse_dledger_peers(peers)]
    except ValueError as error:
        raise RemoteProtocolError(f"dLegerPeers={peers}: {error}") from None
    without = set(filter(None, (call.args.optional("without") or "").split(",")))
    _check_members(members, ids, without, peers)
    return SwitchPlan(
        switch=uuid.uuid4().hex,
        group=name,
        coordinator=SLAVE,
        peers=peers,
        brokers={**members, SLAVE: address},
    )


def _check_members(
    members: Mapping[str, str], ids: Sequence[str], without: Set[str], peers: str
) -> None:
    """Raise RmqError unless the registered members are all but those that leave ``without``, and
    a majority.
    """
    if running := without & members.keys():
        address = members[min(running)]
        raise UsageError(
            f"--without {','.join(sorted(without))}: found {min(running)} at {address}, expected a"
            " member that does not run; stop it, or leave with it"
        )
    if unknown := without - set(ids):
        raise UsageError(f"--without {','.join(sorted(unknown))}: expected one of {peers}")
    if missing := set(ids) - members.keys() - without:
        names = ",".join(sorted(missing))
        raise RmqError(
            f"found {len(members)} registered members ({', '.join(sorted(members))}), expected also"
            f" {', '.join(sorted(missing))} (dLegerPeers={peers}); start them, or wait until they"
            f" have registered. If they are down for good, leave --without {names}"
        )
    if not has_majority(members, ids):
        raise RmqError(
            f"found {len(members)} registered members ({', '.join(sorted(members))}), expected a"
            f" majority of {len(ids)} (dLegerPeers={peers}): without one nobody knows what was"
            " acknowledged; start more of them"
        )


def _lag_bytes(states: Sequence[MemberFence], target: MemberFence) -> int:
    """Return the number of bytes that the slave lacks of the leader's log."""
    ends = [state.stream_end for state in states if state.stream_end is not None]
    return max(0, max(ends, default=0) - target.end)


def _report(name: str, address: str, status: Mapping[str, Any]) -> CommandResult:
    phase, pause_ms = status["phase"], status["pause_ms"]
    says_no = phase == Phase.ABORTED.value
    if phase is None:
        text = f"{name}: {address} has begun no leave since it was started"
    elif says_no:
        text = f"{name} is a DLedger group, the leave was aborted: {status['reason']}"
    elif phase in _ENDED:
        text = (
            f"{address} is the master of {name}. The former members pass requests on to it: stop"
            " them when clients have fetched their routes (30 s). A new slave starts with an"
            " empty store"
        )
    elif phase == Phase.READY.value:
        text = f"{name}: the leave is prepared and postponed; --resume continues it"
    else:
        text = f"{name}: the leave is {phase}"
    if pause_ms is not None:
        text += f"; messages waited for {pause_ms} ms"
    return CommandResult(dict(status), text, says_no)


async def _ask(call: CommandContext, address: str, step: str, **more: object) -> dict[str, Any]:
    body = dumps({"step": step, **more})
    try:
        answer = await call.admin.call(address, RequestCode.RMQPY_LEAVE, body=body)
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise RmqError(
            f"{address}: found an older rmqpy, expected one that can leave while it runs; update"
            " it, or use rmqpy upgrade leave"
        ) from None
    value = loads(answer.body)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{address}: no answer about a leave")
    return value


COMMANDS = (
    Command(
        name="leave",
        help="let a classic slave take over from its DLedger group (checks only, without --apply)",
        run=leave,
        options=(
            option("m", "brokerName", "the brokerName of the group", required=True),
            option("t", "target", "the slave that becomes master (host:port)", required=True),
            option("y", "apply", "take over, if nothing prevents it", flag=True),
            option("s", "status", "report the last leave", flag=True),
            option(
                "p", "postpone", "prepare, and wait for --resume (with or after --apply)", flag=True
            ),
            option("u", "resume", "end a postponement", flag=True),
            option("r", "rate", "MiB of the log that the slave copies per second before (0: all)"),
            option("x", "abort", "abort a leave that is not decided", flag=True),
            option("d", "rehearsed", "the --dir of rmqpy rehearse: its age is shown meanwhile"),
            option(
                "o",
                "shorter",
                "take over although the log of the target begins later than that of the leader",
                flag=True,
            ),
            option("w", "without", "members that are down, and never start again (n1,n2)"),
        ),
        ours=True,
    ),
)
