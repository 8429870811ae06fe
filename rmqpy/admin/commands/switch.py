"""``rmqpy admin switch``: let a running classic group become a DLedger group, without stopping it.

::

    check every member ──► with --apply: the master prepares all, freezes, and decides
                                    └── aborted: the classic group continues

A slave keeps its brokerId: it becomes the member whose number is one less; the master becomes the
remaining member. The command may end at any time: the brokers complete or abort the switch
themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rmqpy.admin.command import Command, CommandContext, UsageError, addresses_of, option
from rmqpy.admin.live_progress import ChangeProgress, control_of, rate_of, rehearsed_ms
from rmqpy.admin.output import CommandResult
from rmqpy.broker.replication.switch_protocol import Phase, SwitchPlan
from rmqpy.config.keys import parse_dledger_peers
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.text import count_text
from rmqpy.remoting.fastjson import dumps, loads


async def switch(call: CommandContext) -> CommandResult:
    """Check the members; with ``--apply``, switch. The answer is no if something prevents it, or
    the switch was aborted.
    """
    name = call.args.text("brokerName")
    proof_ms = rehearsed_ms(call, name)
    brokers = await addresses_of(call, name)
    master = brokers.get(MASTER_ID)
    if master is None:
        raise RmqError(f"found no master of {name}, expected one; start it")
    if (rate := rate_of(call)) is not None:
        for address in brokers.values():
            await _ask(call, address, "throttle", rate=rate)
    if (step := control_of(call)) is not None:
        # Only the master of a switch in progress can do more than report it.
        addresses = [master] if step in ("postpone", "resume") else brokers.values()
        status = await _last_switch(call, addresses, step)
        if step == "resume" and status["phase"] == Phase.PREPARING.value:
            names = {str(each): address for each, address in brokers.items()}
            progress = ChangeProgress(call, "switch", master, names, partial(_ask, call), proof_ms)
            status = await progress.follow(status["switch"])
        return _report(name, status)
    peers = call.args.optional("peers")
    if peers is None:
        if rate is not None:
            return _report(name, await _last_switch(call, brokers.values(), "status"))
        raise UsageError(
            "give --peers (dLegerPeers of the group), --status, --postpone, --resume, --abort or"
            " --rate"
        )
    plan = plan_of(name, brokers, peers)
    facts = {
        member: await _ask(call, address, "check", plan=plan.encode(), member=member)
        for member, address in plan.brokers.items()
    }
    reasons = _reasons(plan, facts)
    members = [f"{member} {address}" for member, address in sorted(plan.brokers.items())]
    if reasons or not call.args.has("apply"):
        value = {"plan": plan.encode(), "reasons": reasons}
        lines = [f"{name} would become {', '.join(members)}"]
        if reasons:
            lines += ["it cannot switch:", *(f"  {reason}" for reason in reasons)]
        else:
            lines.append("nothing prevents the switch; nothing was changed: add --apply to switch")
        return CommandResult(value, "\n".join(lines), bool(reasons))
    await _ask(
        *(call, master, "start"),
        plan=plan.encode(),
        member=plan.coordinator,
        postpone=call.args.has("postpone"),
    )
    progress = ChangeProgress(call, "switch", master, plan.brokers, partial(_ask, call), proof_ms)
    return _report(name, await progress.follow(plan.switch))


async def _last_switch(
    call: CommandContext, addresses: Iterable[str], step: str
) -> Mapping[str, Any]:
    """Return the status of the last switch, from the broker that was the master then."""
    status: Mapping[str, Any] = {"switch": None, "phase": None, "reason": "", "pause_ms": None}
    for address in addresses:
        try:
            found = await _ask(call, address, step)
        except RequestRejectedError:
            if step in ("postpone", "resume"):
                raise
            continue  # It was started as a member.
        if found["phase"] is not None:
            status = found
    return status


def plan_of(name: str, brokers: Mapping[int, str], peers: str) -> SwitchPlan:
    """Return the plan for the registered ``brokers`` (by brokerId). Raises UsageError unless each
    of them is one of ``peers``.
    """
    try:
        members = parse_dledger_peers(peers)
    except ValueError as error:
        raise UsageError(f"--peers {peers}: {error}") from None
    by_number = {int(each.peer_id[1:]): each.peer_id for each in members}
    slaves = sorted(brokers.keys() - {MASTER_ID})
    free = by_number.keys() - {each - 1 for each in slaves}
    if len(members) != len(brokers) or len(free) != 1:
        found = ", ".join(f"{address} (brokerId {each})" for each, address in brokers.items())
        numbers = ", ".join(str(each - 1) for each in slaves) or "none"
        raise UsageError(
            f"--peers {peers}: found {count_text(len(members), 'member')}, expected one for each"
            " registered"
            f" broker: {found}; a slave becomes the member whose number is its brokerId - 1 (here"
            f" {numbers}), and the master the remaining one"
        )
    master = by_number[free.pop()]
    addresses = {by_number[each - 1]: brokers[each] for each in slaves}
    return SwitchPlan(
        switch=uuid.uuid4().hex,
        group=name,
        coordinator=master,
        peers=peers,
        brokers={**addresses, master: brokers[MASTER_ID]},
    )


def _reasons(plan: SwitchPlan, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what prevents the switch, as sentences."""
    reasons = [
        f"{member}: {problem}" for member, found in facts.items() for problem in found["problems"]
    ]
    master = facts[plan.coordinator]
    for member in plan.others:
        found = facts[member]
        if found["file_size"] != master["file_size"]:
            reasons.append(
                f"{member}: mappedFileSizeCommitLog is {found['file_size']}, that of the master"
                f" {master['file_size']}: the files of a group have one size"
            )
        if found["begin"] > master["begin"]:
            reasons.append(
                f"{member}: the log begins at {found['begin']}, that of the master at"
                f" {master['begin']}: its readers would miss the old messages; let it copy the"
                " whole log with haFetchFromBeginning=true and an empty store"
            )
    return reasons


def _report(name: str, status: Mapping[str, Any]) -> CommandResult:
    phase, pause_ms = status["phase"], status["pause_ms"]
    says_no = phase == Phase.ABORTED.value
    if phase is None:
        text = f"{name}: no switch has begun since the brokers were started"
    elif says_no:
        text = f"{name} is a classic group, the switch was aborted: {status['reason']}"
    elif phase in (Phase.COMMITTED.value, Phase.COMPLETE.value):
        text = f"{name} is a DLedger group"
    elif phase == Phase.READY.value:
        text = f"{name}: the switch is prepared and postponed; --resume continues it"
    else:
        text = f"{name}: the switch is {phase}"
    if pause_ms is not None:
        text += f"; messages waited for {pause_ms} ms"
    return CommandResult(dict(status), text, says_no)


async def _ask(call: CommandContext, address: str, step: str, **more: object) -> dict[str, Any]:
    body = dumps({"step": step, **more})
    try:
        answer = await call.admin.call(address, RequestCode.RMQPY_SWITCH, body=body)
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise RmqError(
            f"{address}: found a Java broker or an older rmqpy, expected rmqpy; let rmqpy slaves"
            " take over first (rmqpy admin promote), and let Java's brokers join afterwards"
        ) from None
    value = loads(answer.body)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{address}: no answer about a switch")
    return value


COMMANDS: Sequence[Command] = (
    Command(
        name="switch",
        help="let a running classic group become a DLedger group (checks only, without --apply)",
        run=switch,
        options=(
            option("m", "brokerName", "the brokerName of the group", required=True),
            option("p", "peers", "dLegerPeers of the group: id-host:port;id-host:port"),
            option("y", "apply", "switch, if nothing prevents it", flag=True),
            option("s", "status", "report the last switch", flag=True),
            option(
                "o", "postpone", "prepare, and wait for --resume (with or after --apply)", flag=True
            ),
            option("u", "resume", "end a postponement", flag=True),
            option("r", "rate", "MiB of the log that a broker reads per second before it (0: all)"),
            option("x", "abort", "abort a switch that is not decided", flag=True),
            option("d", "rehearsed", "the --dir of rmqpy rehearse: its age is shown meanwhile"),
        ),
        ours=True,
    ),
)
