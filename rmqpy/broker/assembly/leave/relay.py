"""The relay of a member that has left its group: requests of clients that have not fetched the
route of the new master yet are passed on to it, and its answers back.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from attrs import define, evolve

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

TIMEOUT_MS: Final = 40_000
"""The time for an answer, which is longer than a pull waits for messages."""


@define(slots=True, frozen=True, eq=False, repr=False)
class ClientRelay:
    """The relay to the master at ``address``."""

    _network: Network
    address: str

    def answer(self, channel: Channel, request: RemotingCommand) -> None:
        """Pass a request on; it is answered later."""
        if request.is_oneway:
            self._network.oneway(self.address, evolve(request))
        else:
            done = partial(self._answered, channel, request)
            self._network.request(self.address, evolve(request), TIMEOUT_MS, done)

    def _answered(
        self,
        channel: Channel,
        request: RemotingCommand,
        response: RemotingCommand | None,
        fault: RmqError | None,
    ) -> None:
        if response is None:
            response = RemotingCommand.response_to(
                request,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"this broker has left its DLedger group, and the master, {self.address}, does not"
                f" answer: {fault}",
            )
        channel.write(encode_command(evolve(response, opaque=request.opaque)))
