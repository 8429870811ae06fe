"""The wire of a member: its requests to the others, theirs to it, and the answers both ways.

``send`` takes a request of the core to its member and brings the answer back as ``Answered``, None
where there is none. ``receive`` makes a ``Received`` of a frame; the answer goes back to where it
came from. All answers of a turn to one connection leave in one write.

=========================================  =====================================================
a frame                                    gets
=========================================  =====================================================
a request that can be read                 the core's answer, remoting code 200
a request that cannot                      its response with UNEXPECTED_ARGUMENT
PULL (51003; Java has no handler either)   remoting code 1
any other code                             remoting code 3
=========================================  =====================================================

Invariants: nothing that cannot be read reaches the core; a line is logged once a cause and peer,
not once a frame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define, evolve, field

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.dledger.member import Membership, Options
from rmqpy.dledger.messages import (
    REQUESTS,
    RESPONSES,
    AppendEntryResponse,
    DLedgerResponseCode,
    Request,
    Response,
)
from rmqpy.dledger.node import Acknowledged, Answered, Received, Reply, Send
from rmqpy.dledger.wire import RESPONSE_FRAME_CODE, decode_request, decode_response, encode
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteFault, RmqError
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

_CODE = DLedgerResponseCode

SAID_MAX: Final = 256
"""Causes that are remembered as logged."""

_STRANGERS: Final = (_CODE.UNKNOWN_MEMBER, _CODE.UNKNOWN_GROUP, _CODE.UNEXPECTED_MEMBER)

_log = logging.getLogger(__name__)


@define(slots=True)
class Asked:
    """A request of somebody that has no answer yet."""

    channel: Channel
    command: RemotingCommand
    request: Request
    physical_offset: int = -1


class Once:
    """Logs a sentence the first time that it is about this; the oldest causes are forgotten."""

    def __init__(self) -> None:
        self._said: dict[object, None] = {}

    def warn(self, cause: object, text: str, *arguments: object) -> None:
        if cause not in self._said:
            if len(self._said) >= SAID_MAX:
                del self._said[next(iter(self._said))]
            self._said[cause] = None
            _log.warning(text, *arguments)

    def forget(self, cause: object) -> None:
        """It is over: the next time is news again."""
        self._said.pop(cause, None)


@define(slots=True, eq=False)
class Peers:
    """See the module."""

    membership: Membership
    options: Options
    network: Network
    answered: Callable[[Answered], None]
    once: Once = field(factory=Once)
    _ticket: int = 0
    _asked: dict[int, Asked] = field(factory=dict)
    _replies: dict[Channel, list[bytes]] = field(factory=dict)

    # -------------------------------------------------------------------------------- outgoing

    def send(self, send: Send) -> None:
        """A request of the core."""
        request = send.request
        command = RemotingCommand.request(request.CODE, body=encode(request))
        self.network.request(
            self.options.addresses[send.to],
            command,
            self.options.rpc_timeout_ms,
            partial(self._came_back, send),
        )

    def _came_back(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        self.answered(Answered(send.ticket, self._response(send, command, fault)))

    def _response(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> Response | None:
        if command is None:
            self.once.warn(("silent", send.to), "member %s: %s", send.to, fault)
            return None
        self.once.forget(("silent", send.to))
        kind = type(send.request)
        if command.code != RESPONSE_FRAME_CODE:
            text = "member %s answers a %s with code %d: %s"
            self.once.warn(
                ("refused", send.to, kind, command.code),
                text,
                send.to,
                kind.__name__,
                command.code,
                command.remark,
            )
            return None
        try:
            return decode_response(kind, command.body)
        except RemoteFault as wrong:
            text = "the answer of member %s cannot be read: %s"
            self.once.warn(("answer", send.to, kind), text, send.to, wrong)
            return None

    # -------------------------------------------------------------------------------- incoming

    def receive(self, channel: Channel, command: RemotingCommand) -> Received | None:
        """The request in a frame; None when it has been answered here."""
        kind = REQUESTS.get(command.code)
        if kind is None:
            self._write(channel, _unknown(command))
            return None
        try:
            request = decode_request(command.code, command.body)
        except RemoteFault as wrong:
            self.once.warn(
                ("request", channel.peer[0], kind), "%s:%d: %s", *channel.peer, wrong
            )
            refusal = RESPONSES[kind](
                group=self.membership.group,
                remote_id=self.membership.self_id,
                code=_CODE.UNEXPECTED_ARGUMENT,
            )
            self._write(channel, _answer(command, refusal))
            return None
        self._ticket += 1
        self._asked[self._ticket] = Asked(channel, command, request)
        return Received(self._ticket, request)

    def reply(self, reply: Reply) -> None:
        """The core's answer; it leaves with :meth:`write_replies`."""
        asked = self._asked.pop(reply.ticket, None)
        if asked is None or reply.response is None:
            return
        if reply.response.code in _STRANGERS:
            request = asked.request
            self.once.warn(
                ("stranger", asked.channel.peer[0], type(request), reply.response.code),
                "%s:%d sends a %s that is not for this member: %s (group %s, to %s, of %s)",
                *asked.channel.peer,
                type(request).__name__,
                _CODE(reply.response.code).name,
                request.group,
                request.remote_id,
                request.leader_id or request.local_id,
            )
        self._write(asked.channel, _answer(asked.command, reply.response))

    def write_replies(self) -> None:
        replies, self._replies = self._replies, {}
        for channel, frames in replies.items():
            channel.write(frames[0] if len(frames) == 1 else b"".join(frames))

    # -------------------------------------------------------------- appends of DLedger's clients

    def appended(self, ticket: int, physical_offset: int) -> None:
        """The record of a client stands there, and waits for its quorum."""
        self._asked[ticket].physical_offset = physical_offset

    def acknowledge(self, told: Acknowledged) -> None:
        """What became of it."""
        asked = self._asked.pop(told.token)
        success = told.code is _CODE.SUCCESS
        self._answer_append(asked, told.code, told.index if success else -1)

    def refuse_append(self, ticket: int, code: DLedgerResponseCode) -> None:
        self._answer_append(self._asked.pop(ticket), code, -1)

    def _answer_append(self, asked: Asked, code: DLedgerResponseCode, index: int) -> None:
        request = asked.request
        response = AppendEntryResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=self.membership.self_id if index >= 0 else request.leader_id,
            term=request.term,
            code=code,
        )
        if index >= 0:
            position = asked.physical_offset - ENTRY_HEADER_SIZE
            response = evolve(response, index=index, position=position)
        self._write(asked.channel, _answer(asked.command, response))

    def _write(self, channel: Channel, frame: bytes) -> None:
        self._replies.setdefault(channel, []).append(frame)


def _answer(command: RemotingCommand, response: Response) -> bytes:
    return encode_command(
        RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=encode(response))
    )


def _unknown(command: RemotingCommand) -> bytes:
    if command.code == RequestCode.PULL_DLEDGER:
        code, remark = ResponseCode.SYSTEM_ERROR, "PULL is not implemented"
    else:
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        remark = f" request type {command.code} not supported"
    return encode_command(RemotingCommand.response_to(command, code, remark))
