"""The protocol by which the brokers of a classic group become members of a DLedger group together,
while they run: two phases, of which the master is the coordinator.

This module only decides; :mod:`rmqpy.broker.assembly.switch.live` carries out the actions, in their
order, and reports what happened::

    master    preparing ──► freezing ──► voting ──► committed ──► complete
               ▲     └──► ready (postponed)
               └────────────┘
              preparing, ready, freezing, voting ──► aborted
    slave     ready ──► prepared ──► committed ──► complete
                └──────────┴──► (nothing)

The decision is the master's record ``COMMITTED``, which it writes when every slave has voted: each
of them has all messages on the disk, has left its master, and has recorded ``PREPARED``. Without
that record the switch is aborted, so a master that is killed earlier has nothing to remember.
A slave that has voted waits for the decision, also after a restart: it stays a slave that
stores nothing, and asks the other members (:meth:`Participant.decided`).

Invariants: no member exchanges its log before the decision is on the master's disk; a slave that
has voted follows its master again only when the switch was aborted; after the decision nobody
aborts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from attrs import asdict, field

from rmqpy.model.errors import StoreError
from rmqpy.model.values import define

FORMAT: Final = 1


class SwitchStage(Enum):
    """What a member has recorded."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    COMPLETE = "complete"


class Outcome(Enum):
    """What a member knows about the decision."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"


class SwitchStep(Enum):
    """The requests of the coordinator to another member. ``FREEZE`` belongs to a leave."""

    PREPARE = "prepare"
    FREEZE = "freeze"
    VOTE = "vote"
    COMMIT = "commit"
    ABORT = "abort"


@define(slots=True, frozen=True, kw_only=True)
class SwitchPlan:
    """One switch. ``brokers`` has the address of each broker by its id in the group, ``peers`` is
    dLegerPeers, and ``coordinator`` the id of the master.
    """

    switch: str
    group: str
    coordinator: str
    peers: str
    brokers: Mapping[str, str]

    @property
    def others(self) -> tuple[str, ...]:
        """The ids of the slaves."""
        return tuple(sorted(self.brokers.keys() - {self.coordinator}))

    def encode(self) -> dict[str, Any]:
        return {**asdict(self), "brokers": dict(self.brokers)}

    @classmethod
    def decode(cls, value: object) -> SwitchPlan:
        """Raise ValueError unless ``value`` is the result of :meth:`encode`."""
        if not isinstance(value, dict) or not isinstance(value.get("brokers"), dict):
            raise ValueError("expected an object with brokers")
        texts = {name: value.get(name) for name in ("switch", "group", "coordinator", "peers")}
        brokers = value["brokers"]
        if not all(isinstance(each, str) for each in (*texts.values(), *brokers.values())):
            raise ValueError("expected texts")
        if texts["coordinator"] not in brokers:
            raise ValueError("the coordinator is none of the brokers")
        return cls(brokers=brokers, **{name: str(text) for name, text in texts.items()})


@define(slots=True, frozen=True)
class SwitchRecord:
    """The journal of one member, ``self_id``."""

    stage: SwitchStage
    plan: SwitchPlan
    self_id: str

    def encode(self) -> bytes:
        value = {
            "format": FORMAT,
            "stage": self.stage.value,
            "self": self.self_id,
            "plan": self.plan.encode(),
        }
        return json.dumps(value, indent=1).encode()

    @classmethod
    def decode(cls, path: str, raw: bytes) -> SwitchRecord:
        """Raise StoreError if ``raw``, the content of ``path``, is no record."""
        try:
            value = json.loads(raw)
            if value["format"] != FORMAT:
                raise ValueError(f"format {value['format']}")
            plan, self_id = SwitchPlan.decode(value["plan"]), str(value["self"])
            return cls(SwitchStage(value["stage"]), plan, self_id)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                path,
                f"no record of a switch: {error}",
                f"a record of format {FORMAT}",
                "start the version of rmqpy that wrote it; without the record, a member could"
                " be classic in a group that has switched",
            ) from None


def recorded_outcome(record: SwitchRecord | None, switch: str) -> Outcome:
    """Return what a record says about a switch. A master without a record of it has aborted it."""
    if record is None or record.plan.switch != switch:
        return Outcome.ABORTED
    decided = record.stage in (SwitchStage.COMMITTED, SwitchStage.COMPLETE)
    return Outcome.COMMITTED if decided else Outcome.UNDECIDED


def resolve(plan: SwitchPlan, answers: Mapping[str, Outcome | None]) -> Outcome:
    """Return the decision that follows from the answers of members, None without one.

    Only the master's word counts for an abort: a slave without a record may have lost its disk.
    """
    if Outcome.COMMITTED in answers.values():
        return Outcome.COMMITTED
    aborted = answers.get(plan.coordinator) is Outcome.ABORTED
    return Outcome.ABORTED if aborted else Outcome.UNDECIDED


# ------------------------------------------------------------------------------------ actions


@define(slots=True, frozen=True)
class Prepare:
    """Open the port of the group, and read the log ahead; then call ``prepared``."""


@define(slots=True, frozen=True)
class Freeze:
    """Hold the requests that write, and wait until everything is confirmed and on the disk; then
    call ``frozen``.
    """


@define(slots=True, frozen=True)
class Reopen:
    """Close the port of the group, accept messages again, or follow the master again."""


@define(slots=True, frozen=True)
class StopFollowing:
    """Store nothing more."""


@define(slots=True, frozen=True)
class Record:
    """Record a stage durably, or remove the record (None)."""

    stage: SwitchStage | None


@define(slots=True, frozen=True)
class Exchange:
    """Continue the log with a DLedger log; then call ``exchanged``."""


@define(slots=True, frozen=True)
class Lead:
    """Start the member that becomes the leader, and answer what is held when it leads."""


@define(slots=True, frozen=True)
class SendStep:
    """Send a request to a member."""

    to: str
    step: SwitchStep


Action = Prepare | Freeze | Reopen | StopFollowing | Record | Exchange | Lead | SendStep
Actions = Sequence[Action]


# --------------------------------------------------------------------------------- the master


class Phase(Enum):
    PREPARING = "preparing"
    READY = "ready"
    """Prepared, and postponed."""
    FREEZING = "freezing"
    VOTING = "voting"
    COMMITTED = "committed"
    COMPLETE = "complete"
    ABORTED = "aborted"


BEFORE_FREEZE: Final = (Phase.PREPARING, Phase.READY)
_BEFORE_DECISION: Final = (*BEFORE_FREEZE, Phase.FREEZING, Phase.VOTING)


@define(slots=True, eq=False)
class Coordinator:
    """The master's side of one switch."""

    plan: SwitchPlan
    phase: Phase = Phase.PREPARING
    reason: str = ""
    """The reason of an abort."""
    postponed: bool = False
    """True if the freeze waits for :meth:`resume`."""
    _waits_for: set[str] = field(factory=set)
    _leads: bool = False

    def begin(self) -> Actions:
        self.phase = Phase.PREPARING
        self._waits_for = set(self.plan.brokers)
        return [Prepare(), *self._to_others(SwitchStep.PREPARE)]

    def prepared(self, member: str) -> Actions:
        """Handle the end of the preparation of a member, which may be the master itself."""
        if self.phase is not Phase.PREPARING or not self._arrived(member):
            return []
        self.phase = Phase.READY if self.postponed else Phase.FREEZING
        return [] if self.postponed else [Freeze()]

    def resume(self) -> Actions:
        """End a postponement. What was prepared has aged, so all prepare again."""
        self.postponed = False
        return self.begin() if self.phase is Phase.READY else []

    def frozen(self) -> Actions:
        if self.phase is not Phase.FREEZING:
            return []
        self.phase = Phase.VOTING
        self._waits_for = set(self.plan.others)
        return self._to_others(SwitchStep.VOTE) if self.plan.others else self._decide()

    def voted(self, member: str) -> Actions:
        if self.phase is not Phase.VOTING or not self._arrived(member):
            return []
        return self._decide()

    def _decide(self) -> Actions:
        self.phase = Phase.COMMITTED
        self._waits_for = set(self.plan.brokers)
        return [Record(SwitchStage.COMMITTED), *self._to_others(SwitchStep.COMMIT), Exchange()]

    def exchanged(self, member: str) -> Actions:
        """Handle the exchange of a member. The master leads when a majority is there: with it,
        messages are confirmed.
        """
        if self.phase is not Phase.COMMITTED:
            return []
        if self._arrived(member):
            self.phase = Phase.COMPLETE
        there = len(self.plan.brokers) - len(self._waits_for)
        if self.plan.coordinator in self._waits_for or 2 * there <= len(self.plan.brokers):
            return []
        return self._lead()

    def not_exchanged(self, member: str) -> Actions:
        """Handle a COMMIT without an answer: it is repeated."""
        missing = self.phase is Phase.COMMITTED and member in self._waits_for
        return [SendStep(member, SwitchStep.COMMIT)] if missing else []

    def lead_alone(self) -> Actions:
        """Lead without the members that have not exchanged their logs in time."""
        if self.phase is not Phase.COMMITTED or self.plan.coordinator in self._waits_for:
            return []
        return self._lead()

    def _lead(self) -> Actions:
        if self._leads:
            return []
        self._leads = True
        return [Lead()]

    def abort(self, reason: str) -> Actions:
        """Undo the switch because of ``reason``. Has no effect after the decision."""
        if self.phase not in _BEFORE_DECISION:
            return []
        self.phase = Phase.ABORTED
        self.reason = reason
        return [Reopen(), *self._to_others(SwitchStep.ABORT)]

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

    def _to_others(self, step: SwitchStep) -> list[Action]:
        return [SendStep(each, step) for each in self.plan.others]


# ---------------------------------------------------------------------------------- the slaves


@define(slots=True, eq=False)
class Participant:
    """A slave's side of one switch. ``stage`` is None until it has voted."""

    plan: SwitchPlan
    self_id: str
    stage: SwitchStage | None = None
    over: bool = False
    """True if the switch was aborted."""

    def restart(self) -> Actions:
        """Continue after a restart with the recorded stage."""
        return [StopFollowing()] if self.stage is SwitchStage.PREPARED else []

    def vote(self) -> Actions:
        """Vote for the switch. The log ends, and is durable, where the master's does.

        Raises ValueError if the switch has been aborted.
        """
        if self.over:
            raise ValueError("the switch was aborted")
        if self.stage is not None:
            return []
        self.stage = SwitchStage.PREPARED
        return [StopFollowing(), Record(SwitchStage.PREPARED)]

    @property
    def awaits_decision(self) -> bool:
        return self.stage is SwitchStage.PREPARED and not self.over

    def decided(self, outcome: Outcome) -> Actions:
        """Handle the decision, from the master or from a member that knows it.

        Raises ValueError for one that contradicts what this member knows.
        """
        if outcome is Outcome.COMMITTED:
            if self.stage is None or self.over:
                raise ValueError("this member has not voted for the switch")
            if self.stage is not SwitchStage.PREPARED:
                return []
            self.stage = SwitchStage.COMMITTED
            return [Record(SwitchStage.COMMITTED), Exchange()]
        if outcome is Outcome.ABORTED:
            if self.stage in (SwitchStage.COMMITTED, SwitchStage.COMPLETE):
                raise ValueError("the switch was decided")
            if self.over:
                return []
            voted, self.stage, self.over = self.stage is not None, None, True
            return [Record(None), Reopen()] if voted else [Reopen()]
        return []

    @property
    def outcome(self) -> Outcome:
        if self.over:
            return Outcome.ABORTED
        decided = self.stage in (SwitchStage.COMMITTED, SwitchStage.COMPLETE)
        return Outcome.COMMITTED if decided else Outcome.UNDECIDED
