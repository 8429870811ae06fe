"""The state of a group: detected from facts, with a name, a next step, and a way back.

Nothing remembers the state. :func:`detect_state` derives it from the facts of the members (their
directories, locks, journals, and broker.conf), the present plan, and the certificate, so it is
right after a kill, after a start by hand, and on another machine. :data:`STATES` is the table that
``rmqpy upgrade status`` and ``next`` show and that docs/reference/upgrade.md prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from attrs import define

from rmqpy.audit.facts.facts import Mode
from rmqpy.upgrade.checks.member_facts import MemberFacts
from rmqpy.upgrade.plan.journal import APPLIED, APPLYING, FINALIZED, ROLLING_BACK
from rmqpy.upgrade.steps.planning import ALIGN, LEAVE, SWITCH


class Action(Enum):
    """What the operator does next: a verb of ``rmqpy upgrade``, or the brokers' start and stop."""

    STOP = "stop"
    START = "start"
    PLAN = "plan"
    APPLY = "apply"
    SWITCH = "switch"
    VERIFY = "verify"
    FINALIZE = "finalize"
    LEAVE = "leave"
    RESUME = "resume"
    ROLLBACK = "rollback"
    LOOK = "look"
    NOTHING = "nothing"


TEXTS: Final[Mapping[Action, str]] = {
    Action.STOP: "stop the brokers that run: the master first, then the slaves",
    Action.START: "start the brokers that do not run",
    Action.PLAN: "`plan`: compare the members and write what makes them equal",
    Action.APPLY: "`apply`: carry out the plan; nothing is lost, everything is journaled",
    Action.SWITCH: "`switch`: close the old log and write the DLedger settings of all members",
    Action.VERIFY: "`verify`: compare every message of all members and write the certificate",
    Action.FINALIZE: "`finalize`: remove the undo records; until then a plan can be taken back",
    Action.LEAVE: "`leave`: plan the way back to master and slaves",
    Action.RESUME: "`apply`: continue the plan that was interrupted",
    Action.ROLLBACK: "`rollback`: finish taking the plan back",
    Action.LOOK: "read what `status` says of the members; only a person can decide",
    Action.NOTHING: "nothing",
}
"""The explanation of each action, for the operator."""


@define(slots=True, frozen=True, kw_only=True)
class State:
    """One state of a group.

    ``served`` says whether clients are served. ``back`` is the way back. ``returning`` is the next
    step if the group is to go back to master and slaves, if that is another one.
    """

    name: str
    meaning: str
    served: str
    next: Action
    back: str
    returning: Action | None = None

    def action(self, *, returning: bool) -> Action:
        return self.returning if returning and self.returning is not None else self.next


YES, NO, ELECTED = "yes", "no", "yes, by the leader that they elect"

CLASSIC = State(
    name="classic",
    meaning="the brokers run as master and slaves",
    served=YES,
    next=Action.STOP,
    returning=Action.NOTHING,
    back="nothing has changed",
)
STOPPING = State(
    name="stopping",
    meaning="some brokers run as master or slave, others are stopped",
    served="while the master runs",
    next=Action.STOP,
    returning=Action.START,
    back="start the brokers again",
)
STOPPED = State(
    name="stopped",
    meaning="all brokers are stopped, and no plan fits the present logs",
    served=NO,
    next=Action.PLAN,
    returning=Action.START,
    back="start the brokers again",
)
PLANNED = State(
    name="planned",
    meaning="a plan is written, and nothing has changed yet",
    served=NO,
    next=Action.APPLY,
    returning=Action.START,
    back="start the brokers again; the plan is then out of date",
)
ALIGNING = State(
    name="aligning",
    meaning="some members have carried out the plan",
    served=NO,
    next=Action.APPLY,
    returning=Action.ROLLBACK,
    back="`rollback`",
)
ALIGNED = State(
    name="aligned",
    meaning="all members have the same log and the same tables",
    served=NO,
    next=Action.SWITCH,
    returning=Action.START,
    back="`rollback`, or start the brokers again as they are",
)
SWITCHING = State(
    name="switching",
    meaning="some members are configured for DLedger, others are not; none has an entry",
    served=NO,
    next=Action.SWITCH,
    returning=Action.ROLLBACK,
    back="`rollback`",
)
SWITCHED = State(
    name="switched",
    meaning="all members are configured for DLedger and stopped; none has an entry",
    served=NO,
    next=Action.START,
    returning=Action.ROLLBACK,
    back="`rollback`",
)
STARTING = State(
    name="starting",
    meaning="some members run, others are stopped",
    served="while a majority runs",
    next=Action.START,
    returning=Action.STOP,
    back="stop them; `rollback` while no member has an entry, `leave` afterwards",
)
DLEDGER = State(
    name="dledger",
    meaning="all members run; no certificate since the switch",
    served=ELECTED,
    next=Action.VERIFY,
    returning=Action.STOP,
    back="stop them; `rollback` while no member has an entry, `leave` afterwards",
)
VERIFIED = State(
    name="verified",
    meaning="all members run, and a certificate since the switch holds",
    served=ELECTED,
    next=Action.FINALIZE,
    returning=Action.STOP,
    back="stop them, `leave`",
)
FINAL = State(
    name="final",
    meaning="all members run, and the undo records of the switch are removed",
    served=ELECTED,
    next=Action.NOTHING,
    returning=Action.STOP,
    back="stop them, `leave`",
)
HALTED = State(
    name="halted",
    meaning="all members are stopped and have entries; no certificate fits the present logs",
    served=NO,
    next=Action.VERIFY,
    returning=Action.LEAVE,
    back="`leave`",
)
PROVEN = State(
    name="proven",
    meaning="all members are stopped, and a certificate of the present logs holds",
    served=NO,
    next=Action.START,
    returning=Action.LEAVE,
    back="`leave`",
)
LEAVE_PLANNED = State(
    name="leave-planned",
    meaning="the way back is planned, and nothing has changed yet",
    served=NO,
    next=Action.APPLY,
    back="start the members again; the plan is then out of date",
)
LEAVING = State(
    name="leaving",
    meaning="some members have left DLedger, others have not",
    served=NO,
    next=Action.APPLY,
    back="`rollback`",
)
LEFT = State(
    name="left",
    meaning="all members have a classic log again; no certificate fits the present logs",
    served=NO,
    next=Action.VERIFY,
    back="`rollback`",
)
LEFT_VERIFIED = State(
    name="left-verified",
    meaning="all members have a classic log again, and a certificate of the present logs holds",
    served=NO,
    next=Action.START,
    back="`rollback`",
)
RETURNING = State(
    name="returning",
    meaning="some brokers run as master or slave after the way back, others are stopped",
    served="while the master runs",
    next=Action.START,
    back="switch again",
)
RETURNED = State(
    name="returned",
    meaning="the brokers run as master and slaves after the way back",
    served=YES,
    next=Action.FINALIZE,
    back="switch again",
)
INTERRUPTED = State(
    name="interrupted",
    meaning="a plan is half done on a member, whose broker does not start",
    served=NO,
    next=Action.RESUME,
    back="`rollback`",
)
ROLLING_BACK_STATE = State(
    name="rolling-back",
    meaning="a rollback is half done on a member, whose broker does not start",
    served=NO,
    next=Action.ROLLBACK,
    back="finish the `rollback`; the plan can then be applied again",
)
HIDDEN = State(
    name="hidden",
    meaning="a member has entries, and its flag is off: a Java broker would hide them",
    served=NO,
    next=Action.LOOK,
    back="set enableDLegerCommitLog=true again, then `leave`",
)
MIXED = State(
    name="mixed",
    meaning="members with and without the flag run, or do not belong together",
    served="not reliably",
    next=Action.LOOK,
    back="stop all brokers, then `check`",
)
DAMAGED = State(
    name="damaged",
    meaning="the journal and the plan of a member cannot be read",
    served=NO,
    next=Action.LOOK,
    back="restore the file that `status` names",
)
UNREACHABLE = State(
    name="unreachable",
    meaning="a member cannot be read",
    served="not known",
    next=Action.LOOK,
    back="none is needed: nothing is changed before the member can be read",
)

FORWARD: Final = (
    *(CLASSIC, STOPPING, STOPPED, PLANNED, ALIGNING, ALIGNED, SWITCHING, SWITCHED, STARTING),
    *(DLEDGER, VERIFIED, FINAL),
)
"""The way to DLedger, in order."""
BACKWARD: Final = (
    *(HALTED, PROVEN, LEAVE_PLANNED, LEAVING, LEFT, LEFT_VERIFIED, RETURNING, RETURNED),
)
"""The way back, in order."""
STATES: Final = (
    *FORWARD,
    *BACKWARD,
    *(INTERRUPTED, ROLLING_BACK_STATE, HIDDEN, MIXED, DAMAGED, UNREACHABLE),
)


@define(slots=True, frozen=True, kw_only=True)
class PlanFacts:
    """The present plan: its id, its migrations, and the end of each replica when it was made."""

    id: str
    steps: tuple[str, ...]
    ends: Mapping[str, int]


@define(slots=True, frozen=True, kw_only=True)
class ProofFacts:
    """The present certificate: when it was made, whether it holds, and the ends it is about."""

    made_ms: int
    holds: bool
    ends: Mapping[str, int]


@define(slots=True, frozen=True, kw_only=True)
class GroupFacts:
    """Everything from which the state is derived."""

    members: tuple[MemberFacts, ...]
    plan: PlanFacts | None = None
    proof: ProofFacts | None = None

    def every(self, holds: Callable[[MemberFacts], bool]) -> bool:
        return all(map(holds, self.members))

    def some(self, holds: Callable[[MemberFacts], bool]) -> bool:
        return any(map(holds, self.members))

    @property
    def is_proven(self) -> bool:
        """Whether the certificate is about exactly the present logs.

        Its ends are not enough: the way back rewrites the logs and keeps their ends.
        """
        proof = self.proof
        return (
            proof is not None
            and self.is_proven_since_the_plan
            and self.every(lambda each: proof.ends.get(each.name) == each.end)
        )

    @property
    def is_proven_since_the_plan(self) -> bool:
        """Whether the certificate was made after the members' last plan."""
        proof = self.proof
        return (
            proof is not None
            and proof.holds
            and self.every(lambda each: each.name in proof.ends and proof.made_ms >= each.since_ms)
        )

    def fits(self, steps: Sequence[str]) -> bool:
        """Whether the plan consists of ``steps`` and fits members that have not applied it yet."""
        plan = self.plan
        if plan is None or plan.steps != tuple(steps):
            return False
        return self.every(
            lambda each: has_applied(each, steps, plan.id) or plan.ends.get(each.name) == each.end
        )


def has_applied(member: MemberFacts, steps: Sequence[str], plan: str | None = None) -> bool:
    """Return whether a plan of these steps was the last to change the member's logs."""
    return (
        member.journal == APPLIED
        and member.steps == tuple(steps)
        and member.untouched
        and plan in (None, member.plan)
    )


def detect_state(facts: GroupFacts) -> State:
    """Return the state of the group."""
    if facts.some(lambda each: bool(each.problem)):
        return UNREACHABLE
    journals = {each.journal for each in facts.members}
    for journal, state in (
        ("damaged", DAMAGED),
        (ROLLING_BACK, ROLLING_BACK_STATE),
        (APPLYING, INTERRUPTED),
    ):
        if journal in journals:
            return state
    if facts.some(lambda each: not each.dledger and each.entries > 0):
        return HIDDEN
    flags = {each.dledger for each in facts.members}
    if flags == {True}:
        return _dledger_state(facts)
    if flags == {False}:
        return _classic_state(facts)
    return _mixed_state(facts)


def _dledger_state(facts: GroupFacts) -> State:
    if facts.every(lambda each: each.running):
        if facts.every(lambda each: each.journal in ("", FINALIZED)):
            return FINAL
        return VERIFIED if facts.is_proven_since_the_plan else DLEDGER
    if facts.some(lambda each: each.running):
        return STARTING
    if not facts.some(lambda each: each.entries > 0):
        return SWITCHED
    if facts.fits(LEAVE):
        return LEAVE_PLANNED
    return PROVEN if facts.is_proven else HALTED


def _classic_state(facts: GroupFacts) -> State:
    came_back = facts.some(lambda each: each.journal == APPLIED and each.steps == LEAVE)
    if facts.every(lambda each: each.running or each.mode is Mode.EMPTY):
        return RETURNED if came_back else CLASSIC
    if facts.some(lambda each: each.running):
        return RETURNING if came_back else STOPPING
    if facts.every(lambda each: has_applied(each, LEAVE)):
        return LEFT_VERIFIED if facts.is_proven else LEFT
    plans = {each.plan for each in facts.members if has_applied(each, ALIGN)}
    if len(plans) == 1 and facts.every(lambda each: has_applied(each, ALIGN)):
        return ALIGNED
    if facts.fits(ALIGN):
        return ALIGNING if plans else PLANNED
    return STOPPED


def _mixed_state(facts: GroupFacts) -> State:
    on = [each for each in facts.members if each.dledger]
    off = [each for each in facts.members if not each.dledger]
    if facts.some(lambda each: each.running):
        return MIXED
    if all(has_applied(each, LEAVE) for each in off) and facts.fits(LEAVE):
        return LEAVING
    if all(each.journal == APPLIED and each.steps == SWITCH and not each.entries for each in on):
        return SWITCHING
    return MIXED


class MemberStage(Enum):
    """The state of one member; the value is the text for the operator."""

    UNREACHABLE = "unreachable"
    DAMAGED = "damaged journal"
    APPLYING = "half applied"
    ROLLING_BACK = "half rolled back"
    MEMBER = "runs as member"
    CLASSIC = "runs"
    HIDDEN = "flag is off, has entries"
    SWITCHED = "switched"
    HALTED = "stopped member"
    LEFT = "left DLedger"
    ALIGNED = "aligned"
    EMPTY = "empty"
    STOPPED = "stopped"
    UNCLEAN = "stopped uncleanly"


def member_state(member: MemberFacts) -> MemberStage:
    """Return the state of one member."""
    rules = (
        (bool(member.problem), MemberStage.UNREACHABLE),
        (member.journal == "damaged", MemberStage.DAMAGED),
        (member.journal == APPLYING, MemberStage.APPLYING),
        (member.journal == ROLLING_BACK, MemberStage.ROLLING_BACK),
        (member.running, MemberStage.MEMBER if member.dledger else MemberStage.CLASSIC),
        (not member.dledger and member.entries > 0, MemberStage.HIDDEN),
        (not member.clean_stop, MemberStage.UNCLEAN),
        (member.dledger, MemberStage.HALTED if member.entries else MemberStage.SWITCHED),
        (has_applied(member, LEAVE), MemberStage.LEFT),
        (has_applied(member, ALIGN), MemberStage.ALIGNED),
        (member.mode is Mode.EMPTY, MemberStage.EMPTY),
    )
    return next((state for holds, state in rules if holds), MemberStage.STOPPED)


def is_back(target: State) -> bool:
    """Return whether ``target`` is on the way back to master and slaves."""
    return target in BACKWARD or target is CLASSIC


def reaches(state: State, target: State) -> bool:
    """Return whether a group in ``state`` has come as far as ``target`` on the way to it."""
    if target is CLASSIC:
        return state is CLASSIC
    for way in (FORWARD, BACKWARD):
        if target in way:
            return state in way and way.index(state) >= way.index(target)
    return state is target
