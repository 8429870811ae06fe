"""Heartbeats, by which a leader keeps its role and followers detect its loss.

=====================================  ============================================
answers of a beat, first match         leader
=====================================  ============================================
a quorum answers SUCCESS               keeps its role; the time of the beat is recorded
a quorum including other terms         sends the next beat immediately
EXPIRED_TERM with a larger term        becomes a candidate of that term
INCONSISTENT_LEADER                    becomes a candidate
no quorum for the leak time            becomes a candidate
=====================================  ============================================

A member whose term is larger than that of a healthy leader cannot follow it, and its log may be too
short to be elected. If it reports its term in ``max_heartbeat_leak`` consecutive beats, the leader
steps down: a short election brings the member back, which would otherwise be lost to the group.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.dledger.election import Election
from rmqpy.dledger.member import Member
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    Response,
)
from rmqpy.dledger.quorum import is_quorum
from rmqpy.dledger.state import Role
from rmqpy.model.ids import Term

_CODE = DLedgerResponseCode
_NEVER: Final = -(1 << 62)


@define(slots=True, eq=False, repr=False)
class _Beat:
    sent_ms: int
    open_count: int
    success: int = 1
    not_ready: int = 0
    max_term: Term = Term(-1)  # noqa: RUF009 (a NewType)
    other_leader: bool = False


@define(slots=True, eq=False, repr=False)
class Heartbeat:
    """The leader's heartbeats and the follower's timeout."""

    member: Member
    election: Election
    heard_ms: int = 0
    """The time of the last heartbeat received from the leader (follower only)."""

    peers_live: dict[str, bool] = field(factory=dict)
    _beat: _Beat | None = None
    _next_beat_ms: int = _NEVER
    _confirmed_ms: int = 0
    _ahead: dict[str, int] = field(factory=dict)
    """The number of consecutive beats that each member has answered with a larger term."""

    def role_changed(self) -> None:
        self._beat = None
        self._next_beat_ms = _NEVER
        self._ahead.clear()
        self.heard_ms = self._confirmed_ms = self.member.now_ms
        if self.member.role is Role.LEADER:
            self.peers_live.clear()

    def answer(self, request: HeartBeatRequest) -> HeartBeatResponse:
        """Return the answer to a leader's heartbeat."""
        member = self.member
        leader = request.leader_id or ""
        if leader not in member.membership.peers:
            return HeartBeatResponse(code=_CODE.UNKNOWN_MEMBER)
        if leader == member.self_id:
            return HeartBeatResponse(code=_CODE.UNEXPECTED_MEMBER)
        if request.term < member.term:
            return HeartBeatResponse(code=_CODE.EXPIRED_TERM, term=member.term)
        if request.term > member.term:
            self.election.terms.seen(leader, request.term)
            return HeartBeatResponse(code=_CODE.TERM_NOT_READY)
        if member.leader_id is None:
            member.become_follower(leader)
        elif member.leader_id != leader:
            return HeartBeatResponse(code=_CODE.INCONSISTENT_LEADER)
        self.heard_ms = member.now_ms
        return HeartBeatResponse()

    def follower_tick(self) -> None:
        """Become a candidate if the leader has been silent for too long."""
        silent_ms = self.member.now_ms - self.heard_ms
        if silent_ms > self._patience_ms:
            self.member.outbox.notices.append(
                f"{self.member.leader_id}, the leader of term {self.member.term}, has been silent"
                f" for {silent_ms} ms: starting an election"
            )
            self.member.become_candidate(self.member.term)
            self.election.on_leader_timeout()

    def leader_tick(self) -> None:
        """Send a heartbeat when it is due, and evaluate one whose interval has passed."""
        if self.member.alone:
            return
        now_ms = self.member.now_ms
        interval_ms = self.member.options.heartbeat_interval_ms
        if self._beat is not None and now_ms - self._beat.sent_ms >= interval_ms:
            self._close()
        if self.member.role is Role.LEADER and self._beat is None and now_ms >= self._next_beat_ms:
            self._send()

    @property
    def _patience_ms(self) -> int:
        options = self.member.options
        return options.heartbeat_interval_ms * options.max_heartbeat_leak

    def _send(self) -> None:
        member = self.member
        others = member.membership.others
        beat = self._beat = _Beat(member.now_ms, len(others))
        self._next_beat_ms = member.now_ms + member.options.heartbeat_interval_ms
        for peer in others:
            request = HeartBeatRequest(
                group=member.membership.group,
                remote_id=peer,
                local_id=member.self_id,
                leader_id=member.self_id,
                term=member.term,
            )
            member.outbox.send(
                request,
                HeartBeatResponse,
                member.now_ms,
                partial(self._answered, beat, peer),
            )

    def _answered(self, beat: _Beat, peer: str, response: Response | None) -> None:
        if self.member.role is not Role.LEADER:
            return
        self.peers_live[peer] = response is not None and response.code != _CODE.NETWORK_ERROR
        if beat is not self._beat:
            return
        beat.open_count -= 1
        if response is not None:
            self._count(beat, peer, response)
        quorum = len(self.member.membership.peers)
        if beat.open_count == 0 or is_quorum(beat.success + beat.not_ready, quorum):
            self._judge_early(beat, quorum)

    def _count(self, beat: _Beat, peer: str, response: Response) -> None:
        if response.code == _CODE.EXPIRED_TERM and response.term > self.member.term:
            beat.max_term = max(beat.max_term, response.term)
            self._ahead[peer] = self._ahead.get(peer, 0) + 1
            return
        self._ahead.pop(peer, None)
        if response.code == _CODE.SUCCESS:
            beat.success += 1
        elif response.code == _CODE.TERM_NOT_READY:
            beat.not_ready += 1
        elif response.code == _CODE.INCONSISTENT_LEADER:
            beat.other_leader = True

    def _judge_early(self, beat: _Beat, member_count: int) -> None:
        if is_quorum(beat.success, member_count):
            self._confirmed_ms = max(self._confirmed_ms, beat.sent_ms)
        if beat.open_count == 0 or not is_quorum(beat.success, member_count):
            self._close()

    def _close(self) -> None:
        beat, self._beat = self._beat, None
        assert beat is not None
        member = self.member
        count = len(member.membership.peers)
        if is_quorum(beat.success, count):
            self._confirmed_ms = max(self._confirmed_ms, beat.sent_ms)
            if any(beats >= member.options.max_heartbeat_leak for beats in self._ahead.values()):
                member.outbox.notices.append(
                    f"stepping down as leader of term {member.term}: a member is in term"
                    f" {beat.max_term}"
                )
                member.become_candidate(max(beat.max_term, member.term))
        elif is_quorum(beat.success + beat.not_ready, count):
            self._next_beat_ms = member.now_ms
        elif beat.max_term > member.term:
            member.become_candidate(beat.max_term)
        elif beat.other_leader:
            member.become_candidate(member.term)
        elif member.now_ms - self._confirmed_ms > self._patience_ms:
            member.outbox.notices.append(
                f"stepping down as leader of term {member.term}: no quorum answers"
            )
            member.become_candidate(member.term)
