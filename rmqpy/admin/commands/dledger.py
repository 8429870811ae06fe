"""Commands for DLedger groups: the state that each member reports, the timeline of its elections,
and the transfer of leadership.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import asdict

from rmqpy.admin.command import BROKERS, Command, CommandContext, group_members, option
from rmqpy.admin.elections import SeenEvent, TermView, events_of, terms_of
from rmqpy.admin.leadership import transfer_leadership
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_time
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.remoting.fastjson import loads

EVENTS_SHOWN = 5

_MEMBERS = OutputTable(
    [
        Column("#Member", -8),
        Column("#Address", -22),
        Column("#Role", -10),
        Column("#Term", 6),
        Column("#Leader", -8),
        Column("#Begin", 10),
        Column("#End", 10),
        Column("#Committed", 11),
    ]
)
_PEERS = OutputTable(
    [
        Column("#Peer", -8),
        Column("#Handshake", -10),
        Column("#State", -10),
        Column("#Match", 10),
        Column("#Lag", 8),
    ]
)


async def dledger(call: CommandContext) -> CommandResult:
    """Show the group of one broker, or of all brokers with a name.

    A member that does not answer is listed, and then the exit code is 2.
    """
    addresses = await group_members(call)
    found: dict[str, Any] = {}
    silent: dict[str, str] = {}
    for address in addresses:
        try:
            response = await call.admin.call(address, RequestCode.RMQPY_DLEDGER_STATUS)
            status = loads(response.body)
            if not isinstance(status, dict):
                raise RemoteProtocolError(f"{address}: no status")
            found[address] = status
        except RequestRejectedError as refusal:
            silent[address] = _without_record(refusal, "no member of")
        except RmqError as fault:
            silent[address] = str(fault)
    return CommandResult({"members": found, "silent": silent}, _text(found, silent), bool(silent))


async def elections(call: CommandContext) -> CommandResult:
    """Show the elections that the members of a group have recorded, the latest term first.

    Members of Java record nothing; those of rmqpy show their requests and answers, too. The exit
    code is 2 without any record.
    """
    events: list[SeenEvent] = []
    silent: dict[str, str] = {}
    for address in await group_members(call):
        try:
            events += events_of(loads(await call.admin.elections(address)))
        except RequestRejectedError as refusal:
            silent[address] = _without_record(refusal, "records no elections: it is no member of")
        except RmqError as fault:
            silent[address] = str(fault)
    terms = terms_of(events)
    lines = [line for term in terms for line in _term_lines(term)]
    lines += [f"{address}: {reason}" for address, reason in silent.items()]
    data = {"terms": [asdict(each) for each in terms], "silent": silent}
    return CommandResult(data, "\n".join(lines), says_no=not terms)


def _term_lines(term: TermView) -> Iterator[str]:
    yield f"term {term.term}, led by {term.leader}" if term.leader else f"term {term.term}"
    for each in term.events:
        times = f" ({each.count} times until {java_time(each.last_ms)})" if each.count > 1 else ""
        yield f"  {java_time(each.time_ms)} {each.member} {each.text}{times}"


async def transfer(call: CommandContext) -> CommandResult:
    """Let the leader of a DLedger group, of rmqpy or of Java, hand over to another member."""
    addresses = await group_members(call)
    done = await transfer_leadership(call.admin, addresses[0], call.args.text("successor"))
    text = f"{done.leader}, the leader of term {done.term}, has handed over to {done.successor}"
    return CommandResult(asdict(done), text)


def _without_record(refusal: RequestRejectedError, what: str) -> str:
    unknown = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return f"{what} a DLedger group of rmqpy" if unknown else str(refusal)


def _text(found: dict[str, Any], silent: dict[str, str]) -> str:
    rows = []
    for address, status in found.items():
        row = [status["self"], address, status["role"], status["term"], status["leader"] or "-"]
        rows.append([*row, status["begin"], status["end"], status["committed"]])
    lines = [_MEMBERS.text(rows)] if rows else []
    for status in found.values():
        if status["role"] == "LEADER":
            lines += ["", _PEERS.text(_peer_rows(status))]
    for address, status in found.items():
        if status.get("fault"):
            lines += ["", f"fault of {status['self']} ({address}): {status['fault']}"]
        lines += ["", f"last events of {status['self']} ({address}):"]
        for event in status["events"][-EVENTS_SHOWN:]:
            lines.append(f"  {java_time(event['time_ms'])} {event['text']}")
        lines += [
            f"  member {peer['id']} is refused: {peer['reason']}"
            for peer in status["peers"]
            if peer.get("reason")
        ]
    lines += [f"{address}: {reason}" for address, reason in silent.items()]
    return "\n".join(lines)


def _peer_rows(status: dict[str, Any]) -> list[list[object]]:
    return [
        [peer["id"], peer["handshake"], peer["state"], peer["match"], peer["lag"]]
        for peer in status["peers"]
        if peer["id"] != status["self"]
    ]


_GROUP_OPTIONS = (
    BROKERS,
    option("m", "brokerName", "all members of the group with this brokerName"),
)

COMMANDS = (
    Command(
        name="dledger",
        help="show the members of a DLedger group: roles, terms, positions, last events",
        run=dledger,
        options=_GROUP_OPTIONS,
        ours=True,
    ),
    Command(
        name="elections",
        help="show the elections of a DLedger group: votes, reasons, and leaders, by term",
        run=elections,
        options=_GROUP_OPTIONS,
        ours=True,
    ),
    Command(
        name="transfer",
        help="let the leader of a DLedger group hand over to another member",
        run=transfer,
        options=(
            *_GROUP_OPTIONS,
            option("t", "successor", "id of the member that is to lead, as n1", required=True),
        ),
        ours=True,
    ),
)
