"""The invariants over all lives of all members, and the errors for violations.

Every committed record has one place in its queue and one address in the log, forever. Both are
recorded here when the first member commits the record; what members, producers and readers see is
compared with these values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import define, field

from simulator.records import LedgerEntry, MessageRecord


class InvariantViolationError(AssertionError):
    """An invariant is broken."""


class StartRefusedError(InvariantViolationError):
    """A broker refuses to start on the files that its last process left."""


@define(slots=True, frozen=True)
class CommittedMessage:
    """The place of a committed record.

    ``number`` counts committed entries; it is 0 for a record of the classic log.
    """

    physical_offset: int
    size: int
    body: int
    number: int


Queue = tuple[bytes, int]


class ReplicaState(Protocol):
    """The log of one member, up or down."""

    @property
    def name(self) -> str: ...

    def has(self, entry: LedgerEntry) -> bool:
        """Return whether the log holds the entry."""

    def has_durably(self, entry: LedgerEntry) -> bool:
        """Return whether the entry would survive a power failure."""


@define(slots=True, repr=False)
class ConsensusInvariants:
    """The invariants of Raft over all lives of all members. ``quorum`` members make a majority."""

    quorum: int
    leaders: dict[int, str] = field(factory=dict)
    """The leader of each term."""

    votes: dict[tuple[str, int], str] = field(factory=dict)
    terms: dict[str, int] = field(factory=dict)
    entries: dict[tuple[int, int], tuple[int, int, int]] = field(factory=dict)
    """(index, term) → position, content, term of the entry before."""

    committed: list[LedgerEntry] = field(factory=list)
    """The committed entries by index, from 0."""

    committed_in: list[int] = field(factory=list)
    """The term of the member that first committed each entry."""

    def check_leader(self, member: str, term: int) -> None:
        other = self.leaders.setdefault(term, member)
        if other != member:
            raise InvariantViolationError(f"{member} and {other} lead in term {term}")

    def required_entry(self, term: int) -> LedgerEntry | None:
        """Return the last entry that a leader of ``term`` must have, or None.

        A leader may win an old term when a newer term already has a leader. The entries of the
        newer term are not required.
        """
        before = bisect_left(self.committed_in, term)
        return self.committed[before - 1] if before else None

    def check_hard_state(self, member: str, term: int, candidate: str | None) -> None:
        if term < self.terms.get(member, 0):
            raise InvariantViolationError(
                f"the term of {member} falls from {self.terms[member]} to {term}"
            )
        self.terms[member] = term
        if candidate is None:
            if (member, term) in self.votes:
                raise InvariantViolationError(f"{member} forgets its vote of term {term}")
        else:
            self.check_vote(member, term, candidate)

    def check_vote(self, member: str, term: int, candidate: str) -> None:
        before = self.votes.setdefault((member, term), candidate)
        if before != candidate:
            raise InvariantViolationError(
                f"{member} votes for {before} and for {candidate} in term {term}"
            )

    def check_entry(self, member: str, entry: LedgerEntry, term_before: int) -> None:
        """Check log matching: an index and a term have one content and one entry before them.

        A group of one has no other log to match.
        """
        if self.quorum == 1:
            return
        now = entry.position, entry.content, term_before
        before = self.entries.setdefault((entry.index, entry.term), now)
        if before == now:
            return
        if before[:2] == now[:2] and -2 in (before[2], term_before):
            # The first entry of a log that starts here has no entry before it to compare.
            if before[2] == -2:
                self.entries[entry.index, entry.term] = now
            return
        raise InvariantViolationError(
            f"{member} has another entry {entry.index} of term {entry.term} than is known:"
            f" {now}, known is {before}"
        )

    def commit(self, member: str, term: int, entry: LedgerEntry) -> bool:
        """Note that ``member`` commits ``entry`` in ``term``. Return whether it is the first."""
        if entry.index < len(self.committed):
            known = self.committed[entry.index]
            if known != entry:
                raise InvariantViolationError(f"{member} commits {entry}; committed is {known}")
            return False
        if entry.index > len(self.committed):
            raise InvariantViolationError(
                f"{member} commits {entry.index} before {len(self.committed)}"
            )
        self.committed.append(entry)
        self.committed_in.append(term)
        return True

    def check_quorum(
        self,
        member: str,
        entry: LedgerEntry,
        replicas: Iterable[ReplicaState],
        *,
        synced: bool,
        leads_in: int | None,
    ) -> None:
        """Check ``entry``, which ``member`` is the first to commit.

        A majority must hold it, durably with ``synced``, and a leader (of term ``leads_in``) must
        count only entries of its own term.
        """
        replicas = tuple(replicas)
        holders = [replica.name for replica in replicas if replica.has(entry)]
        if len(holders) < self.quorum:
            raise InvariantViolationError(
                f"{member} commits entry {entry.index}, which only {holders} have"
            )
        if synced:
            durable = [replica.name for replica in replicas if replica.has_durably(entry)]
            if len(durable) < self.quorum:
                raise InvariantViolationError(
                    f"{member} commits entry {entry.index}, which only {durable} have synced"
                )
        if leads_in is not None and entry.term != leads_in and self.quorum > 1:
            raise InvariantViolationError(
                f"{member} leads in term {leads_in} and commits entry {entry.index} of term"
                f" {entry.term} by counting"
            )

    def forget(self, count: int) -> None:
        """Forget what was committed after the first ``count`` entries: a blackout may have taken
        it, because nothing was synced.
        """
        del self.committed[count:]
        del self.committed_in[count:]

    def has_committed(self, entry: LedgerEntry) -> bool:
        """Return whether exactly this entry is committed."""
        return entry.index < len(self.committed) and self.committed[entry.index] == entry

    def check_dropped(self, member: str, index: int, term: int) -> None:
        """Check an entry that ``member`` had and no longer has."""
        if index < len(self.committed) and self.committed[index].term == term:
            raise InvariantViolationError(
                f"{member} drops the committed entry {index} of term {term}"
            )


@define(slots=True, repr=False)
class InvariantChecker(ConsensusInvariants):
    """The invariants of a group of brokers: those of Raft, and those of queues and positions."""

    queues: dict[Queue, list[CommittedMessage]] = field(factory=dict)
    """The messages of each queue by queue offset, from 0."""

    on_placed: Callable[[MessageRecord], None] = lambda _record: None
    """Called with each record that has got its place in a queue."""

    hidden: int = 0
    """The number of records of the classic log whose queue offset another one has."""

    divided_offset: int | None = None
    expired_to: int = 0

    def forget(self, count: int) -> None:
        ConsensusInvariants.forget(self, count)
        for places in self.queues.values():
            while places and places[-1].number > count:
                places.pop()

    def note_expired(self, offset: int) -> None:
        """Note that a file that ends at ``offset`` has expired and was removed on some member."""
        self.expired_to = max(self.expired_to, offset)

    def check_log_start(self, member: str, offset: int) -> None:
        """Check that the DLedger log of ``member`` may start at ``offset``."""
        low = max(self.expired_to, self.divided_offset or 0)
        if offset > low:
            raise InvariantViolationError(
                f"the log of {member} starts at {offset}; what follows {low} has not expired"
            )

    def add_classic_record(self, record: MessageRecord) -> None:
        """Note a record of the classic log with which all members start."""
        self._place(record, record.physical_offset, 0)

    def commit_record(
        self, member: str, term: int, entry: LedgerEntry, record: MessageRecord | None
    ) -> bool:
        """Do the same as :meth:`commit`, with the message record in the entry."""
        if not self.commit(member, term, entry):
            return False
        if record is None or not record.whole:
            raise InvariantViolationError(
                f"{member} commits entry {entry.index} without a record in it"
            )
        self._place(record, entry.position + 48, len(self.committed))
        return True

    def check_queue_unit(
        self, member: str, queue: Queue, offset: int, unit: tuple[int, int]
    ) -> None:
        """Check that a consume queue maps ``offset`` to the right (physical offset, size)."""
        place = self._at(queue, offset)
        if place is None:
            raise InvariantViolationError(
                f"{member} shows {_named(queue, offset)}, which is not committed"
            )
        if (place.physical_offset, place.size) != unit:
            raise InvariantViolationError(
                f"{member} maps {_named(queue, offset)} to {unit}; it is at"
                f" {place.physical_offset}, {place.size} bytes"
            )

    def check_visible(
        self, member: str, queue: Queue, offset: int, body: int, stamp: int | None
    ) -> None:
        """Check that the message with this body was committed at this place.

        ``stamp`` is the number of entries that were committed when ``member`` named it to a
        client.
        """
        place = self._at(queue, offset)
        if place is None or (stamp is not None and place.number > stamp):
            raise InvariantViolationError(
                f"{member} names {_named(queue, offset)}, which was not committed"
            )
        if place.body != body:
            raise InvariantViolationError(
                f"{member} names another message at {_named(queue, offset)}"
            )

    def check_divided_offset(self, member: str, offset: int | None, *, expired: bool) -> None:
        """Check the divide of a member; with ``expired``, it has no file of the classic log."""
        if offset != self.divided_offset and not (expired and offset is None):
            raise InvariantViolationError(
                f"dividedCommitlogOffset of {member} is {offset}, of others {self.divided_offset}"
            )

    def is_below(self, queue: Queue, offset: int, low: int) -> bool:
        """Return whether the message at that place is before physical offset ``low``."""
        place = self._at(queue, offset)
        return place is not None and place.physical_offset < low

    def check_queue_start(self, member: str, queue: Queue, offset: int, low: int) -> None:
        """Check that a consume queue hides no message that the log of its member still holds.

        The log starts at ``low``.
        """
        places = self.queues.get(queue, [])
        if any(place.physical_offset >= low for place in places[:offset][-1:]):
            raise InvariantViolationError(
                f"{member} hides {_named(queue, offset - 1)}, which is in its log"
            )

    def _at(self, queue: Queue, offset: int) -> CommittedMessage | None:
        places = self.queues.get(queue)
        return places[offset] if places is not None and offset < len(places) else None

    def _place(self, record: MessageRecord, position: int, number: int) -> None:
        if record.physical_offset != position:
            raise InvariantViolationError(
                f"the record at {position} states the position {record.physical_offset}"
            )
        if not record.queued:
            return
        places = self.queues.setdefault((record.topic, record.queue_id), [])
        if not number and record.queue_offset == len(places) - 1:
            self.hidden += 1
            return
        if record.queue_offset != len(places):
            raise InvariantViolationError(
                f"the record at {position} has place"
                f" {_named((record.topic, record.queue_id), record.queue_offset)};"
                f" the next is {len(places)}"
            )
        places.append(CommittedMessage(record.physical_offset, record.size, record.body, number))
        self.on_placed(record)


def _named(queue: Queue, offset: int) -> str:
    return f"{queue[0].decode('utf-8', 'replace')}/{queue[1]}@{offset}"
