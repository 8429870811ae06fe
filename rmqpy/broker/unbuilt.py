"""Requests of normal operation that this version knows but does not do: refused in clear words,
never half done.

What is not listed here and has no processor is answered with code 3.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.broker.ports import HandlerTable
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import Refusal
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

_WHAT: Final[dict[int, str]] = {
    RequestCode.SEND_REPLY_MESSAGE: "replying to request messages",
    RequestCode.SEND_REPLY_MESSAGE_V2: "replying to request messages",
}


@define(slots=True, frozen=True)
class UnbuiltProcessor:
    """See the module's text."""

    def handlers(self) -> HandlerTable:
        return {code: self.refuse for code in _WHAT}

    def refuse(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{_WHAT[request.code]} is not supported by this version of the broker",
        )
