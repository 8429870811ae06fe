"""The transfer of the leadership of a DLedger group, of rmqpy or of Java.

The request goes to the leader's port for its peers, which checks no accounts. The settings of a
broker, which only administrators read, say where that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.config.keys import DLedgerPeer, parse_dledger_peers
from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MetadataRequest,
    Request,
    Response,
)
from rmqpy.model.errors import RemoteProtocolError, RmqError
from rmqpy.model.ids import Term
from rmqpy.model.near_names import did_you_mean

__all__ = ["GroupPeers", "Transferred", "peers_of", "transfer_leadership"]

TRANSFER_MS: Final = 15_000
"""The answer comes when the successor has won, or given up."""


@define(slots=True, frozen=True, kw_only=True)
class GroupPeers:
    """The DLedger group of a broker as its settings name it."""

    group: str
    peers: Sequence[DLedgerPeer]

    def address(self, member: str) -> str:
        """Return the address of a member. Raise RmqError if it is none."""
        for each in self.peers:
            if each.peer_id == member:
                return each.address
        known = [each.peer_id for each in self.peers]
        raise RmqError(
            f"found {member!r}, expected a member of the group {self.group}: {', '.join(known)}"
            f"{did_you_mean(member, known)}"
        )


@define(slots=True, frozen=True, kw_only=True)
class Transferred:
    """Leadership has moved from ``leader``, which led in ``term``, to ``successor``."""

    group: str
    leader: str
    term: int
    successor: str


def peers_of(settings: Mapping[str, str], address: str) -> GroupPeers:
    """Return the group in a broker's settings. Raise RmqError if it is no member of one."""
    text = settings.get("dLegerPeers", "")
    if settings.get("enableDLegerCommitLog") != "true" or not text:
        raise RmqError(f"found {address}, expected a member of a DLedger group; give one")
    try:
        peers = parse_dledger_peers(text)
    except ValueError as error:
        raise RemoteProtocolError(f"{address}: dLegerPeers {text!r}: {error}") from None
    if len(peers) < 2:
        raise RmqError(f"{address}: found a group of one member, expected others that can lead")
    return GroupPeers(group=settings.get("dLegerGroup", ""), peers=peers)


async def transfer_leadership(admin: Admin, address: str, successor: str) -> Transferred:
    """Let the leader of the group of the broker at ``address`` hand over to ``successor``.

    Return when the successor leads. Raise RmqError if it does not, or if no leader is known.
    """
    group = peers_of(await admin.broker_config(address), address)
    group.address(successor)
    leader, term = await _leader(admin, group)
    if leader == successor:
        raise RmqError(f"found {successor}, which leads already, expected another member")
    request = LeadershipTransferRequest(
        group=group.group,
        remote_id=leader,
        local_id=leader,
        leader_id=leader,
        term=term,
        transfer_id=leader,
        transferee_id=successor,
    )
    answer = await _ask(admin, group.address(leader), request)
    if answer.code != DLedgerResponseCode.SUCCESS:
        raise RmqError(f"{leader} did not hand over to {successor}: {_reason(answer)}")
    return Transferred(group=group.group, leader=leader, term=term, successor=successor)


async def _leader(admin: Admin, group: GroupPeers) -> tuple[str, Term]:
    """Return the leader of the largest term that a member knows, and the term.

    METADATA names no term. A heartbeat of term -1 changes nothing, and the answer has the term.
    """
    found: list[tuple[Term, str]] = []
    for peer in group.peers:
        other = next(each.peer_id for each in group.peers if each is not peer)
        beat = HeartBeatRequest(group=group.group, remote_id=peer.peer_id, leader_id=other)
        metadata = MetadataRequest(group=group.group, remote_id=peer.peer_id)
        try:
            leader = (await _ask(admin, peer.address, metadata)).leader_id
            term = (await _ask(admin, peer.address, beat)).term
        except RmqError:
            continue
        if leader:
            found.append((term, leader))
    if not found:
        raise RmqError(
            f"found no leader of the group {group.group}, expected one; rmqpy admin elections shows"
            " why"
        )
    term, leader = max(found)
    return leader, term


async def _ask(admin: Admin, address: str, request: Request) -> Response:
    answer = await admin.instance.invoke(
        address, request.CODE, body=encode(request), timeout_ms=TRANSFER_MS
    )
    return decode_response(type(request), answer.body)


_REASONS: Final[Mapping[int, str]] = {
    DLedgerResponseCode.FALL_BEHIND_TOO_MUCH: "its log is too far behind; wait until it has caught"
    " up",
    DLedgerResponseCode.LEADER_TRANSFERRING: "another transfer is under way; repeat later",
    DLedgerResponseCode.NOT_LEADER: "it leads no longer; repeat",
    DLedgerResponseCode.INCONSISTENT_TERM: "there was an election in the meantime; repeat",
    DLedgerResponseCode.NETWORK_ERROR: "it does not answer",
}


def _reason(answer: Response) -> str:
    known = _REASONS.get(answer.code)
    return known if known is not None else f"code {answer.code}"
