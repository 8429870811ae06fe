"""``rmqpy admin dledger``: the state of a DLedger group as each member reports it."""

from __future__ import annotations

from typing import Any

from rmqpy.admin.command import BROKERS, Command, CommandContext, group_members, option
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_time
from rmqpy.model.codes import RequestCode
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
            text = "not a DLedger member of rmqpy" if refusal.code == 3 else str(refusal)
            silent[address] = text
        except RmqError as fault:
            silent[address] = str(fault)
    return CommandResult({"members": found, "silent": silent}, _text(found, silent), bool(silent))


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


COMMANDS = (
    Command(
        name="dledger",
        help="show the members of a DLedger group: roles, terms, positions, last events",
        run=dledger,
        options=(
            BROKERS,
            option("m", "brokerName", "all members of the group with this brokerName"),
        ),
        ours=True,
    ),
)
