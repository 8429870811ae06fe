"""The protocol by which a classic slave takes over from the DLedger group that it follows, while
all of them run: two phases, of which the slave is the coordinator.

This module only decides; :mod:`rmqpy.broker.assembly.leave` carries out the actions, in their
order, and reports what happened::

    slave     preparing ──► freezing ──► voting ──► committed ──► complete
               ▲     └──► ready (postponed)
               └────────────┘
              preparing, ready, freezing, voting ──► aborted
    member    ready ──► prepared ──► committed
                └──────────┴──► (nothing)

A member is a :class:`~rmqpy.broker.replication.switch_protocol.Participant`: ``StopFollowing``
means that it takes no further part in its group, ``Exchange`` that it has left, and ``Reopen`` that
it is a member as before. The decision is the slave's record ``COMMITTED``, which it writes when
every member of the plan has voted with the entry at which the leader was frozen, and the slave has
the log up to there. Without that record the leave is aborted.

The plan has at least a majority of the group. That is enough: an entry that any leader commits is
in the log of a majority, which shares a member with the plan. That member has either got the entry
before its vote, and then its log, the frozen leader's, and the slave's contain it, or it gets no
entry any more. Members that are not in the plan are no majority, so they never elect a leader
afterwards.

Invariants: the slave accepts no message before the decision is on its disk; a member that has
voted takes part in its group again only when the leave was aborted; after the decision nobody
aborts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from attrs import field

from rmqpy.broker.replication.switch_protocol import (
    BEFORE_FREEZE,
    Outcome,
    Phase,
    Record,
    Reopen,
    SendStep,
    SwitchPlan,
    SwitchStage,
    SwitchStep,
)
from rmqpy.model.values import define

SLAVE: Final = "slave"
"""The id of the slave in the plan of a leave."""
AGREE_MS: Final = 800
"""The time from the freeze until all have voted; the leave is aborted after it."""
UNDECIDED: Final = "a leave of the DLedger group is undecided; the slave decides it when it runs"


@define(slots=True, frozen=True)
class FrozenLog:
    """What a leader reports when it is frozen and has committed everything: its last entry, and the
    end of the log that slaves see.
    """

    index: int
    term: int
    end: int


@define(slots=True, frozen=True)
class CopyTables:
    """Copy topics, groups, and offsets from the leader; then call ``prepared`` for the slave."""


@define(slots=True, frozen=True)
class CatchUp:
    """Copy the tables once more, and wait until the log ends at ``log.end``, on the disk; then call
    ``level``.
    """

    log: FrozenLog


@define(slots=True, frozen=True)
class TakeOver:
    """Become master; then call ``taken``."""


def has_majority(some: Collection[str], members: Collection[str]) -> bool:
    """Return whether ``some`` are members, and more than half of them."""
    return set(some) <= set(members) and 2 * len(set(some)) > len(members)


LeaveAction = CopyTables | CatchUp | TakeOver | Record | Reopen | SendStep
LeaveActions = Sequence[LeaveAction]

_BEFORE_DECISION: Final = (*BEFORE_FREEZE, Phase.FREEZING, Phase.VOTING)


@define(slots=True, eq=False)
class LeaveCoordinator:
    """The slave's side of one leave. ``plan.coordinator`` is the slave, the others the members."""

    plan: SwitchPlan
    phase: Phase = Phase.PREPARING
    reason: str = ""
    """The reason of an abort."""
    frozen_log: FrozenLog | None = None
    leader: str = ""
    """The member that has reported it. It votes last, because others may still need its entries."""
    postponed: bool = False
    """True if the freeze waits for :meth:`resume`."""
    _waits_for: set[str] = field(factory=set)

    @classmethod
    def of_decided(cls, plan: SwitchPlan) -> LeaveCoordinator:
        """Return the coordinator of a leave whose decision a start has found."""
        return cls(plan, Phase.COMMITTED)

    def begin(self) -> LeaveActions:
        self.phase = Phase.PREPARING
        self._waits_for = set(self.plan.brokers)
        return [CopyTables(), *self._to_members(SwitchStep.PREPARE)]

    def prepared(self, member: str) -> LeaveActions:
        """Handle the end of the preparation of a member or the slave."""
        if self.phase is not Phase.PREPARING or not self._arrived(member):
            return []
        if self.postponed:
            self.phase = Phase.READY
            return []
        self.phase = Phase.FREEZING
        self._waits_for = set(self.plan.others)
        return self._to_members(SwitchStep.FREEZE)

    def resume(self) -> LeaveActions:
        """End a postponement. What was prepared has aged, so all prepare again."""
        self.postponed = False
        return self.begin() if self.phase is Phase.READY else []

    def frozen(self, member: str, log: FrozenLog | None) -> LeaveActions:
        """Handle the answer of a frozen member: its log if it leads, else None."""
        if self.phase is not Phase.FREEZING or member not in self._waits_for:
            return []
        if log is not None:
            if self.frozen_log is not None:
                return self.abort("two members report that they lead")
            self.frozen_log, self.leader = log, member
        if not self._arrived(member):
            return []
        if self.frozen_log is None:
            return self.abort("no member leads the group")
        return [CatchUp(self.frozen_log)]

    def level(self) -> LeaveActions:
        """Handle that the slave has everything."""
        if self.phase is not Phase.FREEZING or self._waits_for:
            return []
        self.phase = Phase.VOTING
        followers = [each for each in self.plan.others if each != self.leader]
        return self._ask_votes(followers or [self.leader])

    def voted(self, member: str) -> LeaveActions:
        if self.phase is not Phase.VOTING or not self._arrived(member):
            return []
        if member != self.leader:
            return self._ask_votes([self.leader])
        self.phase = Phase.COMMITTED
        return [Record(SwitchStage.COMMITTED), TakeOver()]

    def taken(self) -> LeaveActions:
        """Handle that the slave is the master."""
        if self.phase is not Phase.COMMITTED:
            return []
        self._waits_for = set(self.plan.others)
        return self._to_members(SwitchStep.COMMIT)

    def committed(self, member: str) -> LeaveActions:
        """Handle that a member has recorded that it has left."""
        if self.phase is Phase.COMMITTED and self._arrived(member):
            self.phase = Phase.COMPLETE
        return []

    def not_committed(self, member: str) -> LeaveActions:
        """Handle a COMMIT without an answer: it is repeated."""
        missing = self.phase is Phase.COMMITTED and member in self._waits_for
        return [SendStep(member, SwitchStep.COMMIT)] if missing else []

    def abort(self, reason: str) -> LeaveActions:
        """Undo the leave because of ``reason``. Has no effect after the decision."""
        if self.phase not in _BEFORE_DECISION:
            return []
        self.phase = Phase.ABORTED
        self.reason = reason
        return [Reopen(), *self._to_members(SwitchStep.ABORT)]

    @property
    def waits_for(self) -> Sequence[str]:
        """The members that have not answered yet."""
        return sorted(self._waits_for)

    @property
    def outcome(self) -> Outcome:
        if self.phase in _BEFORE_DECISION:
            return Outcome.UNDECIDED
        return Outcome.ABORTED if self.phase is Phase.ABORTED else Outcome.COMMITTED

    def _arrived(self, member: str) -> bool:
        """Return whether ``member`` was the last one that was waited for."""
        if member not in self._waits_for:
            return False
        self._waits_for.discard(member)
        return not self._waits_for

    def _ask_votes(self, members: Sequence[str]) -> LeaveActions:
        self._waits_for = set(members)
        return [SendStep(each, SwitchStep.VOTE) for each in members]

    def _to_members(self, step: SwitchStep) -> list[LeaveAction]:
        return [SendStep(each, step) for each in self.plan.others]
