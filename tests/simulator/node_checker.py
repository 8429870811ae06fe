"""The checker of bare nodes, which checks each step of a Ready when it is carried out.

================================  =========================================================
checked                           when
================================  =========================================================
one leader per term               a member becomes leader
one vote per term, durable        a hard state is saved; a granted vote is written to the network
terms never fall                  a hard state is saved
log matching                      an entry is written: its (index, term) has one content, one
                                  position and one entry before it, on all members
leader completeness               a member becomes leader: it has what was committed in older terms
nothing committed is truncated    entries are dropped
committed is the same everywhere  a member commits
a majority has what is committed  an entry is committed first; durably where power fails
a leader counts its own term      the same
the committed index never falls   a member commits
acknowledged means committed      a waiter gets SUCCESS
================================  =========================================================

The checks are incremental: the cost of each depends on what has just changed. By log matching, a
log that has the last committed entry has them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self
from zlib import crc32

from attrs import define

from rmqpy.dledger.protocol.messages import Entry
from rmqpy.dledger.state import HardState
from simulator.checkers import VOTE_GRANTED, Checker
from simulator.invariants import ConsensusInvariants, InvariantViolationError
from simulator.network import Machine
from simulator.node_disk import NodeDisk
from simulator.records import LedgerEntry, body_of


@define(slots=True, eq=False, repr=False)
class NodeView:
    """The view that the checker has of one member."""

    name: str
    disk: NodeDisk
    invariants: ConsensusInvariants
    others: list[NodeView]
    """All views of the group, this one included."""

    power: bool
    """Whether entries must be durable before they count."""

    committed_index: int = -1
    acknowledged: int = 0

    def has(self, entry: LedgerEntry) -> bool:
        """Return whether the log holds the entry."""
        return _holds(self.disk.log.entries, entry)

    def has_durably(self, entry: LedgerEntry) -> bool:
        """Return whether the entry would survive a power failure."""
        return _holds(self.disk.log.durable, entry)

    def restarted(self, committed_index: int) -> None:
        """Check the committed index of a new process: at most that of the process before it."""
        if committed_index > self.committed_index:
            raise InvariantViolationError(
                f"{self.name} remembers {committed_index} as committed; it was"
                f" {self.committed_index}"
            )
        self.committed_index = committed_index

    def saved(self, state: HardState) -> None:
        """Check a hard state that was made durable."""
        self.invariants.check_hard_state(self.name, state.current_term, state.voted_for)

    def check_vote(self, candidate: str, term: int) -> None:
        """Check a granted vote that is sent to ``candidate``.

        It must be durable, unless the same Ready has made a later term durable.
        """
        state = self.disk.hard_state
        if (state.current_term, state.voted_for) != (term, candidate) and (
            state.current_term <= term
        ):
            raise InvariantViolationError(
                f"{self.name} votes for {candidate} in term {term}; durable is {state}"
            )
        self.invariants.check_vote(self.name, term, candidate)

    def wrote(self, entry: Entry, term_before: int) -> None:
        """Check an entry that was appended after one of ``term_before`` (-2: no entry)."""
        self.invariants.check_entry(self.name, ledger_entry(entry), term_before)

    def dropped(self, entry: Entry) -> None:
        """Check an entry that is cut off the end of the log."""
        self.invariants.check_dropped(self.name, entry.index, entry.term)

    def reset(self, first_index: int) -> None:
        """Note that the log starts again with entry ``first_index``."""
        self.committed_index = min(self.committed_index, first_index - 1)

    def committed(self, index: int, term: int, *, leads: bool) -> None:
        """Check that the member commits up to ``index`` in ``term``, with ``leads`` by counting."""
        log, before = self.disk.log, self.committed_index
        if index <= before:
            raise InvariantViolationError(
                f"the committed index of {self.name} falls from {before} to {index}"
            )
        if index > log.end.index:
            raise InvariantViolationError(
                f"{self.name} commits {index} and has entries up to {log.end.index}"
            )
        self.committed_index = index
        is_first = False
        for number in range(max(before + 1, log.begin_index), index + 1):
            entry = ledger_entry(log.entries[number - log.begin_index])
            is_first = self.invariants.commit(self.name, term, entry) or is_first
        if is_first:
            self.invariants.check_quorum(
                self.name,
                ledger_entry(log.entries[index - log.begin_index]),
                self.others,
                synced=self.power,
                leads_in=term if leads else None,
            )

    def check_leader(self, term: int) -> None:
        """Check a member that has become leader."""
        self.invariants.check_leader(self.name, term)
        needed = self.invariants.required_entry(term)
        # Entries that have expired on this member were committed on it.
        if (
            needed is not None
            and needed.index >= self.disk.log.begin_index
            and not self.has(needed)
        ):
            raise InvariantViolationError(
                f"{self.name} leads in term {term} without the committed entry {needed}"
            )

    def check_acknowledged(self, index: int, term: int) -> None:
        """Check an entry whose waiter received SUCCESS."""
        committed = self.invariants.committed
        if index >= len(committed) or committed[index].term != term:
            raise InvariantViolationError(
                f"{self.name} acknowledges entry {index}, which is not committed"
            )
        self.acknowledged += 1

    def audit(self) -> None:
        """Check that the log holds exactly the committed entries."""
        entries = [ledger_entry(entry) for entry in self.disk.log.entries]
        if entries != self.invariants.committed[self.disk.log.begin_index :]:
            raise InvariantViolationError(f"the log of {self.name} is not what was committed")


@define(slots=True, eq=False, repr=False)
class NodeChecker(Checker):
    """A checker of a group of bare nodes."""

    invariants: ConsensusInvariants
    views: dict[str, NodeView]

    @classmethod
    def of(cls, disks: Mapping[str, NodeDisk], *, power: bool) -> Self:
        """Return a checker of members with these disks."""
        invariants = ConsensusInvariants(len(disks) // 2 + 1)
        views: list[NodeView] = []
        views += (NodeView(name, disk, invariants, views, power) for name, disk in disks.items())
        return cls(invariants, {view.name: view for view in views})

    @property
    def elections(self) -> int:
        return len(self.invariants.leaders)

    @property
    def acknowledged(self) -> int:
        """The number of requests that were acknowledged."""
        return sum(view.acknowledged for view in self.views.values())

    def on_write(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        if VOTE_GRANTED in piece:
            self.views[machine.name].check_vote(to, body_of(piece)["term"])

    def audit(self) -> None:
        for view in self.views.values():
            view.audit()

    def digest(self) -> str:
        return repr((self.invariants.committed, sorted(self.invariants.votes.items())))


def ledger_entry(entry: Entry) -> LedgerEntry:
    """Return what the checkers keep of an entry."""
    content = crc32(entry.body)
    return LedgerEntry(entry.index, entry.term, entry.position, entry.size, content)


def _holds(entries: list[Entry], expected: LedgerEntry) -> bool:
    number = expected.index - entries[0].index if entries else -1
    return 0 <= number < len(entries) and entries[number].term == expected.term
