"""The leader's side of replication: a :class:`Progress` per follower, and the watermark of the
quorum.

A follower starts in COMPARE: the leader sends its last entry and steps back
(:func:`next_comparison`) until it has found the last entry that both have. Later entries of the
follower are removed (TRUNCATE), then entries are sent in order (APPEND), with up to ``push_window``
unanswered pushes. The oldest is repeated after ``push_timeout_ms``, and the success of a repeated
push repeats the next two: a window that was lost as a whole is repeated in a few round trips, and
one lost push causes few useless ones. If there is nothing to push, a COMMIT per second reports the
committed index.

=========  ======================================  =====================================
state      answer                                  next
=========  ======================================  =====================================
COMPARE    SUCCESS, and it is the follower's end   APPEND after it
COMPARE    SUCCESS, the next one is different      TRUNCATE to it
COMPARE    SUCCESS or INCONSISTENT_STATE           COMPARE of another entry
COMPARE    INCONSISTENT_STATE, nothing in common   TRUNCATE to the leader's first
TRUNCATE   SUCCESS                                 APPEND after it
TRUNCATE   INCONSISTENT_STATE                      a notice, and as for any other answer
APPEND     SUCCESS                                 APPEND; the match increases; after a repeated
                                                   push, the next two are repeated
APPEND     INCONSISTENT_STATE (to a COMMIT too)    COMPARE from the leader's end; if no entry was
                                                   matched since the last time, after ``RETRY_MS``
COMPARE,   anything else, or nothing               COMPARE of the same entry, ``RETRY_MS`` after
TRUNCATE                                           the request
APPEND     anything else, or nothing               APPEND; the oldest is repeated, the second
                                                   time without success COMPARE
=========  ======================================  =====================================

An answer counts only for the state in which its request was sent (``generation``).

Invariants: ``match < next``; ``match`` never decreases while this member leads; no entry above the
leader's own stored entries is pushed or counted. Counting commits only entries of the leader's own
term, and earlier entries together with them: a leader that lacks an entry of an older term can
still overwrite it, even if a majority has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final

from attrs import define, evolve, field

from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.member import Member
from rmqpy.dledger.outbox import OnAnswer
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    Entry,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    Response,
)
from rmqpy.dledger.quorum import quorum_index

_CODE = DLedgerResponseCode

RETRY_MS: Final = 500
"""The least time from a COMPARE or TRUNCATE that fails to the next."""

COMMIT_INTERVAL_MS: Final = 1000
ATTEMPTS: Final = 2
"""The number of pushes of one entry before the follower is compared again."""

THROTTLE_WINDOW_MS: Final = 1000
PUSH_WINDOW_BYTES: Final = 16 * 1024 * 1024
"""The maximum size of unanswered entries, which applies in addition to ``push_window``."""

REPEATS_PER_SUCCESS: Final = 2
"""The number of pushes that are repeated after a repeated one has succeeded."""

SMALL_BATCHES_MAX: Final = 2
"""The number of unanswered pushes above which only full batches are sent."""

OWN_BATCH_BYTES: Final = 512 * 1024
"""The size of a batch for a member that is known to accept it."""


class PeerState(Enum):
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


@define(slots=True, eq=False, repr=False)
class _Push:
    """An unanswered push of entries ``first`` to ``last``; ``size`` is in bytes."""

    first: int
    last: int
    size: int
    sent_ms: int
    generation: int
    attempts: int = 1


@define(slots=True, frozen=True)
class IndexRange:
    """The first and last index of a ledger; -1 and -1 if it is empty."""

    begin: int
    end: int


@define(slots=True, frozen=True)
class MatchSearch:
    """The results of the comparisons so far; -1 means unknown."""

    equal: int = -1
    """The last entry that is known to be equal."""

    different: int = -1
    """The first entry after it that is known to be different."""

    step: int = 1
    """The length of the next step back."""

    grown: bool = False
    """Whether a new end of the follower was compared: only once, or a follower could keep the
    leader comparing for ever.
    """


_FROM_END: Final = MatchSearch()


@define(slots=True, eq=False, repr=False)
class Progress:
    """The state of a follower as the leader knows it."""

    peer: str
    state: PeerState = PeerState.COMPARE
    index: int = -1
    """The entry to compare or to truncate to; -1 means the leader's last entry."""

    match: int = -1
    """The index up to which the follower's entries equal the leader's."""

    next: int = 0
    """The next entry to push in APPEND."""

    search: MatchSearch = _FROM_END
    generation: int = 0
    waiting: bool = False
    """True if a COMPARE or TRUNCATE is unanswered."""

    retry_ms: int = 0
    restart_match: int = -2
    """The match at the last return from APPEND to COMPARE."""

    pushed_ms: int = 0
    outstanding: deque[_Push] = field(factory=deque)
    """The unanswered pushes, in order."""

    outstanding_bytes: int = 0

    window_ms: int = 0
    window_bytes: int = 0

    def enter(self, state: PeerState, index: int) -> None:
        """Enter ``state`` at ``index``. Answers to earlier requests no longer count."""
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

    def restart(self, now_ms: int) -> None:
        """Compare again after an inconsistent answer, with a pause if the last comparison was in
        vain: a follower that never accepts what follows must not keep both members busy.
        """
        if self.match <= self.restart_match:
            self.retry_ms = now_ms + RETRY_MS
        self.restart_match = self.match
        self.enter(PeerState.COMPARE, -1)


def next_comparison(
    index: int, equal: bool, search: MatchSearch, leader: IndexRange, follower: IndexRange
) -> tuple[PeerState, int, MatchSearch]:
    """Return the next state, index and search after the follower's entry ``index`` was compared
    with the leader's.

    The search is for the last entry that both have. The steps back are doubled until an equal entry
    is found, then the gap to the nearest different entry is halved repeatedly: a long tail of a
    former leader costs a few comparisons instead of one per entry. If there is no common entry, the
    follower starts over with the leader's first entry. If the follower has grown since its end was
    compared, the new end is compared before anything is removed. The comparisons end, whatever a
    follower answers.
    """
    if equal:
        if index == follower.end:
            return PeerState.APPEND, index, _FROM_END
        last = min(leader.end, follower.end)
        if search.different < 0 and index < last and not search.grown:
            return PeerState.COMPARE, last, MatchSearch(equal=index, grown=True)
        if search.different <= index + 1:
            return PeerState.TRUNCATE, index, _FROM_END
        halfway = (index + search.different) // 2
        return PeerState.COMPARE, halfway, evolve(search, equal=index)
    apart = follower.end < leader.begin or follower.begin > leader.end
    floor = max(leader.begin, follower.begin)
    if apart or index < follower.begin or (index == floor and index <= follower.end):
        return PeerState.TRUNCATE, leader.begin, _FROM_END
    if index > follower.end:
        return PeerState.COMPARE, follower.end, MatchSearch(grown=search.grown)
    if search.equal >= 0:
        if index - search.equal == 1:
            return PeerState.TRUNCATE, search.equal, _FROM_END
        halfway = (search.equal + index) // 2
        return PeerState.COMPARE, halfway, evolve(search, different=index)
    back = max(floor, index - search.step)
    return PeerState.COMPARE, back, evolve(search, different=index, step=search.step * 2)


@define(slots=True, eq=False, repr=False)
class Replication:
    """The replication of one leadership: created when a member becomes leader, and ``ended`` when
    it stops leading.
    """

    member: Member
    stored_index: int
    """The last stored entry of the leader's log, up to which it may push."""

    counted_index: int
    """The last entry that counts for the quorum. It differs from ``stored_index`` only with
    ``ack_after_sync``.
    """

    peers: dict[str, Progress]
    ended: bool = False

    @classmethod
    def of(cls, member: Member, stored_index: int, counted_index: int) -> Replication:
        peers = {peer: Progress(peer, pushed_ms=member.now_ms) for peer in member.membership.others}
        return cls(member, stored_index, counted_index, peers)

    def pump(self) -> None:
        """Send all pushes that may be sent now."""
        for progress in self.peers.values():
            if progress.state is PeerState.APPEND:
                self._append(progress)
            if progress.state is not PeerState.APPEND:
                self._compare(progress)

    def count(self) -> None:
        """Commit the entries that a quorum has, if the last of them is of the current term."""
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
        """Return the number of entries by which ``peer`` lags."""
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
            if not compared and response is not None and response.code == _CODE.INCONSISTENT_STATE:
                member.outbox.notices.append(
                    f"{progress.peer} refuses to drop its entries after {index}, which are not"
                    " this leader's, and does not follow: see its log"
                )
            progress.enter(PeerState.COMPARE, index)
            progress.search = search if compared else _FROM_END
            progress.retry_ms = progress.pushed_ms + RETRY_MS
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
        outstanding = progress.outstanding
        if outstanding and now_ms - outstanding[0].sent_ms > options.push_timeout_ms:
            self._repeat_oldest(progress)
        while (
            progress.state is PeerState.APPEND
            and progress.next <= self.stored_index
            and len(outstanding) < options.push_window
            and progress.outstanding_bytes < PUSH_WINDOW_BYTES
            and not (len(outstanding) >= SMALL_BATCHES_MAX and self._worth_waiting(progress))
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
        """Return whether a small batch should wait for one of the outstanding answers.

        The batch grows meanwhile, and a small batch costs the follower as much as a large one.
        """
        if not self._batch_bytes(progress.peer):
            return False
        log = self.member.log
        if not log.has(progress.next):  # its file has expired; the follower is compared again
            return False
        waiting_bytes = log.end_offset_of(self.stored_index) - log.entry(progress.next).position
        return waiting_bytes < self._batch_bytes(progress.peer)

    def _repeat_oldest(self, progress: Progress) -> None:
        push, log = progress.outstanding[0], self.member.log
        if push.attempts >= ATTEMPTS or push.first != progress.match + 1 or not log.has(push.first):
            progress.enter(PeerState.COMPARE, -1)
            return
        self._repeat(progress, push)

    def _repeat_next(self, progress: Progress) -> None:
        """Repeat the oldest pushes that have not been repeated: what was sent with a lost push has
        probably been lost with it.
        """
        not_repeated = (push for push in progress.outstanding if push.attempts == 1)
        for push in islice(not_repeated, REPEATS_PER_SUCCESS):
            if self.member.log.has(push.first):
                self._repeat(progress, push)

    def _repeat(self, progress: Progress, push: _Push) -> None:
        push.attempts += 1
        push.sent_ms = self.member.now_ms
        entries = tuple(map(self.member.log.entry, range(push.first, push.last + 1)))
        self._push_entries(progress, push, entries)

    def _collect(self, first: int, progress: Progress) -> Sequence[Entry]:
        """Return the entries of the next push, or none if it must wait or the state has changed."""
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
        """Return the size in bytes up to which a batch grows; 0 if the member gets no batches."""
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
        then = partial(self._appended, progress, push, push.attempts)
        batch = push.last > push.first or self._batch_bytes(progress.peer) > 0
        self._push(progress, PushType.APPEND, entries, then, batch)

    def _appended(
        self, progress: Progress, push: _Push, attempt: int, response: Response | None
    ) -> None:
        if self.ended or push.generation != progress.generation:
            return
        if not isinstance(response, PushEntryResponse):
            return
        if response.code == _CODE.INCONSISTENT_STATE:
            progress.restart(self.member.now_ms)
        elif response.code == _CODE.SUCCESS and response.index is not None:
            reached = response.index + (response.count if response.count > 0 else 1) - 1
            if not push.first <= reached <= push.last:
                return
            increases = reached > progress.match
            if increases:
                progress.match = reached
            outstanding = progress.outstanding
            while outstanding and outstanding[0].last <= progress.match:
                progress.outstanding_bytes -= outstanding.popleft().size
            if increases and attempt > 1:  # else the first one was only late
                self._repeat_next(progress)
            if reached > self.member.committed_index:  # otherwise the quorum has not advanced
                self.count()

    def _committed(self, progress: Progress, generation: int, response: Response | None) -> None:
        if self.ended or generation != progress.generation or response is None:
            return
        if response.code == _CODE.INCONSISTENT_STATE:
            progress.restart(self.member.now_ms)

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
