"""The leader's side of replication: one :class:`AuditProgress` a follower, the quorum's watermark.

A follower begins in COMPARE: the leader sends its last entry and goes back
(:func:`next_comparison`) until it knows the last one that the follower has too. What the follower
has after it is cut off (TRUNCATE), then entries go out one after the other (APPEND), up to
``push_window`` of them unanswered; the oldest is repeated after ``push_timeout_ms``. With nothing
to push, a COMMIT a second carries the committed index.

=========  ======================================  =====================================
state      answer                                  next
=========  ======================================  =====================================
COMPARE    SUCCESS, and it is the follower's end   APPEND after it
COMPARE    SUCCESS, the next one is different      TRUNCATE to it
COMPARE    SUCCESS or INCONSISTENT_STATE           COMPARE of another entry
COMPARE    INCONSISTENT_STATE, nothing in common   TRUNCATE to the leader's first
TRUNCATE   SUCCESS                                 APPEND after it
APPEND     SUCCESS                                 APPEND; the match grows
APPEND     INCONSISTENT_STATE (to a COMMIT too)    COMPARE from the leader's end
COMPARE,   anything else, or nothing               COMPARE of the same entry, after
TRUNCATE                                           ``RETRY_MS``
APPEND     anything else, or nothing               APPEND; the oldest is repeated, the second
                                                   time in vain COMPARE
=========  ======================================  =====================================

An answer counts for the state in which it was asked, by ``generation``.

Invariants: ``match < next``; ``match`` never falls while this member leads; nothing above the
leader's own stored entries is pushed or counted. Only an entry of the leader's own term is
committed by counting, those before it with it: an entry of an older term on a majority can still be
overwritten by a leader that does not have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Final

from attrs import define, evolve, field

from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.member import Member
from rmqpy.dledger.messages import (
    DLedgerResponseCode,
    Entry,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    Response,
)
from rmqpy.dledger.outbox import OnAnswer
from rmqpy.dledger.quorum import quorum_index

_CODE = DLedgerResponseCode

RETRY_MS: Final = 500
"""Pause after a COMPARE or TRUNCATE that went wrong."""

COMMIT_INTERVAL_MS: Final = 1000
ATTEMPTS: Final = 2
"""Pushes of one entry before the follower is looked at again."""

THROTTLE_WINDOW_MS: Final = 1000
PUSH_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Entries that may be unanswered, in bytes: no more is pushed, whatever the window says."""

SMALL_BATCHES_MAX: Final = 2
"""Unanswered pushes, above which a batch leaves only when it is full."""

OWN_BATCH_BYTES: Final = 512 * 1024
"""Of a batch to a member that is known to take it."""


class PeerState(Enum):
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


@define(slots=True, eq=False, repr=False)
class _Push:
    """Entries ``first`` to ``last``, which are unanswered; ``size`` in bytes."""

    first: int
    last: int
    size: int
    sent_ms: int
    generation: int
    attempts: int = 1


@define(slots=True, frozen=True)
class IndexRange:
    """First and last index of a ledger; -1 and -1 when it is empty."""

    begin: int
    end: int


@define(slots=True, frozen=True)
class MatchSearch:
    """What comparing has found out so far; -1: nothing."""

    equal: int = -1
    """The last entry known to be the same on both."""

    different: int = -1
    """The first one after it known not to be."""

    step: int = 1
    """How far to go back next."""


_FROM_END: Final = MatchSearch()


@define(slots=True, eq=False, repr=False)
class Progress:
    """What the leader knows of one follower."""

    peer: str
    state: PeerState = PeerState.COMPARE
    index: int = -1
    """Entry to compare or to truncate to; -1: the leader's end."""

    match: int = -1
    """The follower has everything up to it, as the leader has."""

    next: int = 0
    """Next entry to push, in APPEND."""

    search: MatchSearch = _FROM_END
    generation: int = 0
    waiting: bool = False
    """A COMPARE or TRUNCATE is unanswered."""

    retry_ms: int = 0
    pushed_ms: int = 0
    outstanding: deque[_Push] = field(factory=deque)
    """Unanswered pushes, in order."""

    outstanding_bytes: int = 0

    window_ms: int = 0
    window_bytes: int = 0

    def enter(self, state: PeerState, index: int) -> None:
        """Begin ``state`` at ``index``; answers to what was asked before do not count any more."""
        self.state = state
        self.index = index
        self.search = _FROM_END
        self.generation += 1
        self.waiting = False
        self.outstanding.clear()
        self.outstanding_bytes = 0
        if state is PeerState.APPEND:
            self.match = max(self.match, index)
            self.next = index + 1


def next_comparison(
    index: int, equal: bool, search: MatchSearch, leader: IndexRange, follower: IndexRange
) -> tuple[PeerState, int, MatchSearch]:
    """Return where to continue, now that the follower's entry ``index`` is known to be the leader's
    or not.

    The wanted entry is the last one that both have. Steps back are doubled until an equal entry is
    found, then the gap to the last unequal one is halved: a long tail of a lost leader costs a few
    questions instead of one an entry. Without a common entry the follower begins again with the
    leader's first.
    """
    if equal:
        if index == follower.end:
            return PeerState.APPEND, index, _FROM_END
        if search.different <= index + 1:
            return PeerState.TRUNCATE, index, _FROM_END
        halfway = (index + search.different) // 2
        return PeerState.COMPARE, halfway, evolve(search, equal=index)
    apart = follower.end < leader.begin or follower.begin > leader.end
    floor = max(leader.begin, follower.begin)
    if apart or index < follower.begin or (index == floor and index <= follower.end):
        return PeerState.TRUNCATE, leader.begin, _FROM_END
    if index > follower.end:
        return PeerState.COMPARE, follower.end, _FROM_END
    if search.equal >= 0:
        if index - search.equal == 1:
            return PeerState.TRUNCATE, search.equal, _FROM_END
        halfway = (search.equal + index) // 2
        return PeerState.COMPARE, halfway, evolve(search, different=index)
    back = max(floor, index - search.step)
    return PeerState.COMPARE, back, MatchSearch(different=index, step=search.step * 2)


@define(slots=True, eq=False, repr=False)
class Replication:
    """One reign: made when a member becomes leader, ``ended`` when it is no more."""

    member: Member
    stored_index: int
    """The leader's own entries; what may be pushed."""

    counted_index: int
    """Those of them that count for the quorum: fewer only with ``ack_after_sync``."""

    peers: dict[str, Progress]
    ended: bool = False

    @classmethod
    def of(cls, member: Member, stored_index: int, counted_index: int) -> Replication:
        peers = {peer: Progress(peer, pushed_ms=member.now_ms) for peer in member.membership.others}
        return cls(member, stored_index, counted_index, peers)

    def pump(self) -> None:
        """Send whatever may be sent now."""
        for progress in self.peers.values():
            if progress.state is PeerState.APPEND:
                self._append(progress)
            if progress.state is not PeerState.APPEND:
                self._compare(progress)

    def count(self) -> None:
        """Commit what a quorum has, if its last entry is of this term."""
        member = self.member
        if not self.peers:
            if self.counted_index > member.committed_index:
                member.commit(self.counted_index)
            return
        marks = [self.counted_index, *[progress.match for progress in self.peers.values()]]
        reached = min(quorum_index(marks), self.stored_index)
        if reached <= member.committed_index:
            return
        if member.log.term_if_there(reached) == member.hard_state.current_term:
            member.commit(reached)

    def lag_of(self, peer: str) -> int:
        """Return how many entries ``peer`` is behind."""
        return self.stored_index - self.peers[peer].match

    def _compare(self, progress: Progress) -> None:
        member = self.member
        begin = member.log.begin_index
        if progress.waiting or member.now_ms < progress.retry_ms or begin < 0:
            return
        if not begin <= progress.index <= self.stored_index:
            progress.index = begin if progress.state is PeerState.TRUNCATE else self.stored_index
            progress.search = _FROM_END
        kind = PushType.TRUNCATE if progress.state is PeerState.TRUNCATE else PushType.COMPARE
        index, generation = progress.index, progress.generation
        progress.waiting = True
        self._push(
            progress,
            kind,
            (member.log.entry(index),),
            lambda response: self._compared(progress, generation, index, response),
        )

    def _compared(
        self, progress: Progress, generation: int, index: int, response: Response | None
    ) -> None:
        if self.ended or generation != progress.generation:
            return
        progress.waiting = False
        member = self.member
        success = response is not None and response.code == _CODE.SUCCESS
        compared = progress.state is PeerState.COMPARE
        if not isinstance(response, PushEntryResponse) or not (
            success or (compared and response.code == _CODE.INCONSISTENT_STATE)
        ):
            search = progress.search
            progress.enter(PeerState.COMPARE, index)
            progress.search = search if compared else _FROM_END
            progress.retry_ms = member.now_ms + RETRY_MS
        elif compared:
            leader = IndexRange(member.log.begin_index, self.stored_index)
            follower = IndexRange(response.begin_index, response.end_index)
            state, index, search = next_comparison(
                index, success, progress.search, leader, follower
            )
            progress.enter(state, index)
            progress.search = search
        else:
            progress.enter(PeerState.APPEND, index)
        self.count()

    def _append(self, progress: Progress) -> None:
        options, now_ms = self.member.options, self.member.now_ms
        under_way = progress.outstanding
        if under_way and now_ms - under_way[0].sent_ms > options.push_timeout_ms:
            self._repeat_oldest(progress)
        while (
            progress.state is PeerState.APPEND
            and progress.next <= self.stored_index
            and len(under_way) < options.push_window
            and progress.outstanding_bytes < PUSH_WINDOW_BYTES
            and not (len(under_way) >= SMALL_BATCHES_MAX and self._worth_waiting(progress))
        ):
            entries = self._collect(progress.next, progress)
            if isinstance(entries, EntryRun):
                count, size = entries.span.count, entries.span.size
            else:
                count, size = len(entries), sum([entry.size for entry in entries])
            if not count:
                return
            first = progress.next
            progress.next += count
            push = _Push(first, first + count - 1, size, now_ms, progress.generation)
            progress.outstanding.append(push)
            progress.outstanding_bytes += size
            progress.window_bytes += size
            self._push_entries(progress, push, entries)
        if (
            progress.state is PeerState.APPEND
            and progress.next > self.stored_index
            and now_ms - progress.pushed_ms > COMMIT_INTERVAL_MS
        ):
            generation = progress.generation
            self._push(
                progress,
                PushType.COMMIT,
                (),
                lambda response: self._committed(progress, generation, response),
            )

    def _worth_waiting(self, progress: Progress) -> bool:
        """Return whether a small batch had better wait for an answer of the many that are under
        way: it grows meanwhile, and each costs the follower as much as a large one.
        """
        if not self._batch_bytes(progress.peer):
            return False
        log = self.member.log
        if not log.has(progress.next):  # its file has gone: compared again
            return False
        waiting_bytes = log.end_offset_of(self.stored_index) - log.entry(progress.next).position
        return waiting_bytes < self._batch_bytes(progress.peer)

    def _repeat_oldest(self, progress: Progress) -> None:
        push, log = progress.outstanding[0], self.member.log
        if push.attempts >= ATTEMPTS or push.first != progress.match + 1 or not log.has(push.first):
            progress.enter(PeerState.COMPARE, -1)
            return
        push.attempts += 1
        push.sent_ms = self.member.now_ms
        entries = tuple(map(log.entry, range(push.first, push.last + 1)))
        self._push_entries(progress, push, entries)

    def _collect(self, first: int, progress: Progress) -> Sequence[Entry]:
        """Return the entries of the next push; none when it must wait or the state has changed."""
        member = self.member
        if first < member.log.begin_index:
            progress.enter(PeerState.COMPARE, -1)
            return ()
        lags = self.stored_index - first > member.options.push_window
        if lags and self._throttled(progress, first):
            return ()
        batch_bytes = self._batch_bytes(progress.peer)
        if not batch_bytes:
            return (member.log.entry(first),)
        return member.log.batch(first, self.stored_index, batch_bytes)

    def _batch_bytes(self, peer: str) -> int:
        """A batch continues growing below this."""
        if peer in self.member.batching:
            return OWN_BATCH_BYTES
        return self.member.options.batch_push_bytes if self.member.options.batch_push else 0

    def _throttled(self, progress: Progress, first: int) -> bool:
        member, options = self.member, self.member.options
        behind_bytes = member.log.end_offset - member.log.entry(first).position
        if behind_bytes < options.throttle_point_bytes:
            return False
        if member.now_ms - progress.window_ms >= THROTTLE_WINDOW_MS:
            progress.window_ms, progress.window_bytes = member.now_ms, 0
        return progress.window_bytes >= options.push_quota_bytes

    def _push_entries(self, progress: Progress, push: _Push, entries: Sequence[Entry]) -> None:
        then = partial(self._appended, progress, push)
        batch = push.last > push.first or self._batch_bytes(progress.peer) > 0
        self._push(progress, PushType.APPEND, entries, then, batch)

    def _appended(self, progress: Progress, push: _Push, response: Response | None) -> None:
        if self.ended or push.generation != progress.generation:
            return
        if not isinstance(response, PushEntryResponse):
            return
        if response.code == _CODE.INCONSISTENT_STATE:
            progress.enter(PeerState.COMPARE, -1)
        elif response.code == _CODE.SUCCESS and response.index is not None:
            reached = response.index + (response.count if response.count > 0 else 1) - 1
            if not push.first <= reached <= push.last:
                return
            if reached > progress.match:
                progress.match = reached
            outstanding = progress.outstanding
            while outstanding and outstanding[0].last <= progress.match:
                progress.outstanding_bytes -= outstanding.popleft().size
            if reached > self.member.committed_index:  # else no quorum has more than before
                self.count()

    def _committed(self, progress: Progress, generation: int, response: Response | None) -> None:
        if self.ended or generation != progress.generation or response is None:
            return
        if response.code == _CODE.INCONSISTENT_STATE:
            progress.enter(PeerState.COMPARE, -1)

    def _push(
        self,
        progress: Progress,
        kind: PushType,
        entries: Sequence[Entry],
        then: OnAnswer,
        batch: bool = False,
    ) -> None:
        member = self.member
        progress.pushed_ms = member.now_ms
        self_id = member.membership.self_id
        request = PushEntryRequest(
            group=member.membership.group,
            remote_id=progress.peer,
            local_id=self_id,
            leader_id=self_id,
            term=member.hard_state.current_term,
            type=kind,
            commit_index=member.committed_index,
            entries=entries,
            batch=batch,
        )
        member.outbox.send(request, PushEntryResponse, member.now_ms, then)
