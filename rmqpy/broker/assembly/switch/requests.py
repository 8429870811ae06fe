"""The requests of a switch: their JSON bodies, and the answers of a broker that is not part of one
any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import define

from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.replication.switch_protocol import (
    Outcome,
    Phase,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
)
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import FastjsonDecodeError, dumps, loads
from rmqpy.remoting.frame import encode_command
from rmqpy.store.ledger.classic_prefix import ClassicPrefixMark

CONTROLS: Final = ("status", "cancel", "postpone", "resume")
"""The steps of an administrator that concern a change in progress."""


def decode(body: bytes) -> Mapping[str, Any]:
    """Raise RequestRejectedError unless ``body`` is a JSON object."""
    try:
        value = loads(body)
    except FastjsonDecodeError as error:
        raise refused(f"no request of a switch: {error}") from None
    if not isinstance(value, dict):
        raise refused("no request of a switch: expected an object")
    return value


def plan_of(body: Mapping[str, Any]) -> tuple[SwitchPlan, str]:
    """Return the plan in a request, and the id of its receiver. Raises RequestRejectedError."""
    try:
        plan = SwitchPlan.decode(body.get("plan"))
    except ValueError as error:
        raise refused(f"no plan of a switch: {error}") from None
    self_id = str(body.get("member"))
    if self_id not in plan.brokers:
        raise refused(f"{self_id} is none of the members in the plan")
    return plan, self_id


def mark_of(body: Mapping[str, Any]) -> ClassicPrefixMark:
    """Return the mark of the master's log in a request. Raises RequestRejectedError."""
    end, digest = body.get("end"), body.get("digest", "")
    if not isinstance(end, int) or not isinstance(digest, str):
        raise refused("no request of a switch: expected end and digest")
    return ClassicPrefixMark(end, digest)


def rate_of(body: Mapping[str, Any]) -> int:
    """Return the bytes per second in a request, 0 for no limit. Raises RequestRejectedError."""
    rate = body.get("rate")
    if not isinstance(rate, int) or rate < 0:
        raise refused("expected a rate in bytes per second, or 0")
    return rate


def change_info(change: str, phase: Phase, pause_ms: int | None) -> dict[str, str]:
    """Return the lines of the runtime information about a switch or a leave."""
    found = {f"{change}Phase": phase.value}
    if pause_ms is not None:
        found[f"{change}PauseMs"] = str(pause_ms)
    return found


def outcome_of(response: RemotingCommand | None) -> Outcome | None:
    """Return the outcome in an answer; None if there is none."""
    if response is None or response.code != ResponseCode.SUCCESS:
        return None
    try:
        return Outcome(decode(response.body).get("outcome"))
    except (ValueError, RequestRejectedError):
        return None


def answer(request: RemotingCommand, value: Mapping[str, Any]) -> RemotingCommand:
    return RemotingCommand.response_to(request, body=dumps(dict(value)))


def reply(channel: Channel, request: RemotingCommand, reason: str) -> None:
    """Answer a request that has been carried out, or not, because of ``reason``."""
    code = ResponseCode.SYSTEM_ERROR if reason else ResponseCode.SUCCESS
    response = RemotingCommand.response_to(request, code, reason or None)
    if not request.is_oneway:
        channel.write(encode_command(response))


def refused(reason: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, reason)


@define(slots=True, frozen=True, eq=False, repr=False)
class JoinedMember:
    """The answers of a broker that was a member of a DLedger group when it started."""

    _journal: SwitchJournal

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_SWITCH: self.answer}

    def answer(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = decode(request.body)
        if body.get("step") != "outcome":
            raise refused("this broker is a member of a DLedger group already")
        outcome = self._journal.outcome(str(body.get("switch")))
        return answer(request, {"outcome": outcome.value})


def complete_switch(broker: Broker, journal: SwitchJournal) -> None:
    """Write the settings of a member to broker.conf, if a switch was decided before this start."""
    record = journal.read()
    file = broker.settings.file
    if record is None or record.stage is not SwitchStage.COMMITTED or file is None:
        return

    def saved(error: BaseException | None) -> None:
        if error is None:
            journal.write(SwitchRecord(SwitchStage.COMPLETE, record.plan, record.self_id))

    file.save(broker.identity, saved)
