"""The transfer of leadership to a member that an operator has chosen, to a preferred leader, or, if
the leader's disk is full, to any member that takes it.

The leader refuses puts, requests that the successor take over once its ledger reaches the leader's
end, and waits for the answer. The successor catches up, becomes a candidate of the next term, and
answers when it has won or another member leads. A member that must not lead, or whose disk is full,
declines, and is not asked again for ``DECLINED_REST_MS``; if all decline, the leader remains.

==================================  ============================================
state                               ends
==================================  ============================================
leader: transferee is set           the successor answers or times out, or the role is lost
successor: catching up              end reached → taking over; timeout or other leader → 418
successor: taking over              leader of that term → SUCCESS; follower → 418; later term → 403
==================================  ============================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

from rmqpy.dledger.election import Election
from rmqpy.dledger.member import Member
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    Response,
)
from rmqpy.dledger.state import NO_TERM, DiskState, Role
from rmqpy.model.ids import Term

_CODE = DLedgerResponseCode

CHECK_MS: Final = 1000
"""The period in which a leader looks for a better one."""

DECLINED_REST_MS: Final = 10_000
"""The time for which a member that has not taken over is left alone. Each attempt refuses puts."""


@define(slots=True, eq=False, repr=False)
class _Taking:
    """An ongoing transfer to this member."""

    ticket: int
    request: LeadershipTransferRequest
    deadline_ms: int
    started: bool = False


@define(slots=True, eq=False, repr=False)
class LeadershipTransfer:
    """Both ends of a transfer.

    ``lag_of`` returns the number of entries by which a follower lags, and ``stored_index`` the last
    entry that this member has written (leader only); ``live_peers`` returns the members that the
    last heartbeats have reached.
    """

    member: Member
    election: Election
    lag_of: Callable[[str], int]
    stored_index: Callable[[], int]
    live_peers: Callable[[], frozenset[str]]
    _taking: _Taking | None = None
    _next_check_ms: int = field(default=0)
    _declined_ms: dict[str, int] = field(factory=dict)
    """When each member last did not take over."""

    def role_changed(self) -> None:
        self._next_check_ms = self.member.now_ms + CHECK_MS
        self._check_taking()

    def receive(self, ticket: int, request: LeadershipTransferRequest) -> None:
        """Handle a request to hand over leadership, or to take it over."""
        own = self.member.self_id
        if request.transfer_id == own:
            code = self._refusal(request)
            if code is None:
                self._start_transfer(request.transferee_id or "", ticket)
            else:
                self._refuse(ticket, request, code)
        elif request.transferee_id == own:
            self._take(ticket, request)
        else:
            self._answer(ticket, _CODE.UNEXPECTED_ARGUMENT)

    def tick(self) -> None:
        """Check the timeouts of a successor. On a leader, also look for a better leader."""
        self._check_taking()
        member = self.member
        if member.role is not Role.LEADER or member.now_ms < self._next_check_ms:
            return
        self._next_check_ms = member.now_ms + CHECK_MS
        candidates = self._better_leaders() if member.transferee is None else []
        if candidates:
            best = min(candidates, key=self.lag_of)
            if self.lag_of(best) < member.options.transfer_wait_index:
                if member.disk is DiskState.FULL:
                    member.outbox.notices.append(
                        f"the disk is full: transferring leadership of term {member.term} to {best}"
                    )
                self._start_transfer(best, None)

    def _better_leaders(self) -> list[str]:
        """Return the members to which leadership should be transferred, in the order of
        preference.
        """
        member = self.member
        preferred = member.options.preferred_leader_ids
        if member.disk is DiskState.FULL:
            wanted = (*preferred, *member.membership.others)
        elif preferred and member.self_id not in preferred:
            wanted = preferred
        else:
            return []
        live = self.live_peers()
        return [peer for peer in wanted if peer in live and not self._has_declined(peer)]

    def _has_declined(self, peer: str) -> bool:
        """Return whether ``peer`` did not take over the last time, a short time ago."""
        declined_ms = self._declined_ms.get(peer)
        return declined_ms is not None and self.member.now_ms - declined_ms < DECLINED_REST_MS

    def _refusal(self, request: LeadershipTransferRequest) -> DLedgerResponseCode | None:
        member = self.member
        successor = request.transferee_id
        if successor not in member.membership.peers:
            return _CODE.UNKNOWN_MEMBER
        if successor == member.self_id:
            return _CODE.UNEXPECTED_ARGUMENT
        if request.term != member.term:
            return _CODE.INCONSISTENT_TERM
        if member.role is not Role.LEADER:
            return _CODE.NOT_LEADER
        if self.lag_of(successor) >= member.options.transfer_wait_index:
            return _CODE.FALL_BEHIND_TOO_MUCH
        if member.transferee is not None:
            return _CODE.LEADER_TRANSFERRING
        return None

    def _start_transfer(self, successor: str, ticket: int | None) -> None:
        member = self.member
        member.transferee = successor
        request = LeadershipTransferRequest(
            group=member.membership.group,
            remote_id=successor,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
            transfer_id=member.self_id,
            transferee_id=successor,
            take_leadership_ledger_index=self.stored_index(),
        )
        member.outbox.send(
            request,
            LeadershipTransferResponse,
            member.now_ms,
            lambda response: self._transfer_ended(request, ticket, response),
        )

    def _transfer_ended(
        self, request: LeadershipTransferRequest, ticket: int | None, response: Response | None
    ) -> None:
        member = self.member
        if member.term == request.term:
            member.transferee = None
        if response is None or response.code != _CODE.SUCCESS:
            self._declined_ms[request.transferee_id or ""] = member.now_ms
        if ticket is not None:
            if response is None:
                response = LeadershipTransferResponse(code=_CODE.NETWORK_ERROR, term=member.term)
            member.outbox.reply(ticket, response)

    def _take(self, ticket: int, request: LeadershipTransferRequest) -> None:
        member = self.member
        if request.transfer_id != member.leader_id:
            self._refuse(ticket, request, _CODE.INCONSISTENT_LEADER)
        elif request.term != member.term:
            self._answer(ticket, _CODE.INCONSISTENT_TERM)
        elif self._taking is not None:
            self._answer(ticket, _CODE.REPEATED_REQUEST)
        elif member.obstacle is not None or member.disk is DiskState.FULL:
            # The election would only depose the leader.
            self._answer(ticket, _CODE.TAKE_LEADERSHIP_FAILED)
        else:
            deadline_ms = member.now_ms + member.options.transfer_wait_ms
            self._taking = _Taking(ticket, request, deadline_ms)
            self._check_taking()

    def _check_taking(self) -> None:
        taking, member = self._taking, self.member
        if taking is None:
            return
        target = Term(taking.request.term + 1)
        if taking.started:
            self._check_taken(taking, target)
        elif member.term != taking.request.term or member.leader_id != taking.request.transfer_id:
            self._end_taking(taking, _CODE.TAKE_LEADERSHIP_FAILED)
        elif member.obstacle is not None or member.disk is DiskState.FULL:  # since it was asked
            self._end_taking(taking, _CODE.TAKE_LEADERSHIP_FAILED)
        elif member.log.end.index >= taking.request.take_leadership_ledger_index:
            taking.started = True
            taking.deadline_ms = member.now_ms + member.options.rpc_timeout_ms
            member.term_to_take = target
            member.become_candidate(target)
            # A heartbeat that arrived before the next tick would make it a follower again.
            self.election.enter_next_term()
        elif member.now_ms > taking.deadline_ms:
            self._end_taking(taking, _CODE.TAKE_LEADERSHIP_FAILED)

    def _check_taken(self, taking: _Taking, target: Term) -> None:
        member = self.member
        if member.term > target:
            self._end_taking(taking, _CODE.EXPIRED_TERM)
        elif member.term == target and member.role is Role.LEADER:
            self._end_taking(taking, _CODE.SUCCESS)
        elif member.role is Role.FOLLOWER or member.now_ms > taking.deadline_ms:
            self._end_taking(taking, _CODE.TAKE_LEADERSHIP_FAILED)

    def _end_taking(self, taking: _Taking, code: DLedgerResponseCode) -> None:
        self._taking = None
        self.member.term_to_take = NO_TERM
        self._answer(taking.ticket, code)

    def _answer(self, ticket: int, code: DLedgerResponseCode) -> None:
        response = LeadershipTransferResponse(code=code, term=self.member.term)
        self.member.outbox.reply(ticket, response)

    def _refuse(
        self, ticket: int, request: LeadershipTransferRequest, code: DLedgerResponseCode
    ) -> None:
        response = LeadershipTransferResponse(
            group=request.group,
            remote_id=request.remote_id,
            local_id=request.local_id,
            leader_id=self.member.leader_id,
            term=request.term,
            code=code,
        )
        self.member.outbox.reply(ticket, response)
