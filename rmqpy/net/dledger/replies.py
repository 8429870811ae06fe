"""The answers of a member to the frames that it receives: those of the core, which come later than
the frames, and those that need no core. All answers of a turn to one connection are sent in one
write.

Invariant: a request that waits for the core or for its quorum is answered once.
"""

from __future__ import annotations

from typing import Final

from attrs import define, evolve, field

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.dledger.member import Membership
from rmqpy.dledger.node import Acknowledged, Received, Reply
from rmqpy.dledger.protocol.json_bodies import RESPONSE_FRAME_CODE, encode_answer
from rmqpy.dledger.protocol.messages import (
    RESPONSES,
    AppendEntryResponse,
    DLedgerResponseCode,
    GetEntriesRequest,
    Request,
    Response,
)
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.net.once_log import OncePerCauseLog
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

_CODE = DLedgerResponseCode

WRITE_AT: Final = 256 * 1024
"""The size of collected replies, in bytes, at which the remaining requests of a read wait."""

ENTRIES_PER_TURN: Final = 512 * 1024
"""The size of the replies with entries, in bytes, after which further requests for entries wait for
the next turn. Encoding them takes some 4 ms. Connections that have received little count apart from
the others, so that one that asks now and then does not wait for hundreds that read a whole log.
"""

LITTLE: Final = 256 * 1024

_STRANGERS: Final = (_CODE.UNKNOWN_MEMBER, _CODE.UNKNOWN_GROUP, _CODE.UNEXPECTED_MEMBER)


@define(slots=True)
class PendingRequest:
    """A received request without an answer."""

    channel: Channel
    command: RemotingCommand
    request: Request
    physical_offset: int = -1


@define(slots=True, eq=False, repr=False)
class PeerReplies:
    """The requests without an answer, and the answers of this turn.

    ``strangers`` logs requests that are not for this member.
    """

    membership: Membership
    clock: Scheduler
    strangers: OncePerCauseLog
    _ticket: int = 0
    _received: dict[int, PendingRequest] = field(factory=dict)
    _replies: dict[Channel, list[bytes]] = field(factory=dict)
    _reply_bytes: int = 0
    _entry_bytes: int = 0
    """The size of the replies with entries in this turn, to connections that received many."""

    _little_bytes: int = 0
    """The size of those to the others."""

    _received_bytes: dict[Channel, int] = field(factory=dict)
    """The size of the replies with entries on each connection, since requests had to wait."""

    _waits: bool = False
    """Whether a request had to wait in this turn."""

    def expect(self, channel: Channel, command: RemotingCommand, request: Request) -> Received:
        """Return a request for the core, which will be answered with its ticket."""
        self._ticket += 1
        self._received[self._ticket] = PendingRequest(channel, command, request)
        return Received(self._ticket, request)

    def reply(self, reply: Reply) -> None:
        """Queue an answer of the core, which :meth:`write_all` sends."""
        pending = self._received.pop(reply.ticket, None)
        if pending is None or reply.response is None:
            return
        if reply.response.code in _STRANGERS:
            request = pending.request
            self.strangers.warn(
                ("stranger", pending.channel.peer[0], type(request), reply.response.code),
                "%s:%d sent a %s that is not for this member: %s"
                " (group %.64s, to %.64s, from %.64s)",
                *pending.channel.peer,
                type(request).__name__,
                _CODE(reply.response.code).name,
                request.group,
                request.remote_id,
                request.leader_id or request.local_id,
            )
        frame = _answer(pending.command, reply.response)
        if isinstance(pending.request, GetEntriesRequest):
            self._count(pending.channel, len(frame))
        self.write(pending.channel, frame)

    def must_wait(self, channel: Channel, command: RemotingCommand) -> bool:
        """Return whether a request must wait for the next turn, so that the requests of others do
        not wait for the entries of this one.
        """
        if command.code != GetEntriesRequest.CODE:
            return False
        spent = self._little_bytes if self._has_little(channel) else self._entry_bytes
        waits = spent >= ENTRIES_PER_TURN
        self._waits = self._waits or waits
        return waits

    def turn_ended(self) -> None:
        """Allow further replies with entries."""
        if not self._waits:
            self._received_bytes.clear()
        self._waits = False
        self._entry_bytes = self._little_bytes = 0

    def channel_closed(self, channel: Channel) -> None:
        self._received_bytes.pop(channel, None)

    def _has_little(self, channel: Channel) -> bool:
        return self._received_bytes.get(channel, 0) < LITTLE

    def _count(self, channel: Channel, size: int) -> None:
        """Count a reply with entries."""
        if self._has_little(channel):
            self._little_bytes += size
        else:
            self._entry_bytes += size
        self._received_bytes[channel] = self._received_bytes.get(channel, 0) + size

    def has_large_reply(self, received: Received | None) -> bool:
        """Return whether the replies so far, or the one to ``received``, may be so large that they
        must be written before further requests are handled.
        """
        if received is not None and isinstance(received.request, GetEntriesRequest):
            return True
        return self._reply_bytes >= WRITE_AT

    def write_all(self) -> None:
        """Send the answers of this turn."""
        if not self._replies:
            return
        replies, self._replies = self._replies, {}
        self._reply_bytes = 0
        for channel, frames in replies.items():
            channel.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def refuse(
        self,
        channel: Channel,
        command: RemotingCommand,
        kind: type[Request],
        code: DLedgerResponseCode,
    ) -> None:
        """Answer with a code that the core did not decide."""
        refusal = RESPONSES[kind](
            group=self.membership.group, remote_id=self.membership.self_id, code=code
        )
        self.write(channel, _answer(command, refusal))

    # -------------------------------------------------------------- appends of DLedger's clients

    def appended(self, ticket: int, physical_offset: int) -> None:
        """Record the offset at which a client's record was appended, while it waits for its
        quorum.
        """
        self._received[ticket].physical_offset = physical_offset

    def reply_append(self, outcome: Acknowledged) -> None:
        """Answer a client's append with its outcome."""
        pending = self._received.pop(outcome.token)
        success = outcome.code is _CODE.SUCCESS
        self._answer_append(pending, outcome.code, outcome.index if success else -1)

    def refuse_append(self, ticket: int, code: DLedgerResponseCode) -> None:
        self._answer_append(self._received.pop(ticket), code, -1)

    def _answer_append(
        self, pending: PendingRequest, code: DLedgerResponseCode, index: int
    ) -> None:
        request = pending.request
        response = AppendEntryResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=self.membership.self_id if index >= 0 else request.leader_id,
            term=request.term,
            code=code,
        )
        if index >= 0:
            position = pending.physical_offset - ENTRY_HEADER_SIZE
            response = evolve(response, index=index, position=position)
        self.write(pending.channel, _answer(pending.command, response))

    def write(self, channel: Channel, frame: bytes) -> None:
        """Queue a frame, which :meth:`write_all` sends."""
        self._replies.setdefault(channel, []).append(frame)
        self._reply_bytes += len(frame)

    def write_later(self, channel: Channel, answer: RemotingCommand) -> None:
        """Send an answer of a handshake, which may be due outside of a turn of the driver."""
        self.write(channel, encode_command(answer))
        self.clock.call_soon(self.write_all)


def _answer(command: RemotingCommand, response: Response) -> bytes:
    body = encode_answer(command.code, response)
    return encode_command(RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=body))


def not_permitted(command: RemotingCommand) -> bytes:
    """Return the answer to a client that access control does not permit to use this port."""
    remark = (
        "with access control only members of the group may read or append here: use the broker's"
        " listenPort, or add this address to replicationAddresses"
    )
    response = RemotingCommand.response_to(command, ResponseCode.NO_PERMISSION, remark)
    return encode_command(response)


def unknown_code(command: RemotingCommand) -> bytes:
    """Return the answer to a request that members do not know."""
    if command.code == RequestCode.PULL_DLEDGER:
        code, remark = ResponseCode.SYSTEM_ERROR, "PULL is not implemented"
    else:
        code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        remark = f" request type {command.code} not supported"
    return encode_command(RemotingCommand.response_to(command, code, remark))
