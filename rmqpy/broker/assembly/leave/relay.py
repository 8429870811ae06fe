"""The relay of a member that has left its group: requests of clients that have not fetched the
route of the new master yet are passed on to it, and its answers back.

Their registrations stay here, because the relay has one connection for all of them. The new master
receives the clients as what they are, and each change of them (:class:`ClientHandover`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field

from rmqpy.broker.assembly.switch.requests import refused
from rmqpy.broker.state.clients import ClientTable
from rmqpy.broker.state.handed_clients import (
    ConnectedClient,
    HandedClient,
    connected_clients,
)
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.frame import encode_command

TIMEOUT_MS: Final = 40_000
"""The time for an answer, which is longer than a pull waits for messages."""
HANDOVER_PERIOD_MS: Final = 1000
HANDOVER_TIMEOUT_MS: Final = 5000
HANDED_AT_ONCE: Final = 500
"""The maximum number of clients in one request."""

logger = logging.getLogger(__name__)


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


@define(slots=True, eq=False, repr=False)
class ClientHandover:
    """The clients of this broker, handed over to the master at ``_address`` now, and each change of
    them within a second, until ``_stopped``.
    """

    _network: Network
    _scheduler: Scheduler
    _clients: ClientTable
    _address: str
    _leave: str
    """The id of the leave."""
    _stopped: Callable[[], bool]
    _handed: dict[str, ConnectedClient] = field(factory=dict, init=False)
    _failed: bool = field(default=False, init=False)
    """True if the master has not answered the last requests."""

    def begin(self) -> None:
        if self._stopped():
            return
        now, former = connected_clients(self._clients), self._handed
        gone = [
            client_id
            for client_id, each in former.items()
            if client_id not in now or not now[client_id].has_groups_of(each)
        ]
        changed = [
            each.handed(self._clients).encode()
            for client_id, each in now.items()
            if former.get(client_id) != each
        ]
        self._handed = now
        for begin in range(0, len(gone), HANDED_AT_ONCE):
            self._send({"gone": gone[begin : begin + HANDED_AT_ONCE]})
        for begin in range(0, len(changed), HANDED_AT_ONCE):
            self._send({"clients": changed[begin : begin + HANDED_AT_ONCE]})
        self._scheduler.call_later(HANDOVER_PERIOD_MS, self.begin)

    def _send(self, value: Mapping[str, object]) -> None:
        body = {"step": "clients", "switch": self._leave, **value}
        command = RemotingCommand.request(RequestCode.RMQPY_LEAVE, body=dumps(body))
        self._network.request(self._address, command, HANDOVER_TIMEOUT_MS, self._answered)

    def _answered(self, response: RemotingCommand | None, fault: RmqError | None) -> None:
        failed = response is None or response.code != ResponseCode.SUCCESS
        if failed:
            self._handed = {}  # all of them again
            if not self._failed:
                reason = fault if response is None else response.remark
                logger.warning("%s does not know the clients yet: %s", self._address, reason)
        self._failed = failed


def handed_clients(body: Mapping[str, Any]) -> tuple[Sequence[HandedClient], Sequence[str]]:
    """Return the clients in a request of :class:`ClientHandover`, and the ids of those that have
    gone. Raises RequestRejectedError.
    """
    clients, gone = body.get("clients", []), body.get("gone", [])
    if not isinstance(clients, list) or not isinstance(gone, list):
        raise refused("expected lists of clients")
    try:
        return [HandedClient.decode(each) for each in clients], [str(each) for each in gone]
    except ValueError as error:
        raise refused(str(error)) from None
