"""The transport of a member: requests to and from other members, and the answers to them.

``send`` sends a request of the core and reports the answer as ``Answered``, with None if there is
none. ``receive`` converts a frame to a ``Received``, whose answer :mod:`.replies` sends back.

=========================================  =====================================================
frame                                      answer
=========================================  =====================================================
a readable request                         the core's answer, remoting code 200
an unreadable request                      its response with UNEXPECTED_ARGUMENT
PULL (51003; Java has no handler either)   remoting code 1
any other code                             remoting code 3
=========================================  =====================================================

Requests are exchanged only with members that :mod:`.handshakes` has accepted, and requests of
members are taken only from connections that speak for one (:mod:`.admission`); others are answered
with UNEXPECTED_MEMBER.

Invariants: no unreadable request reaches the core; a problem is logged once per cause and peer, not
once per frame; no request is sent to or accepted from a member whose files do not match; if there
is an old log, no vote and no entry of an unverified member is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.dledger.handshake import PeerHello
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import Answered, Received, Send
from rmqpy.dledger.protocol import push_binary
from rmqpy.dledger.protocol.json_bodies import (
    RESPONSE_FRAME_CODE,
    decode_request,
    decode_response,
    encode,
    encode_in_pieces,
)
from rmqpy.dledger.protocol.messages import (
    REQUESTS,
    AppendEntryRequest,
    DLedgerResponseCode,
    Entry,
    GetEntriesRequest,
    GetEntriesResponse,
    MetadataRequest,
    PushEntryRequest,
    Response,
)
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RmqError
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.handshakes import PeerHandshakes, PeerLink, PeerStatus
from rmqpy.net.dledger.replies import PeerReplies, not_permitted, unknown_code
from rmqpy.net.once_log import OncePerCauseLog
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

_CODE = DLedgerResponseCode

_CLIENT_REQUESTS: Final = frozenset({AppendEntryRequest, GetEntriesRequest, MetadataRequest})
"""The requests of DLedger's own clients, which know no accounts."""

WAITING_MAX: Final = 64
"""The maximum number of requests to one member that wait for its handshake."""


@define(slots=True, eq=False, repr=False)
class PeerTransport:
    """The requests and answers between this member and the others.

    ``introduce`` returns this member's introduction; ``queue_ends`` the ends of its queues without
    messages, or None if it does not lead; ``vouch`` the reason why a Java member may not be joined,
    or "". ``takes_batches`` is called with the name of each member and whether it is rmqpy.
    ``serves_client`` returns whether DLedger's own clients at an address may read and append;
    ``is_open`` whether there is a connection to the address of a member.
    """

    membership: Membership
    options: RaftOptions
    network: Network
    clock: Scheduler
    answered: Callable[[Answered], None]
    introduce: Callable[[], PeerHello]
    queue_ends: Callable[[], bytes | None]
    takes_batches: Callable[[str, bool], None]
    vouch: Callable[[str], str]
    serves_client: Callable[[str], bool]
    admission: PeerAdmission
    is_open: Callable[[str], bool]
    once: OncePerCauseLog = field(init=False)
    """The log of what members and this one cause; ``_strangers`` is that of everybody else."""
    _strangers: OncePerCauseLog = field(init=False)
    handshakes: PeerHandshakes = field(init=False)
    replies: PeerReplies = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.once = OncePerCauseLog(self.clock, None)
        self._strangers = OncePerCauseLog(self.clock)
        self.replies = PeerReplies(self.membership, self.clock, self._strangers)
        self.handshakes = PeerHandshakes(
            self.membership,
            self.options,
            self.network,
            self.clock,
            self.admission,
            self.once,
            self._strangers,
            self.introduce,
            self.takes_batches,
            self.vouch,
            self.is_open,
            self._handshake_ended,
            self.replies.write_later,
        )

    # -------------------------------------------------------------------------------- outgoing

    def send(self, send: Send) -> None:
        """Send a request of the core."""
        link = self.handshakes.links[send.to]
        refused = self.handshakes.status(link) is PeerStatus.REFUSED
        if self.handshakes.may_send(link):
            self._transmit(send)
        elif refused or len(link.waiting) >= WAITING_MAX:
            self.answered(Answered(send.ticket, None))
        else:
            link.waiting.append(send)
            self.handshakes.ask(link)

    def _handshake_ended(self, link: PeerLink) -> None:
        waiting, link.waiting = link.waiting, []
        for send in waiting:
            if self.handshakes.may_send(link):
                self._transmit(send)
            else:
                self.answered(Answered(send.ticket, None))

    def _transmit(self, send: Send) -> None:
        code, pieces = self._encoded(send)
        command = RemotingCommand(code)
        if len(pieces) == 1:
            (command.body,), pieces = pieces, ()
        address, timeout_ms = self.options.addresses[send.to], self.options.rpc_timeout_ms
        self.network.request(address, command, timeout_ms, partial(self._on_response, send), pieces)

    def _encoded(self, send: Send) -> tuple[int, Sequence[bytes]]:
        """Return the code and the pieces of a request: binary if it is a batch push, and its
        receiver has introduced itself as a member that reads them.
        """
        request = send.request
        if isinstance(request, PushEntryRequest):
            if self.handshakes.links[send.to].version >= push_binary.BINARY_VERSION:
                binary = push_binary.write_run(request)
                if binary is not None:
                    return int(RequestCode.RMQPY_PUSH_RUN), binary
        return int(request.CODE), encode_in_pieces(request)

    def fetch(
        self,
        member: str,
        index: int,
        done: Callable[[Entry | None], None],
        expired: Callable[[], None],
    ) -> None:
        """Fetch an entry from a member and call ``done`` with it, or with None if that fails.
        ``expired`` is also called if the member no longer has the entry.
        """
        request = GetEntriesRequest(
            group=self.membership.group,
            remote_id=member,
            local_id=self.membership.self_id,
            begin_index=index,
        )

        def on_response(command: RemotingCommand | None, _fault: RmqError | None) -> None:
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
        self.network.request(address, command, timeout_ms, on_response)

    def ask_queue_ends(self, member: str, done: Callable[[bytes], None]) -> None:
        """Request the ends of queues without messages. ``done`` is called with the answer, or with
        b"" if the member does not support the request, but not if there is no answer.
        """

        def on_response(command: RemotingCommand | None, _fault: RmqError | None) -> None:
            if command is None:
                return
            if command.code == RESPONSE_FRAME_CODE:
                done(command.body)
            elif command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                done(b"")

        command = RemotingCommand.request(RequestCode.RMQPY_QUEUE_ENDS)
        address, timeout_ms = self.options.addresses[member], self.options.rpc_timeout_ms
        self.network.request(address, command, timeout_ms, on_response)

    def _on_response(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        self.answered(Answered(send.ticket, self._response(send, command, fault)))

    def _response(
        self, send: Send, command: RemotingCommand | None, fault: RmqError | None
    ) -> Response | None:
        if command is None:
            self.once.warn(("silent", send.to), "member %s: %s", send.to, fault)
            self.handshakes.failed(self.handshakes.links[send.to])
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
            if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                # Another version answers than the one that has introduced itself.
                self.handshakes.failed(self.handshakes.links[send.to])
            return None
        try:
            response = decode_response(kind, command.body)
            if response.code == _CODE.UNEXPECTED_MEMBER:  # another connection needs a handshake
                self.handshakes.failed(self.handshakes.links[send.to])
            return response
        except RemoteProtocolError as problem:
            text = "cannot read the answer of member %s: %s"
            self.once.warn(("answer", send.to, kind), text, send.to, problem)
            return None

    # -------------------------------------------------------------------------------- incoming

    def receive(self, channel: Channel, command: RemotingCommand) -> Received | None:
        """Return the request in a frame, or None if it has been answered or dropped."""
        kind = REQUESTS.get(command.code)
        if command.code == RequestCode.RMQPY_DLEDGER_HANDSHAKE:
            self.handshakes.receive(channel, command)
            return None
        if kind is None and command.code != RequestCode.RMQPY_QUEUE_ENDS:
            self.replies.write(channel, unknown_code(command))
            return None
        member = self.admission.admits(channel)
        if kind is None:
            if member:
                self.replies.write(channel, self._queue_ends(command))
            else:
                self.handshakes.turn_away(channel, command, "asks for the ends of the queues")
            return None
        if kind in _CLIENT_REQUESTS:
            if not member and not self.serves_client(channel.peer[0]):
                self.replies.write(channel, not_permitted(command))
                return None
        elif not member:
            self.handshakes.stranger(channel, f"sends a {kind.__name__}")
            self.replies.refuse(channel, command, kind, _CODE.UNEXPECTED_MEMBER)
            return None
        try:
            request = decode_request(command.code, command.body)
        except RemoteProtocolError as fault:
            self._strangers.warn(
                ("request", channel.peer[0], kind), "%s:%d: %s", *channel.peer, fault
            )
            self.replies.refuse(channel, command, kind, _CODE.UNEXPECTED_ARGUMENT)
            return None
        link = self.handshakes.links.get(request.leader_id or request.local_id or "")
        if link is not None and not self.handshakes.accepts(link):
            if link.standing is PeerStatus.REFUSED:
                self.replies.refuse(channel, command, kind, _CODE.UNEXPECTED_MEMBER)
            return None
        return self.replies.expect(channel, command, request)

    def channel_closed(self, channel: Channel) -> None:
        self.admission.closed(channel)
        self.replies.channel_closed(channel)

    def _queue_ends(self, command: RemotingCommand) -> bytes:
        ends = self.queue_ends()
        if ends is None:
            text = f"{self.membership.self_id} does not lead"
            refusal = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, text)
            return encode_command(refusal)
        return encode_command(RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=ends))
