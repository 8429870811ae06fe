"""The wire of a member: requests to and from other members, and the answers in both directions.

``send`` sends a request of the core to its member and returns the answer as ``Answered``, with None
if there is none. ``receive`` turns a frame into a ``Received``; the answer returns to the sender.
All answers of a turn to one connection leave in one write.

=========================================  =====================================================
frame                                      answer
=========================================  =====================================================
a readable request                         the core's answer, remoting code 200
an unreadable request                      its response with UNEXPECTED_ARGUMENT
PULL (51003; Java has no handler either)   remoting code 1
any other code                             remoting code 3
=========================================  =====================================================

Before anything else is sent to a member, its handshake is requested (``dledger.handshake``), and
again after each failure, because a different process may have returned::

    state     a send         its requests            leaves by
    unknown   waits, asks    taken, once it was      an answer; no answer -> unknown, what waits
                             judged; else dropped,   gets None
                             and it is asked
    verified  goes out       taken                   a failure, or more to tell -> unknown
    java      goes out       taken                   the same
    refused   gets None      UNEXPECTED_MEMBER       after ``REFUSED_MS``, or when it introduces
                                                     itself and fits

A member introduces itself before it sends, so it has been judged before its first request. A Java
member does not: with an old log before this one it must be vouched for (by a certificate or the
operator).

Invariants: no unreadable request reaches the core; a line is logged once per cause and peer, not
once per frame; nothing is sent to or accepted from a member whose files do not match; if there is
an old log, no vote and no entry of an unjudged member is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Final

from attrs import define, evolve, field

from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.dledger.handshake import PeerHello, compare, decode_introduction
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import Acknowledged, Answered, Received, Reply, Send
from rmqpy.dledger.protocol.json_bodies import (
    RESPONSE_FRAME_CODE,
    decode_request,
    decode_response,
    encode,
    encode_in_pieces,
)
from rmqpy.dledger.protocol.messages import (
    REQUESTS,
    RESPONSES,
    AppendEntryResponse,
    DLedgerResponseCode,
    Entry,
    GetEntriesRequest,
    GetEntriesResponse,
    Request,
    Response,
)
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RmqError
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

_CODE = DLedgerResponseCode

SAID_MAX: Final = 256
"""Maximum number of causes remembered as logged."""

WAITING_MAX: Final = 64
"""Maximum number of requests to one member that wait for its handshake."""

REFUSED_MS: Final = 10_000

_STRANGERS: Final = (_CODE.UNKNOWN_MEMBER, _CODE.UNKNOWN_GROUP, _CODE.UNEXPECTED_MEMBER)

logger = logging.getLogger(__name__)


@define(slots=True)
class PendingRequest:
    """A received request that has no answer yet."""

    channel: Channel
    command: RemotingCommand
    request: Request
    physical_offset: int = -1


class OncePerCauseLog:
    """A logger that logs each cause only once; the oldest causes are forgotten."""

    def __init__(self) -> None:
        self._said: dict[object, None] = {}

    def warn(self, cause: object, text: str, *arguments: object) -> None:
        if cause not in self._said:
            if len(self._said) >= SAID_MAX:
                del self._said[next(iter(self._said))]
            self._said[cause] = None
            logger.warning(text, *arguments)

    def forget(self, cause: object) -> None:
        """Forget ``cause``, so that its next occurrence is logged again."""
        if self._said:
            self._said.pop(cause, None)


class PeerStatus(Enum):
    """The state of the handshake with a member."""

    UNKNOWN = "unknown"
    VERIFIED = "verified"
    JAVA = "java"
    REFUSED = "refused"


@define(slots=True, eq=False, repr=False)
class PeerLink:
    """Another member as seen from this one."""

    name: str
    standing: PeerStatus = PeerStatus.UNKNOWN
    reason: str = ""
    """The reason for its refusal."""

    judged: bool = False
    """Whether it has been found to match since this process started."""

    ask_again_ms: int = 0
    asking: bool = False
    waiting: list[Send] = field(factory=list)


@define(slots=True, eq=False, repr=False)
class PeerTransport:
    """The requests and answers between this member and the others.

    ``introduce`` returns this member's introduction, ``queue_ends`` the next offsets of its silent
    queues (None if it does not lead), ``vouch`` why a Java member may not be joined ("" if it may);
    ``takes_batches`` is called with each rmqpy member.
    """

    membership: Membership
    options: RaftOptions
    network: Network
    clock: Clock
    answered: Callable[[Answered], None]
    introduce: Callable[[], PeerHello]
    queue_ends: Callable[[], bytes | None]
    takes_batches: Callable[[str, bool], None]
    vouch: Callable[[str], str]
    ways: dict[str, PeerLink] = field(init=False)
    once: OncePerCauseLog = field(factory=OncePerCauseLog)
    _ticket: int = 0
    _asked: dict[int, PendingRequest] = field(factory=dict)
    _replies: dict[Channel, list[bytes]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.ways = {name: PeerLink(name) for name in self.membership.others}

    # -------------------------------------------------------------------------------- outgoing

    def send(self, send: Send) -> None:
        """Send a request of the core."""
        way = self.ways[send.to]
        if way.standing is PeerStatus.REFUSED:
            if self.clock.monotonic_ms() < way.ask_again_ms:
                self.answered(Answered(send.ticket, None))
                return
            way.standing = PeerStatus.UNKNOWN
        if way.standing is not PeerStatus.UNKNOWN:
            self._transmit(send)
        elif len(way.waiting) >= WAITING_MAX:
            self.answered(Answered(send.ticket, None))
        else:
            way.waiting.append(send)
            if not way.asking:
                self._ask(way)

    def _ask(self, way: PeerLink) -> None:
        """Request the handshake of a member."""
        way.asking = True
        self.network.request(
            self.options.addresses[way.name],
            RemotingCommand.request(
                RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=self.introduce().encode()
            ),
            self.options.rpc_timeout_ms,
            partial(self._introduced, way),
        )

    def _introduced(
        self, way: PeerLink, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        way.asking = False
        if command is None:
            self.once.warn(("silent", way.name), "member %s: %s", way.name, fault)
        else:
            self.once.forget(("silent", way.name))
            if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._judge(way, None)
            elif command.code == RESPONSE_FRAME_CODE:
                self._judge(way, command.body)
            else:
                text = "member %s does not introduce itself: %s"
                self.once.warn(("handshake", way.name), text, way.name, command.remark)
        waiting, way.waiting = way.waiting, []
        for send in waiting:
            if way.standing in (PeerStatus.VERIFIED, PeerStatus.JAVA):
                self._transmit(send)
            else:
                self.answered(Answered(send.ticket, None))

    def _judge(self, way: PeerLink, body: bytes | None) -> None:
        """Judge a member by its introduction ``body``; None means a Java member."""
        if body is None:
            missing = self.vouch(way.name)
            if missing:
                self._refuse(way, missing)
                return
            way.standing = PeerStatus.JAVA
            way.judged = True
            self.takes_batches(way.name, False)
            return
        try:
            other = decode_introduction(body)
        except RemoteProtocolError as wrong:
            self.once.warn(("handshake", way.name), "member %s: %s", way.name, wrong)
            return
        found = compare(self.introduce(), other)
        for note in found.notes:
            self.once.warn(("peers", way.name, note), "member %s: %s", way.name, note)
        if found.refusals:
            self._refuse(way, "; ".join(found.refusals))
        else:
            self._fits(way)

    def _fits(self, way: PeerLink) -> None:
        way.standing = PeerStatus.VERIFIED
        way.reason = ""
        way.judged = True
        self.takes_batches(way.name, True)

    def renew_handshake(self) -> None:
        """Repeat the handshake with every member before anything else is sent, with new facts."""
        for way in self.ways.values():
            if way.standing is PeerStatus.VERIFIED:
                way.standing = PeerStatus.UNKNOWN
                if not way.asking:
                    self._ask(way)

    def _refuse(self, way: PeerLink, reason: str) -> None:
        way.judged = False
        way.standing = PeerStatus.REFUSED
        way.reason = reason
        way.ask_again_ms = self.clock.monotonic_ms() + REFUSED_MS
        self.once.warn(("unfit", way.name, reason), "member %s is refused: %s", way.name, reason)

    def _transmit(self, send: Send) -> None:
        request = send.request
        command, pieces = RemotingCommand(int(request.CODE)), encode_in_pieces(request)
        if len(pieces) == 1:
            (command.body,), pieces = pieces, ()
        address, timeout_ms = self.options.addresses[send.to], self.options.rpc_timeout_ms
        self.network.request(address, command, timeout_ms, partial(self._came_back, send), pieces)

    def fetch(
        self,
        member: str,
        index: int,
        done: Callable[[Entry | None], None],
        expired: Callable[[], None],
    ) -> None:
        """Fetch an entry of the leader; ``done(None)`` on failure, ``expired`` if it no longer
        exists.
        """
        request = GetEntriesRequest(
            group=self.membership.group,
            remote_id=member,
            local_id=self.membership.self_id,
            begin_index=index,
        )

        def came(command: RemotingCommand | None, _fault: RmqError | None) -> None:
            entry = None
            if command is not None and command.code == RESPONSE_FRAME_CODE:
                with suppress(RemoteProtocolError):
                    response = decode_response(GetEntriesRequest, command.body)
                    if isinstance(response, GetEntriesResponse) and response.entries:
                        entry = response.entries[0]
                    elif response.code == _CODE.INDEX_LESS_THAN_LOCAL_BEGIN:
                        expired()
            done(entry)

        command = RemotingCommand.request(request.CODE, body=encode(request))
        address, timeout_ms = self.options.addresses[member], self.options.rpc_timeout_ms
        self.network.request(address, command, timeout_ms, came)

    def ask_queue_ends(self, member: str, done: Callable[[bytes], None]) -> None:
        """Request queue ends; ``done`` receives the answer, b"" from a member that does not know
        the request, and is not called without an answer.
        """

        def came(command: RemotingCommand | None, _fault: RmqError | None) -> None:
            if command is None:
                return
            if command.code == RESPONSE_FRAME_CODE:
                done(command.body)
            elif command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                done(b"")

        command = RemotingCommand.request(RequestCode.RMQPY_QUEUE_ENDS)
        address, timeout_ms = self.options.addresses[member], self.options.rpc_timeout_ms
        self.network.request(address, command, timeout_ms, came)

    def _came_back(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        self.answered(Answered(send.ticket, self._response(send, command, fault)))

    def _response(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> Response | None:
        if command is None:
            self.once.warn(("silent", send.to), "member %s: %s", send.to, fault)
            way = self.ways[send.to]
            if way.standing is not PeerStatus.REFUSED:
                way.standing = PeerStatus.UNKNOWN
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
        except RemoteProtocolError as wrong:
            text = "the answer of member %s cannot be read: %s"
            self.once.warn(("answer", send.to, kind), text, send.to, wrong)
            return None

    # -------------------------------------------------------------------------------- incoming

    def receive(self, channel: Channel, command: RemotingCommand) -> Received | None:
        """Return the request in a frame; None if it was answered here."""
        kind = REQUESTS.get(command.code)
        if command.code == RequestCode.RMQPY_DLEDGER_HANDSHAKE:
            self._write(channel, self._meet(command))
            return None
        if command.code == RequestCode.RMQPY_QUEUE_ENDS:
            self._write(channel, self._queue_ends(command))
            return None
        if kind is None:
            self._write(channel, _unknown(command))
            return None
        try:
            request = decode_request(command.code, command.body)
        except RemoteProtocolError as wrong:
            self.once.warn(("request", channel.peer[0], kind), "%s:%d: %s", *channel.peer, wrong)
            refusal = RESPONSES[kind](
                group=self.membership.group,
                remote_id=self.membership.self_id,
                code=_CODE.UNEXPECTED_ARGUMENT,
            )
            self._write(channel, _answer(command, refusal))
            return None
        way = self.ways.get(request.leader_id or request.local_id or "")
        if way is not None and not self._may_enter(way):
            if way.standing is PeerStatus.REFUSED:
                refusal = RESPONSES[kind](
                    group=self.membership.group,
                    remote_id=self.membership.self_id,
                    code=_CODE.UNEXPECTED_MEMBER,
                )
                self._write(channel, _answer(command, refusal))
            return None
        self._ticket += 1
        self._asked[self._ticket] = PendingRequest(channel, command, request)
        return Received(self._ticket, request)

    def _may_enter(self, way: PeerLink) -> bool:
        """Return whether requests of a member are accepted; request the handshake of an unjudged
        one.
        """
        if way.standing is PeerStatus.REFUSED:
            if self.clock.monotonic_ms() < way.ask_again_ms:
                return False
            way.standing = PeerStatus.UNKNOWN
        if way.judged or self.introduce().divided_offset < 0:
            return True
        if not way.asking:
            self._ask(way)
        return False

    def _meet(self, command: RemotingCommand) -> bytes:
        """Judge a member that introduces itself, and return the introduction of this one."""
        try:
            other = decode_introduction(command.body)
        except RemoteProtocolError as wrong:
            refusal = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, str(wrong))
            return encode_command(refusal)
        own = self.introduce()
        way = self.ways.get(other.member)
        refusals = compare(own, other).refusals
        if way is not None and refusals:
            self._refuse(way, "; ".join(refusals))
        elif way is not None and way.standing is not PeerStatus.VERIFIED:
            self._fits(way)
        answer = RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=own.encode())
        return encode_command(answer)

    def _queue_ends(self, command: RemotingCommand) -> bytes:
        ends = self.queue_ends()
        if ends is None:
            text = f"{self.membership.self_id} does not lead"
            refusal = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, text)
            return encode_command(refusal)
        return encode_command(RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=ends))

    def reply(self, reply: Reply) -> None:
        """Queue the core's answer, which :meth:`write_replies` sends."""
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
        if not self._replies:
            return
        replies, self._replies = self._replies, {}
        for channel, frames in replies.items():
            channel.write(frames[0] if len(frames) == 1 else b"".join(frames))

    # -------------------------------------------------------------- appends of DLedger's clients

    def appended(self, ticket: int, physical_offset: int) -> None:
        """Record where a client's record was appended; it waits for its quorum."""
        self._asked[ticket].physical_offset = physical_offset

    def reply_append(self, told: Acknowledged) -> None:
        """Answer a client's append with its outcome."""
        asked = self._asked.pop(told.token)
        success = told.code is _CODE.SUCCESS
        self._answer_append(asked, told.code, told.index if success else -1)

    def refuse_append(self, ticket: int, code: DLedgerResponseCode) -> None:
        self._answer_append(self._asked.pop(ticket), code, -1)

    def _answer_append(self, asked: PendingRequest, code: DLedgerResponseCode, index: int) -> None:
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
