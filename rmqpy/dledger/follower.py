"""The follower's side of replication: pushes are checked, ordered, stored and answered.

=========  ==============================================  =========================================
push       condition                                       answer
=========  ==============================================  =========================================
any        not a follower                                  NOT_FOLLOWER
APPEND,    another term or leader than ours                INCONSISTENT_STATE
COMMIT
COMPARE,   the same                                        INCONSISTENT_TERM, INCONSISTENT_LEADER:
TRUNCATE                                                   nothing has been compared
any        the disk is full or has failed (not COMMIT)     DISK_FULL, DISK_ERROR
COMPARE    our log has the entry / does not have it        SUCCESS / INCONSISTENT_STATE
TRUNCATE   it would drop or replace committed entries,     INCONSISTENT_STATE, and a notice: this
           or ours and the leader's of one term differ     member has diverged (``divergence``)
TRUNCATE   otherwise                                       SUCCESS; the entry is now the last,
                                                           except for entries after it that are
                                                           known to be the leader's
COMMIT                                                     SUCCESS; INCONSISTENT_STATE if our tail
                                                           has not been compared with the leader's
APPEND     already held                                    REPEATED_PUSH
APPEND     after a gap                                     none until the gap is filled;
                                                           INCONSISTENT_STATE after ``GAP_WAIT_MS``
APPEND     our log has it / has another one                SUCCESS / INCONSISTENT_STATE
APPEND     index, term, position or size do not fit, or    INCONSISTENT_STATE, nothing is written
           our tail has not been compared
=========  ==============================================  =========================================

Up to ``matched_index`` the follower's entries equal the leader's. An entry of the leader's own term
proves this for all entries before it; otherwise a COMPARE, TRUNCATE or APPEND of this term proves
it. The follower appends and commits only up to that index, because the wire format does not contain
the term of the preceding entry.

An entry of the leader's own term proves nothing if that term had two leaders, which happens if a
member forgets its vote: it was restored from a backup, or is a Java member after a loss of power.
A push therefore commits no entry after its own last one, and an entry that differs from the
leader's although both have the same index and term ends the proof: the member has diverged, and
keeps its entries, which may have been acknowledged.

Invariants: no committed entry is dropped, except that all are dropped for a leader whose log begins
after ours. A push is answered with SUCCESS only after its entries are in ``Ready.entries`` (with
``ack_after_sync``, after they are synced).
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from rmqpy.codec.layout import ENTRY_FILLER_SIZE
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.entry_log import frame
from rmqpy.dledger.member import Member
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    Entry,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
)
from rmqpy.dledger.state import NO_TERM, DiskState, PushGrant, Role
from rmqpy.model.ids import Term

_CODE = DLedgerResponseCode

GAP_WAIT_MS: Final = 1000
"""The time that a push waits for its predecessors, after which the leader must compare again."""

GAP_CHECK_MS: Final = 1000
HELD_MAX: Final = 2048
"""The maximum number of pushes held because of a gap. A leader has at most a thousand in flight."""


@define(slots=True, frozen=True)
class _HeldPush:
    ticket: int
    request: PushEntryRequest
    arrived_ms: int


@define(slots=True, eq=False, repr=False)
class Follower:
    """The handler of pushes to a member in any role."""

    member: Member
    synced_index: int
    """The last index that is known to be durable; only used with ``ack_after_sync``."""

    divergence: str | None = None
    """The reason why this member cannot follow its leader: it knows entries to be committed that
    the leader does not have, which a power failure of the others may cause, or both have different
    entries of one term.
    """

    _contradiction: str | None = None
    """The reason why this member and its leader cannot both be right about an entry."""

    _matched: int = -1
    _matched_term: Term = NO_TERM
    _held: dict[int, _HeldPush] = field(factory=dict)
    """Pushes held because of a gap, by their first index."""

    _unsynced: list[tuple[int, _HeldPush]] = field(factory=list)
    """The answers that wait for the sync of an index."""

    _next_check_ms: int = 0

    @property
    def matched_index(self) -> int:
        end = self.member.log.end
        if end.index < 0 or (end.term == self.member.term and self._contradiction is None):
            return end.index
        return min(self._matched, end.index) if self._matched_term == self.member.term else -1

    def role_changed(self) -> None:
        """Answer all held pushes, because the member now follows another leader or none."""
        self.divergence = self._contradiction = None
        for held in self._held.values():
            self._answer(held, _CODE.NOT_FOLLOWER)
        for _, held in self._unsynced:
            self._answer(held, _CODE.NOT_FOLLOWER)
        self._held.clear()
        self._unsynced.clear()

    def receive(self, ticket: int, request: PushEntryRequest) -> None:
        """Handle one push of a leader."""
        member = self.member
        held = _HeldPush(ticket, request, member.now_ms)
        if member.role is not Role.FOLLOWER:
            self._answer(held, _CODE.NOT_FOLLOWER)
        elif request.term != member.term or request.leader_id != member.leader_id:
            self._answer(held, self._stranger_code(request))
        elif request.type is PushType.COMMIT:
            self._commit(held)
        elif member.disk in (DiskState.FULL, DiskState.FAILED):
            full = member.disk is DiskState.FULL
            self._answer(held, _CODE.DISK_FULL if full else _CODE.DISK_ERROR)
        elif request.type is PushType.APPEND:
            self._hold(held)
        else:
            for waiting in self._held.values():
                member.outbox.reply(waiting.ticket, None)
            self._held.clear()
            compare = request.type is PushType.COMPARE
            self._settle(held, self._compare(request) if compare else self._truncate(request))

    def grant(self) -> PushGrant | None:
        """Return the pushes that the log may accept without a decision until the next event of this
        member, or None if :meth:`receive` must decide about each push.

        The caller reports each accepted push to :meth:`on_appended`.
        """
        member, log = self.member, self.member.log
        if (
            member.role is not Role.FOLLOWER
            or member.leader_id is None
            or member.disk is not DiskState.GOOD
            or member.options.ack_after_sync
            or self._held
            or log.changed
            or log.begin_index < 0
            or self.matched_index != log.end.index
        ):
            return None
        group, self_id = member.membership.group, member.self_id
        return PushGrant(group, self_id, member.leader_id, member.term)

    def on_appended(self, last_index: int, commit_index: int) -> None:
        """Record a granted push; the log now ends at ``last_index``."""
        member = self.member
        self._matched, self._matched_term = last_index, member.hard_state.current_term
        if commit_index > member.committed_index:
            member.commit(commit_index if commit_index < last_index else last_index)

    def _stranger_code(self, request: PushEntryRequest) -> DLedgerResponseCode:
        """Return the code for a push of another leader.

        It is not INCONSISTENT_STATE for COMPARE, which would mean that the entries differ: the
        leader would later truncate entries that were never compared.
        """
        if request.type in (PushType.APPEND, PushType.COMMIT):
            return _CODE.INCONSISTENT_STATE
        same_term = request.term == self.member.term
        return _CODE.INCONSISTENT_LEADER if same_term else _CODE.INCONSISTENT_TERM

    def synced(self, index: int) -> None:
        """Record that entries up to ``index`` are durable."""
        self.synced_index = index
        done = [held for last, held in self._unsynced if last <= index]
        self._unsynced = [waiting for waiting in self._unsynced if waiting[0] > index]
        for held in done:
            self._answer(held, _CODE.SUCCESS)

    def tick(self) -> None:
        """Refuse the first push whose gap has not been filled in time."""
        member = self.member
        if member.now_ms < self._next_check_ms or not self._held:
            return
        self._next_check_ms = member.now_ms + GAP_CHECK_MS
        self._drain()
        late = [
            first
            for first, held in self._held.items()
            if member.now_ms - held.arrived_ms > GAP_WAIT_MS
        ]
        if late:
            self._answer(self._held.pop(min(late)), _CODE.INCONSISTENT_STATE)

    def _hold(self, held: _HeldPush) -> None:
        first = held.request.first_index
        if self._held and first in self._held:
            self._answer(held, _CODE.REPEATED_PUSH)
        elif first > self.member.log.end.index + 1:
            if len(self._held) >= HELD_MAX:
                self._answer(held, _CODE.PUSH_REQUEST_IS_FULL)
            else:
                self._held[first] = held
        else:
            self._settle(held, self._append(held.request))
            if self._held:
                self._drain()

    def _drain(self) -> None:
        """Handle the held pushes that the log has reached."""
        while self._held:
            end = self.member.log.end.index
            ready = end + 1 if end + 1 in self._held else min(self._held)
            if ready > end + 1:
                return
            held = self._held.pop(ready)
            self._settle(held, self._append(held.request))

    def _append(self, request: PushEntryRequest) -> bool:
        log = self.member.log
        end_index = log.end.index
        new = request.entries
        if new[0].index <= end_index:
            old = new[: end_index - new[0].index + 1]
            if not all(map(self._equal, old)):
                return False
            self._match(old[-1].index)
            new = new[len(old) :]
        if new and self.matched_index != end_index:
            return False
        if isinstance(new, EntryRun) and self._run_fits(new, request.term):
            log.append(new)
            self._matched, self._matched_term = new.last_index, self.member.term
            new = ()
        for entry in new:
            if not self._fits(entry, request.term):
                return False
            log.append(entry)
            # This entry and all before it equal the leader's.
            self._matched, self._matched_term = entry.index, self.member.term
        if request.commit_index > self.member.committed_index:
            self._apply_commit(request.commit_index, request.last_index)
        return True

    def _compare(self, request: PushEntryRequest) -> bool:
        entry = request.entries[0]
        if not self._equal(entry):
            return False
        self._match(entry.index)
        self._apply_commit(request.commit_index, entry.index)
        return True

    def _truncate(self, request: PushEntryRequest) -> bool:
        member, entry = self.member, request.entries[0]
        log = member.log
        equal = self._equal(entry)
        if self._contradiction is not None:
            self._diverge(self._contradiction)
            return False
        # A late push may have arrived since the leader compared. Entries that are certainly the
        # leader's are kept, because it may have counted their acknowledgement.
        kept = max(entry.index if equal else entry.index - 1, self.matched_index)
        if member.committed_index > kept:
            self._diverge(
                f"this member knows the entries up to {member.committed_index} to be committed, and"
                f" the leader has no or other entries after {kept}"
            )
            return False
        if equal:
            log.truncate_after(kept)
        elif kept >= entry.index:
            member.outbox.notices.append(
                f"refused to replace entry {entry.index} for {member.leader_id}, the leader of"
                f" term {member.term}, which has sent the entry itself"
            )
            return False
        elif self._replace_tail(entry, request.term):
            kept = entry.index - 1
        else:
            return False
        self._forget_synced(kept)
        self._match(entry.index)
        self._apply_commit(request.commit_index, entry.index)
        return True

    def _diverge(self, reason: str) -> None:
        """Keep the entries that the leader does not have, and report the reason."""
        member = self.member
        self.divergence = (
            f"diverged from {member.leader_id}, the leader of term {member.term}: {reason}. It"
            " keeps its entries and follows no further. Save its directory if these messages"
            " matter, then let it join again with the data of another member (rmqpy upgrade join)"
        )
        member.outbox.notices.append(self.divergence)

    def _forget_synced(self, kept: int) -> None:
        """Drop the sync state of entries after ``kept``, and the answers that wait for it."""
        self.synced_index = min(self.synced_index, kept)
        for last, held in self._unsynced:
            if last > kept:
                self.member.outbox.reply(held.ticket, None)
        self._unsynced = [waiting for waiting in self._unsynced if waiting[0] <= kept]

    def _replace_tail(self, entry: Entry, term: Term) -> bool:
        """Make ``entry`` the last entry, either after a prefix that is certainly the leader's, or
        as the first entry of a new log. Return False if it does not fit.
        """
        member = self.member
        log = member.log
        before = entry.index - 1
        certain = max(member.committed_index, self.matched_index)
        if entry.term > term or entry.size + ENTRY_FILLER_SIZE > log.file_size:
            return False
        if log.has(before) and before <= certain:
            offset = frame(log.end_offset_of(before), entry.size, log.file_size)
            if offset == entry.position:
                if entry.term < log.term_of(before):
                    return False
                log.truncate_after(before)
                log.append(entry)
                return True
        if log.end.index < 0 and entry.index == 0 and entry.position == log.end_offset:
            log.append(entry)
            return True
        if entry.position % log.file_size:
            member.outbox.notices.append(
                f"refused to start over at {entry.position}, where the log of the leader"
                f" {member.leader_id} begins: it is not the start of a file of {log.file_size}"
                " bytes; set the same mappedFileSizeCommitLog for all members"
            )
            return False
        log.reset(entry)
        return True

    def _commit(self, held: _HeldPush) -> None:
        if self.matched_index == self.member.log.end.index:
            self._apply_commit(held.request.commit_index, self.matched_index)
            self._answer(held, _CODE.SUCCESS)
        else:
            self._answer(held, _CODE.INCONSISTENT_STATE)

    def _fits(self, entry: Entry, term: Term) -> bool:
        """Return whether ``entry`` may follow the last entry."""
        log = self.member.log
        end = log.end
        return (
            entry.index == end.index + 1
            and end.term <= entry.term <= term
            and entry.size + ENTRY_FILLER_SIZE <= log.file_size
            and entry.position == frame(log.end_offset, entry.size, log.file_size)
        )

    def _run_fits(self, run: EntryRun, term: Term) -> bool:
        """Return whether a run may follow the last entry as a whole. If not, the caller must check
        each entry.
        """
        file_size = self.member.log.file_size
        file_end = run.position - run.position % file_size + file_size
        return (
            self._fits(run[0], term)
            and run.last_term <= term
            and run.end_offset + ENTRY_FILLER_SIZE <= file_end
        )

    def _equal(self, entry: Entry) -> bool:
        """Return whether the log has this entry of the leader. Record a contradiction."""
        log = self.member.log
        if not log.has(entry.index):
            return False
        uncommitted = entry.index > self.member.committed_index
        if uncommitted and log.term_of(entry.index) != entry.term:
            return False  # without reading it: a damaged entry can be replaced, not repaired
        own = log.entry(entry.index)
        if own.term == entry.term and own != entry and self._contradiction is None:
            self._matched = min(self._matched, entry.index - 1)
            self._contradiction = (
                f"its entry {entry.index} and that of the leader differ, although both are of term"
                f" {entry.term}. The term had two leaders, as after a member was restored from a"
                " backup that is older than its vote, or a file has been changed"
            )
        return own == entry

    def _match(self, index: int) -> None:
        self._matched, self._matched_term = max(index, self.matched_index), self.member.term

    def _apply_commit(self, index: int, proven: int) -> None:
        """Commit up to ``index``, but no entry after ``proven``, the last one of the push."""
        member = self.member
        reached = min(index, proven, self.matched_index)
        if reached > member.committed_index:
            member.commit(reached)

    def _settle(self, held: _HeldPush, done: bool) -> None:
        """Answer a push that has been handled, or wait for the sync of its entries."""
        last = held.request.last_index
        if done and self.member.options.ack_after_sync and last > self.synced_index:
            self._unsynced.append((last, held))
        else:
            self._answer(held, _CODE.SUCCESS if done else _CODE.INCONSISTENT_STATE)

    def _answer(self, held: _HeldPush, code: DLedgerResponseCode) -> None:
        log, request = self.member.log, held.request
        commit = request.type is PushType.COMMIT
        response = PushEntryResponse(
            group=request.group,
            code=code,
            term=request.term,
            index=None if commit else request.first_index,
            count=0 if commit else len(request.entries),
            begin_index=log.begin_index,
            end_index=log.end.index,
        )
        self.member.outbox.reply(held.ticket, response)
