"""The requests of DLedger's own clients: METADATA, GET and APPEND.

A member that does not lead answers GET and APPEND with NOT_LEADER and the leader's id. While it
knows no leader, other members may get entries from it: perhaps none of them may lead before it has
repaired a damaged entry.

An accepted append is passed to the owner of the log (``Ready.appends``), because the core owns no
bytes and in the group of a broker only message records may become entries.
"""

from __future__ import annotations

from rmqpy.codec.layout import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX
from rmqpy.dledger.member import Member
from rmqpy.dledger.outbox import ClientAppend
from rmqpy.dledger.proposals import ProposalRejected
from rmqpy.dledger.protocol.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    DLedgerResponseCode,
    GetEntriesRequest,
    GetEntriesResponse,
    MetadataRequest,
    MetadataResponse,
)
from rmqpy.dledger.state import Role

_CODE = DLedgerResponseCode


def metadata(member: Member, request: MetadataRequest) -> MetadataResponse:
    """Return the members of the group and its leader."""
    return MetadataResponse(
        group=request.group, leader_id=member.leader_id, peers=member.options.addresses
    )


def get_entry(member: Member, request: GetEntriesRequest) -> GetEntriesResponse:
    """Return the entry at ``begin_index`` if this member leads or repairs another one. Only a
    member gets an entry that is not known to be committed: it accepts none but the one that it had,
    and index and term determine an entry in all logs, committed or not.
    """
    index = request.begin_index
    is_member = request.local_id in member.membership.others
    last = member.log.end.index if is_member else member.committed_index
    repairs = is_member and member.leader_id is None
    if member.role is not Role.LEADER and not repairs:
        code = _CODE.NOT_LEADER
    elif index is None:
        code = _CODE.UNEXPECTED_ARGUMENT
    elif member.log.begin_index < 0 or index > last:
        code = _CODE.INDEX_OUT_OF_RANGE
    elif index < member.log.begin_index:
        code = _CODE.INDEX_LESS_THAN_LOCAL_BEGIN
    else:
        return GetEntriesResponse(group=request.group, entries=(member.log.entry(index),))
    return GetEntriesResponse(
        group=request.group,
        remote_id=request.remote_id,
        local_id=request.local_id,
        leader_id=member.leader_id,
        term=request.term,
        code=code,
    )


def refuse_append(
    member: Member, request: AppendEntryRequest, code: DLedgerResponseCode
) -> AppendEntryResponse:
    """Return the refusal of an append, with the id of the leader."""
    return AppendEntryResponse(
        group=request.group,
        remote_id=request.remote_id,
        local_id=request.local_id,
        leader_id=member.leader_id,
        term=request.term,
        code=code,
    )


def accept_append(
    member: Member, ticket: int, request: AppendEntryRequest, refused: ProposalRejected | None
) -> None:
    """Pass an append to the owner of the log, or refuse it."""
    code: DLedgerResponseCode | None = None
    if refused is not None:
        code = DLedgerResponseCode(refused.value)
    elif not request.bodies or not all(request.bodies):
        code = _CODE.REQUEST_WITH_EMPTY_BODYS
    elif max(map(len, request.bodies)) + ENTRY_HEADER_SIZE > ENTRY_SIZE_MAX:
        code = _CODE.UNEXPECTED_ARGUMENT
    if code is not None:
        member.outbox.reply(ticket, refuse_append(member, request, code))
    else:
        member.outbox.appends.append(ClientAppend(ticket, request.bodies))
