"""The FENCE request of rmqpy: close a broker to messages for a while, open it, or read its state
(:mod:`rmqpy.broker.services.fence`).

The answer is JSON: ``remaining_ms`` (0 if the broker is open), ``waiting`` (accepted messages that
are not confirmed yet), ``begin``, ``end``, and ``confirmed`` (physical offsets), ``drained``,
``role``, ``broker_id``, ``ha_address`` (the port that slaves replicate from), ``member`` (whether
this is one of a DLedger group), and ``stream_end`` (the end of what it serves to classic slaves, or
null).
"""

from __future__ import annotations

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.services.fence import SECONDS_MAX, WriteFence
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.headers import FenceRequestHeader


@define(slots=True, frozen=True, eq=False, repr=False)
class FenceProcessor:
    """The processor of the FENCE request."""

    identity: BrokerContext
    fence: WriteFence

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_FENCE: self.answer}

    def answer(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        seconds = FenceRequestHeader.decode(request.ext_fields).seconds
        if seconds is not None:
            if not 0 <= seconds <= SECONDS_MAX:
                raise RequestRejectedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"seconds={seconds}: expected 1 to {SECONDS_MAX}, or 0 to open the broker",
                )
            if seconds:
                self.fence.close(seconds)
            else:
                self.fence.open()
        state = self.fence.state()
        body = {
            "role": self.identity.role.name,
            "broker_id": self.identity.broker_id,
            "ha_address": self.identity.ha_address,
            "remaining_ms": state.remaining_ms,
            "waiting": state.waiting,
            "begin": state.begin,
            "end": state.end,
            "confirmed": state.confirmed,
            "drained": state.is_drained,
            "member": self.identity.store.enable_dledger_commit_log,
            "stream_end": state.stream_end,
        }
        return RemotingCommand.response_to(request, body=dumps(body))
