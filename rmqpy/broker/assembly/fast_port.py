"""The second port of a broker: everything but pulling, which is answered as an unknown code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.channel import Channel, RequestHandler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


@define(slots=True, frozen=True, eq=False, repr=False)
class FastPort:
    """A ``remoting.channel.RequestHandler`` in front of the broker's own."""

    _broker: RequestHandler

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        others = []
        for command in commands:
            if command.code in _PULLS and not command.is_response:
                channel.write(encode_command(not_supported(command)))
            else:
                others.append(command)
        return self._broker.handle(channel, others)

    def turn_ended(self) -> None:
        self._broker.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        self._broker.channel_closed(channel)


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Java's answer to a code without a processor; sent to one-way requests too."""
    return RemotingCommand.response_to(
        request,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {request.code} not supported",
    )
