"""Watches a group from outside, after each thing that a member does, and raises Violation.

================================  =========================================================
checked                           when
================================  =========================================================
one leader a term                 a member becomes leader
one vote a term, for ever         a hard state is made durable; terms never fall
log matching                      an entry is written: its (index, term) has one body and one
                                  entry before it, on all members
leader completeness               a member becomes leader: it has what was committed in older terms
nothing committed is truncated    entries are dropped
committed is the same everywhere  a member commits
the committed index never falls   a member commits
acknowledged means committed      a waiter is told SUCCESS
================================  =========================================================

The checks are incremental: each costs what has just changed. By log matching a log that has the
last committed entry has them all.
"""

from __future__ import annotations

from bisect import bisect_left

from attrs import define, field

from rmqpy.dledger.member import HardState
from rmqpy.dledger.messages import Entry
from simulator.memory_entries import MemoryEntries


class GroupInvariantError(AssertionError):
    """A promise of the group is broken."""


Key = tuple[int, int]
"""(index, term): names an entry."""


@define(slots=True)
class GroupChecker:
    """One for a group, over all lives of its members."""

    leaders: dict[int, str] = field(factory=dict)
    votes: dict[tuple[str, int], str] = field(factory=dict)
    terms: dict[str, int] = field(factory=dict)
    written: dict[Key, tuple[bytes, int, int]] = field(factory=dict)
    """(index, term) → body, position, term of the entry before."""

    committed: list[Key] = field(factory=list)
    """By index, from 0."""

    committed_in: list[int] = field(factory=list)
    """Term of the member that committed it first, which is its leader."""

    committed_by: dict[str, int] = field(factory=dict)
    acknowledged: int = 0

    def leads(self, member: str, term: int, log: MemoryEntries) -> None:
        other = self.leaders.setdefault(term, member)
        if other != member:
            raise GroupInvariantError(f"{member} and {other} lead in term {term}")
        # A candidate may win an old term late, when others have gone on without it.
        before = bisect_left(self.committed_in, term)
        if not before:
            return
        index, committed_term = self.committed[before - 1]
        if log.begin_index > index:
            return  # expired there, which only happens to what is committed
        if log.end.index < index or log.term_of(index) != committed_term:
            raise GroupInvariantError(
                f"{member} leads in term {term} without the committed entry {index} of term"
                f" {committed_term}"
            )

    def votes_for(self, member: str, state: HardState) -> None:
        if state.current_term < self.terms.get(member, 0):
            raise GroupInvariantError(
                f"the term of {member} falls from {self.terms[member]} to {state.current_term}"
            )
        self.terms[member] = state.current_term
        if state.voted_for is None:
            if (member, state.current_term) in self.votes:
                raise GroupInvariantError(f"{member} forgets its vote of term {state.current_term}")
            return
        self.gives_vote(member, state.current_term, state.voted_for)

    def gives_vote(self, member: str, term: int, candidate: str) -> None:
        """``member`` told somebody that it votes for ``candidate``."""
        before = self.votes.setdefault((member, term), candidate)
        if before != candidate:
            raise GroupInvariantError(
                f"{member} votes for {before} and for {candidate} in term {term}"
            )

    def writes(self, member: str, entry: Entry, term_before: int) -> None:
        now = bytes(entry.body), entry.position, term_before
        before = self.written.setdefault((entry.index, entry.term), now)
        if before == now:
            return
        # The first entry of a log that begins again has none before it to compare.
        if before[:2] == now[:2] and -2 in (before[2], term_before):
            if before[2] == -2:
                self.written[entry.index, entry.term] = now
            return
        raise GroupInvariantError(
            f"{member} writes another entry {entry.index} of term {entry.term} than is known"
        )

    def drops(self, member: str, entry: Entry) -> None:
        """``member`` cuts ``entry`` off its log."""
        if entry.index < len(self.committed) and self.committed[entry.index][1] == entry.term:
            raise GroupInvariantError(f"{member} drops the committed entry {entry.index}")

    def commits(self, member: str, index: int, term: int, log: MemoryEntries) -> None:
        """``member``, in ``term``, commits up to ``index``."""
        before = self.committed_by.get(member, -1)
        if index <= before:
            raise GroupInvariantError(
                f"the committed index of {member} falls from {before} to {index}"
            )
        self.committed_by[member] = index
        if index > log.end.index:
            raise GroupInvariantError(
                f"{member} commits {index} and has entries up to {log.end.index}"
            )
        for number in range(max(before + 1, log.begin_index), index + 1):
            key = number, log.term_of(number)
            if number < len(self.committed):
                if self.committed[number] != key:
                    raise GroupInvariantError(
                        f"{member} commits entry {number} of term {key[1]}; committed is that of"
                        f" term {self.committed[number][1]}"
                    )
            elif number == len(self.committed):
                self.committed.append(key)
                self.committed_in.append(term)
            else:
                raise GroupInvariantError(f"{member} commits {number} before {len(self.committed)}")

    def restarts(self, member: str, committed_index: int) -> None:
        """A new life of ``member`` remembers less, never more."""
        if committed_index > self.committed_by.get(member, -1):
            raise GroupInvariantError(f"{member} remembers {committed_index} as committed")
        self.committed_by[member] = committed_index

    def acknowledges(self, member: str, entry: Key) -> None:
        index, _ = entry
        if index >= len(self.committed) or self.committed[index] != entry:
            raise GroupInvariantError(
                f"{member} acknowledges entry {index}, which is not committed"
            )
        self.acknowledged += 1
