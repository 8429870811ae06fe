"""The handshakes between this member and the others, and what each of them may do until then.

The first request to a member is the handshake (``dledger.handshake``). It is repeated after each
failure, because a different process may have taken its place, and while it is not answered
(:mod:`.repeated_requests`), except for the proof of the secret, which counts once::

    state     requests to it       requests from it           left by
    unknown   wait for handshake   accepted if it has been    the answer to the handshake; without
                                   judged before; otherwise   one, waiting requests get None
                                   dropped, and handshake
    verified  sent                 accepted                   a failure, a new connection, or new
                                                              facts -> unknown
    java      sent                 accepted                   a failure, a new connection -> unknown
    refused   answered with None   UNEXPECTED_MEMBER          ``REFUSED_MS``, or an introduction
                                                              that matches -> unknown

A member introduces itself before it sends other requests, so it has been judged before its first
request. A Java member does not introduce itself: if there is an old log before the DLedger log, a
certificate or the operator must vouch for it.

What arrives on a connection is only a claim, because everybody can use any name. An introduction
that does not agree with the state of a member makes this one ask at the address in
``dLegerPeers``; only the answer from there changes the state. Whether a connection speaks for a
member at all is decided by :mod:`.admission`::

    without a secret                               with a secret
    ----- introduction, nonce n -------------->    ----- introduction, nonce n -------------->
    (address unknown: "is n yours?" to the         <---- introduction, nonce m, proof for n --
    member's own address, which says so)           ----- introduction, proof for m ---------->
    <---- introduction ------------------------    <---- introduction ------------------------
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final

from attrs import define, evolve, field

from rmqpy.dledger.handshake import PeerHello, compare, decode_introduction
from rmqpy.dledger.member import Membership, RaftOptions
from rmqpy.dledger.node import Send
from rmqpy.dledger.protocol.json_bodies import RESPONSE_FRAME_CODE
from rmqpy.dledger.quorum import is_quorum
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RmqError
from rmqpy.net.dledger.admission import PeerAdmission, new_nonce
from rmqpy.net.dledger.repeated_requests import RepeatedRequests
from rmqpy.net.once_log import OncePerCauseLog
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand

REFUSED_MS: Final = 10_000

_NO_HANDSHAKE: Final = (
    "it does not know the handshake of rmqpy, and rmqpyGroupSecret is set here: members of Java"
    " cannot join a group with a secret; remove rmqpyGroupSecret from every member, or replace this"
    " one"
)
_NO_SECRET: Final = (
    "it does not know the secret of the group: set the same rmqpyGroupSecret (or"
    " rmqpyGroupSecretFile) on every member"
)


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
    """The reason why the member is refused."""

    judged: bool = False
    """True if the files of the member have matched since this process started, or if it is an
    accepted Java member.
    """

    differs: bool = False
    """True if the files of the member did not match when they were last compared."""

    version: int = 0
    """The version of the handshake with which the member has introduced itself on the current
    connection to it; 0 is a Java member.
    """

    ask_again_ms: int = 0
    asking: bool = False
    nonce: str = ""
    """The random number of the handshake that is in progress."""

    confirming: str = ""
    """The nonce about which the member is being asked whether it is its own."""

    waiting: list[Send] = field(factory=list)


@define(slots=True, eq=False, repr=False)
class PeerHandshakes:
    """The handshakes of one member.

    ``introduce`` returns this member's introduction; ``vouch`` the reason why a Java member may not
    be joined, or ""; ``is_open`` whether there is a connection to an address. ``takes_batches`` is
    called with the name of each member and whether it is rmqpy; ``ended`` with each member that was
    asked; ``write`` sends an answer on a channel.
    """

    membership: Membership
    options: RaftOptions
    network: Network
    clock: Clock
    admission: PeerAdmission
    once: OncePerCauseLog
    strangers: OncePerCauseLog
    introduce: Callable[[], PeerHello]
    takes_batches: Callable[[str, bool], None]
    vouch: Callable[[str], str]
    is_open: Callable[[str], bool]
    ended: Callable[[PeerLink], None]
    write: Callable[[Channel, RemotingCommand], None]
    links: dict[str, PeerLink] = field(init=False)
    repeated: RepeatedRequests = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.repeated = RepeatedRequests(self.options, self.network, self.clock)
        self.links = {name: PeerLink(name) for name in self.membership.others}

    # -------------------------------------------------------------------------------- outgoing

    def status(self, link: PeerLink) -> PeerStatus:
        """Return the state of a member; the time of a refusal may have passed."""
        if link.standing is PeerStatus.REFUSED and self.clock.monotonic_ms() >= link.ask_again_ms:
            link.standing = PeerStatus.UNKNOWN
        return link.standing

    def may_send(self, link: PeerLink) -> bool:
        """Return whether a request may be sent to a member now. A new connection may lead to
        another process and is unknown to the member, so it begins with a handshake.
        """
        if link.standing in (PeerStatus.UNKNOWN, PeerStatus.REFUSED):
            return False
        if not self.is_open(self.options.addresses[link.name]):
            link.standing = PeerStatus.UNKNOWN
        return link.standing is not PeerStatus.UNKNOWN

    def ask(self, link: PeerLink) -> None:
        """Send a handshake to a member, unless one is in progress."""
        if link.asking:
            return
        link.asking = True
        link.nonce = new_nonce()
        hello = evolve(self.introduce(), nonce=link.nonce)
        address = self.options.addresses[link.name]
        self.repeated.send(address, _introduction(hello), partial(self._introduced, link))

    def renew(self) -> None:
        """Repeat the handshake with every verified member, because this member has new facts."""
        for link in self.links.values():
            if link.standing is PeerStatus.VERIFIED:
                link.standing = PeerStatus.UNKNOWN
                self.ask(link)

    @property
    def excluded(self) -> str:
        """The reason why this member can be part of no quorum, because too many members have other
        files; or an empty text.
        """
        reasons = [
            f"{link.name} is refused: {link.reason}" for link in self.links.values() if link.differs
        ]
        if not reasons:
            return ""
        count = len(self.links) + 1
        return "" if is_quorum(count - len(reasons), count) else "; ".join(reasons)

    def failed(self, link: PeerLink) -> None:
        """Require a handshake before the next request, because one has failed."""
        if link.standing is not PeerStatus.REFUSED:
            link.standing = PeerStatus.UNKNOWN

    def _introduced(
        self, link: PeerLink, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        """Handle the answer to the first introduction."""
        if command is not None and command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._judge_java(link)
            self._end(link)
            return
        other = self._read(link, command, fault)
        if other is None or self.admission.secret is None:
            self._judge(link, other)
            self._end(link)
            return
        proof = None
        if other.member == link.name:
            proof = self.admission.answer_to(self.introduce(), link.nonce, other)
        if proof is None:
            self._refuse(link, _NO_SECRET)
            self._end(link)
        else:
            address, timeout_ms = self.options.addresses[link.name], self.options.rpc_timeout_ms
            done = partial(self._proven, link)
            self.network.request(address, _introduction(proof), timeout_ms, done)

    def _proven(
        self, link: PeerLink, command: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        """Handle the answer to the introduction with the proof."""
        other = self._read(link, command, fault)
        if other is not None and other.nonce:  # the connection has been replaced in between
            other = None
        self._judge(link, other)
        self._end(link)

    def _end(self, link: PeerLink) -> None:
        link.asking = False
        link.nonce = ""
        self.ended(link)

    def _read(
        self, link: PeerLink, command: RemotingCommand | None, fault: RmqError | None
    ) -> PeerHello | None:
        if command is None:
            self.once.warn(("silent", link.name), "member %s: %s", link.name, fault)
            return None
        self.once.forget(("silent", link.name))
        if command.code != RESPONSE_FRAME_CODE:
            text = "member %s rejects the handshake: %s"
            self.once.warn(("handshake", link.name), text, link.name, command.remark)
            return None
        self.once.forget(("handshake", link.name))
        try:
            return decode_introduction(command.body)
        except RemoteProtocolError as problem:
            self.once.warn(("handshake", link.name), "member %s: %s", link.name, problem)
            return None

    # --------------------------------------------------------------------------------- verdicts

    def _judge(self, link: PeerLink, other: PeerHello | None) -> None:
        """Accept or refuse a member by its introduction; None changes nothing."""
        if other is None:
            return
        found = compare(self.introduce(), other)
        for note in found.notes:
            self.once.warn(("peers", link.name, note), "member %s: %s", link.name, note)
        link.differs = bool(found.refusals)
        if found.refusals:
            self._refuse(link, "; ".join(found.refusals))
        else:
            link.version = other.version
            self._verify(link)

    def _judge_java(self, link: PeerLink) -> None:
        """Accept or refuse a member that does not know the handshake."""
        missing = _NO_HANDSHAKE if self.admission.secret is not None else self.vouch(link.name)
        if missing:
            self._refuse(link, missing)
            return
        link.standing = PeerStatus.JAVA
        link.version = 0
        link.reason = ""
        link.judged = True
        self.takes_batches(link.name, False)

    def _verify(self, link: PeerLink) -> None:
        link.standing = PeerStatus.VERIFIED
        link.reason = ""
        link.judged = True
        self.takes_batches(link.name, True)

    def _refuse(self, link: PeerLink, reason: str) -> None:
        link.judged = False
        link.standing = PeerStatus.REFUSED
        link.reason = reason
        link.ask_again_ms = self.clock.monotonic_ms() + REFUSED_MS
        self.once.warn(("unfit", link.name, reason), "member %s is refused: %s", link.name, reason)

    # -------------------------------------------------------------------------------- incoming

    def accepts(self, link: PeerLink) -> bool:
        """Return whether requests of a member are accepted. Sends a handshake to a member that is
        not verified yet.
        """
        if self.status(link) is PeerStatus.REFUSED:
            return False
        if link.judged or self.introduce().divided_offset < 0:
            return True
        self.ask(link)
        return False

    def receive(self, channel: Channel, command: RemotingCommand) -> None:
        """Answer the introduction of another member."""
        try:
            other = decode_introduction(command.body)
        except RemoteProtocolError as fault:
            self._answer(channel, command, ResponseCode.SYSTEM_ERROR, str(fault))
            return
        link = self.links.get(other.member)
        if other.challenge and not other.proof:
            self._confirm_own(channel, command, other, link)
        elif self.admission.secret is not None:
            self._receive_with_secret(channel, command, other)
        elif self.admission.admits(channel):
            self._accept(channel, command, other)
        elif link is not None and other.nonce and not link.confirming:
            self._ask_whether_own(channel, command, other, link)
        elif link is None or not other.nonce or other.nonce != link.confirming:
            self.turn_away(channel, command, f"introduces itself as {other.member:.64}")

    def _receive_with_secret(
        self, channel: Channel, command: RemotingCommand, other: PeerHello
    ) -> None:
        own = self.introduce()
        if other.proof:
            if self.admission.accepts_proof(channel, own.member, other):
                self._accept(channel, command, other)
                return
        elif other.nonce and other.member in self.links:
            hello = self.admission.challenge(channel, own, other)
            self.write(channel, _hello(command, hello))
            return
        self.turn_away(channel, command, f"introduces itself as {other.member:.64}")

    def _accept(self, channel: Channel, command: RemotingCommand, other: PeerHello) -> None:
        """Answer an introduction on a connection that speaks for a member."""
        own = self.introduce()
        link = self.links.get(other.member)
        if link is not None:
            fits = not compare(own, other).refusals
            standing = self.status(link)
            if fits and standing is PeerStatus.UNKNOWN:
                link.judged = True
                self.takes_batches(link.name, True)
            if standing is not (PeerStatus.VERIFIED if fits else PeerStatus.REFUSED):
                self.ask(link)  # its own address decides
        self.write(channel, _hello(command, own))

    def _ask_whether_own(
        self, channel: Channel, command: RemotingCommand, other: PeerHello, link: PeerLink
    ) -> None:
        """Ask a member at its own address whether ``channel`` is its connection."""
        link.confirming = other.nonce

        def answered(answer: RemotingCommand | None, _fault: RmqError | None) -> None:
            link.confirming = ""
            if answer is not None and answer.code == RESPONSE_FRAME_CODE:
                self.admission.admit(channel)
                self._accept(channel, command, other)
            else:
                self.turn_away(channel, command, f"introduces itself as {link.name}")

        question = evolve(self.introduce(), challenge=other.nonce)
        self.repeated.send(self.options.addresses[link.name], _introduction(question), answered)

    def _confirm_own(
        self, channel: Channel, command: RemotingCommand, other: PeerHello, link: PeerLink | None
    ) -> None:
        """Answer the question whether a handshake that ``other`` has received is this member's."""
        if link is not None and link.nonce == other.challenge:
            self.write(channel, RemotingCommand.response_to(command, RESPONSE_FRAME_CODE))
        else:
            remark = "no handshake of this member has that nonce"
            self._answer(channel, command, ResponseCode.NO_PERMISSION, remark)

    def turn_away(self, channel: Channel, command: RemotingCommand, what: str) -> None:
        """Refuse a request on a connection that does not speak for a member."""
        self._answer(channel, command, ResponseCode.NO_PERMISSION, self.stranger(channel, what))

    def stranger(self, channel: Channel, what: str) -> str:
        """Count and log a request on a connection that does not speak for a member, and return the
        reason why it is refused.
        """
        host = channel.peer[0]
        if self.admission.secret is not None:
            reason = (
                f"{host} {what}, without the secret of the group: turned away; set the same"
                " rmqpyGroupSecret on every member (Java members have none)"
            )
        else:
            addresses = ", ".join(f"{name} {self.options.addresses[name]}" for name in self.links)
            reason = (
                f"{host} {what}, but has the address of no member ({addresses}): turned away; if it"
                " is one, correct dLegerPeers, or add the address to replicationAddresses"
            )
        self.admission.refused(reason)
        self.strangers.warn(("turned away", host), "%s", reason)
        return reason

    def _answer(
        self, channel: Channel, command: RemotingCommand, code: ResponseCode, remark: str
    ) -> None:
        self.write(channel, RemotingCommand.response_to(command, code, remark))


def _introduction(hello: PeerHello) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.RMQPY_DLEDGER_HANDSHAKE, body=hello.encode())


def _hello(command: RemotingCommand, hello: PeerHello) -> RemotingCommand:
    return RemotingCommand.response_to(command, RESPONSE_FRAME_CODE, body=hello.encode())
