"""The states of a group, each with a name, a next step, and a way back.

:data:`STATES` is the table that ``rmqpy upgrade status`` and ``next`` show and that
docs/reference/upgrade.md prints. :mod:`rmqpy.upgrade.group.detection` finds the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from attrs import define


class NextStep(Enum):
    """What the operator does next: a verb of ``rmqpy upgrade``, or the brokers' start and stop."""

    STOP = "stop"
    START = "start"
    PLAN = "plan"
    APPLY = "apply"
    SWITCH = "switch"
    HAND_OVER = "hand-over"
    VERIFY = "verify"
    FINALIZE = "finalize"
    LEAVE = "leave"
    RESUME = "resume"
    ROLLBACK = "rollback"
    LOOK = "look"
    NOTHING = "nothing"


TEXTS: Final[Mapping[NextStep, str]] = {
    NextStep.STOP: "those that run: the master first, then the slaves",
    NextStep.START: "those that do not run; a master before its slaves",
    NextStep.PLAN: "compare the members and write what makes them equal",
    NextStep.APPLY: "carry out the plan; nothing is lost, everything is journaled",
    NextStep.SWITCH: (
        "close the old log and write the DLedger settings of all members, or with --to controller"
        " those of a controller group of 5.x"
    ),
    NextStep.HAND_OVER: "configure the other members as well",
    NextStep.VERIFY: "compare every message of all members and write the certificate",
    NextStep.FINALIZE: "give up `rollback`; refused while it is the only way back",
    NextStep.LEAVE: "plan the way back to master and slaves",
    NextStep.RESUME: "continue the plan that was interrupted",
    NextStep.ROLLBACK: "take the last step back, to the byte",
    NextStep.LOOK: "read what `status` says of the members; only a person can decide",
    NextStep.NOTHING: "no step is left",
}
"""The explanation of each step, for the operator."""


@define(slots=True, frozen=True, kw_only=True)
class State:
    """One state of a group.

    ``served`` says whether clients are served. ``back`` is the way back. ``returning`` is the next
    step if the group is to go back to master and slaves, if that is another one.
    """

    name: str
    meaning: str
    served: str
    next: NextStep
    back: str
    returning: NextStep | None = None

    def next_step(self, *, returning: bool) -> NextStep:
        return self.returning if returning and self.returning is not None else self.next


YES, NO, ELECTED = "yes", "no", "yes, by the leader that they elect"
LED: Final = "yes, by the master that the controller elects"

CLASSIC = State(
    name="classic",
    meaning="the brokers run as master and slaves",
    served=YES,
    next=NextStep.STOP,
    returning=NextStep.NOTHING,
    back="nothing has changed",
)
STOPPING = State(
    name="stopping",
    meaning="some brokers run as master or slave, others are stopped",
    served="while the master runs",
    next=NextStep.STOP,
    returning=NextStep.START,
    back="start the brokers again",
)
STOPPED = State(
    name="stopped",
    meaning="all brokers are stopped, and no plan fits the present logs",
    served=NO,
    next=NextStep.PLAN,
    returning=NextStep.START,
    back="start the brokers again",
)
PLANNED = State(
    name="planned",
    meaning="a plan is written, and nothing has changed yet",
    served=NO,
    next=NextStep.APPLY,
    returning=NextStep.START,
    back="start the brokers again; the plan is then out of date",
)
ALIGNING = State(
    name="aligning",
    meaning="some members have carried out the plan",
    served=NO,
    next=NextStep.APPLY,
    returning=NextStep.ROLLBACK,
    back="`rollback`",
)
ALIGNED = State(
    name="aligned",
    meaning="all members have the same log and the same tables",
    served=NO,
    next=NextStep.SWITCH,
    returning=NextStep.START,
    back="`rollback`, or start the brokers again as they are",
)
SWITCHING = State(
    name="switching",
    meaning="some members are configured for DLedger, others are not; none has an entry",
    served=NO,
    next=NextStep.SWITCH,
    returning=NextStep.ROLLBACK,
    back="`rollback`",
)
SWITCHED = State(
    name="switched",
    meaning="all members are configured for DLedger and stopped; none has an entry",
    served=NO,
    next=NextStep.START,
    returning=NextStep.ROLLBACK,
    back="`rollback`",
)
UNEQUAL = State(
    name="unequal",
    meaning="all members are configured for DLedger and stopped, and some lack messages of others;"
    " a start loses these",
    served=NO,
    next=NextStep.LOOK,
    back="set enableDLegerCommitLog=false again, then `plan`",
)
STARTING = State(
    name="starting",
    meaning="some members run, others are stopped",
    served="while a majority runs",
    next=NextStep.START,
    returning=NextStep.STOP,
    back="stop them; `rollback` while no member has an entry, `leave` afterwards",
)
DLEDGER = State(
    name="dledger",
    meaning="all members run; no certificate since the switch",
    served=ELECTED,
    next=NextStep.VERIFY,
    returning=NextStep.STOP,
    back="stop them; `rollback` while no member has an entry, `leave` afterwards",
)
VERIFIED = State(
    name="verified",
    meaning="all members run, and a certificate since the switch holds",
    served=ELECTED,
    next=NextStep.FINALIZE,
    returning=NextStep.STOP,
    back="stop them; `rollback` while no member has an entry, `leave` afterwards",
)
FINAL = State(
    name="final",
    meaning="all members run, and the undo records of the switch are removed",
    served=ELECTED,
    next=NextStep.NOTHING,
    returning=NextStep.STOP,
    back="stop them, `leave`",
)
HALTED = State(
    name="halted",
    meaning="all members are stopped and have entries; no certificate fits the present logs",
    served=NO,
    next=NextStep.VERIFY,
    returning=NextStep.LEAVE,
    back="`leave`",
)
PROVEN = State(
    name="proven",
    meaning="all members are stopped, and a certificate of the present logs holds",
    served=NO,
    next=NextStep.START,
    returning=NextStep.LEAVE,
    back="`leave`",
)
LEAVE_PLANNED = State(
    name="leave-planned",
    meaning="the way back is planned, and nothing has changed yet",
    served=NO,
    next=NextStep.APPLY,
    back="start the members again; the plan is then out of date",
)
LEAVING = State(
    name="leaving",
    meaning="some members have left, others have not",
    served=NO,
    next=NextStep.APPLY,
    back="`rollback`",
)
LEFT = State(
    name="left",
    meaning="all members have a classic log again; no certificate fits the present logs",
    served=NO,
    next=NextStep.VERIFY,
    back="`rollback`",
)
LEFT_VERIFIED = State(
    name="left-verified",
    meaning="all members have a classic log again, and a certificate of the present logs holds",
    served=NO,
    next=NextStep.START,
    back="`rollback`",
)
LEFT_FINAL = State(
    name="left-final",
    meaning="all members have a classic log again, and its undo records are removed",
    served=NO,
    next=NextStep.START,
    back="switch again",
)
RETURNING = State(
    name="returning",
    meaning="some brokers run as master or slave after the way back, others are stopped",
    served="while the master runs",
    next=NextStep.START,
    back="switch again",
)
RETURNED = State(
    name="returned",
    meaning="the brokers run as master and slaves after the way back",
    served=YES,
    next=NextStep.FINALIZE,
    back="switch again",
)
HANDING_OVER = State(
    name="handing-over",
    meaning="some members are configured for a controller of 5.x, others are not; all are stopped",
    served=NO,
    next=NextStep.HAND_OVER,
    returning=NextStep.ROLLBACK,
    back="`rollback`",
)
HANDED_OVER = State(
    name="handed-over",
    meaning="all members are configured for a controller of 5.x and stopped; none has led",
    served=NO,
    next=NextStep.START,
    returning=NextStep.ROLLBACK,
    back="`rollback` while no broker has written to a log",
)
CONTROLLER_STARTING = State(
    name="controller-starting",
    meaning="some members run with a controller of 5.x, others are stopped",
    served="while the master that the controller elects runs",
    next=NextStep.START,
    returning=NextStep.STOP,
    back="stop them, `leave`",
)
CONTROLLER = State(
    name="controller",
    meaning="all members run with a controller of 5.x; no certificate since they were handed over",
    served=LED,
    next=NextStep.VERIFY,
    returning=NextStep.STOP,
    back="stop them, `leave`",
)
CONTROLLER_VERIFIED = State(
    name="controller-verified",
    meaning="all members run with a controller of 5.x, and a certificate since then holds",
    served=LED,
    next=NextStep.FINALIZE,
    returning=NextStep.STOP,
    back="stop them, `leave`",
)
CONTROLLER_FINAL = State(
    name="controller-final",
    meaning="all members run with a controller of 5.x, and have no undo records",
    served=LED,
    next=NextStep.NOTHING,
    returning=NextStep.STOP,
    back="stop them, `leave`",
)
CONTROLLER_HALTED = State(
    name="controller-halted",
    meaning="all members are stopped, and a controller of 5.x has led them",
    served=NO,
    next=NextStep.START,
    returning=NextStep.LEAVE,
    back="`leave`",
)
INTERRUPTED = State(
    name="interrupted",
    meaning="a plan is half done on a member, whose broker does not start",
    served=NO,
    next=NextStep.RESUME,
    back="`rollback`",
)
ROLLING_BACK_STATE = State(
    name="rolling-back",
    meaning="a rollback is half done on a member, whose broker does not start",
    served=NO,
    next=NextStep.ROLLBACK,
    back="finish the `rollback`; the plan can then be applied again",
)
INCOMPLETE = State(
    name="incomplete",
    meaning="all members are stopped, and an empty one lacks the old log that others have",
    served=NO,
    next=NextStep.PLAN,
    back="fill it with `plan` and `apply`, then `leave`",
)
BEHIND = State(
    name="behind",
    meaning="all members are stopped, and one without entries gets them when the group runs",
    served=NO,
    next=NextStep.START,
    returning=NextStep.LEAVE,
    back="`leave`",
)
LACKING = State(
    name="lacking",
    meaning="some members run; give the empty one the old log with `join` before it starts",
    served="while a majority runs",
    next=NextStep.LOOK,
    back="stop the others, fill it with `plan` and `apply`, then `leave`",
)
HIDDEN = State(
    name="hidden",
    meaning="a member has entries, and its flag is off: a Java broker would hide them",
    served=NO,
    next=NextStep.LOOK,
    back="set enableDLegerCommitLog=true again, then `leave`",
)
MIXED = State(
    name="mixed",
    meaning="members with and without the flag run, or do not belong together",
    served="not reliably",
    next=NextStep.LOOK,
    back="stop all brokers, then `check`",
)
DAMAGED = State(
    name="damaged",
    meaning="the journal and the plan of a member cannot be read",
    served=NO,
    next=NextStep.LOOK,
    back="restore the file that `status` names",
)
UNREACHABLE = State(
    name="unreachable",
    meaning="a member cannot be read",
    served="not known",
    next=NextStep.LOOK,
    back="none is needed: nothing is changed before the member can be read",
)

FORWARD: Final = (
    *(CLASSIC, STOPPING, STOPPED, PLANNED, ALIGNING, ALIGNED, SWITCHING, SWITCHED, STARTING),
    *(DLEDGER, VERIFIED, FINAL),
)
"""The way to DLedger, in order."""
BACKWARD: Final = (
    *(CONTROLLER_HALTED, HALTED, PROVEN, LEAVE_PLANNED, LEAVING, LEFT, LEFT_VERIFIED),
    *(RETURNING, RETURNED),
)
"""The way back, in order: from a controller, or from DLedger."""
STATES: Final = (
    *FORWARD,
    *BACKWARD,
    *(LEFT_FINAL, UNEQUAL, INCOMPLETE, BEHIND, LACKING),
    *(HANDING_OVER, HANDED_OVER, CONTROLLER_STARTING),
    *(CONTROLLER, CONTROLLER_VERIFIED, CONTROLLER_FINAL),
    *(INTERRUPTED, ROLLING_BACK_STATE, HIDDEN, MIXED, DAMAGED, UNREACHABLE),
)
ONLY_ROLLBACK_LEADS_BACK: Final = (SWITCHING, SWITCHED, LEAVING, HANDING_OVER, HANDED_OVER)
"""Without the undo records, a group in these states has no way back."""


AS_MEMBERS: Final = (SWITCHED, STARTING, PROVEN, BEHIND)
"""The states in which the brokers start as members of a DLedger group."""
WITH_CONTROLLER: Final = (HANDED_OVER, CONTROLLER_STARTING, CONTROLLER_HALTED)
"""The states in which the brokers start under a controller of 5.x."""
TO_LEAVE_FIRST: Final = (CONTROLLER_HALTED, HALTED, PROVEN)
"""The stopped states from which only ``leave`` leads to a log that can be aligned and switched."""
LED_BY_CONTROLLER: Final = (
    *(CONTROLLER_STARTING, CONTROLLER, CONTROLLER_VERIFIED, CONTROLLER_FINAL),
)
"""The states in which a controller of 5.x elects the master of those that run."""


def explanation(step: NextStep, state: State) -> str:
    """Return the explanation of the next step of a group in ``state``."""
    if step is NextStep.START and state in WITH_CONTROLLER:
        return "the controller, one member, and the others when it is the master"
    if step is NextStep.START and state in AS_MEMBERS:
        return "those that do not run, in any order; they elect a leader"
    if step is NextStep.STOP and state in LED_BY_CONTROLLER:
        return "the slaves, then the master, so that nobody else is elected; then the controller"
    if step is NextStep.STOP and state in (STARTING, DLEDGER, VERIFIED, FINAL):
        return "those that run, in any order; run and next set a fence before"
    if step is NextStep.STOP and state is CLASSIC:
        return (
            "if the group is to be switched: the master first, then the slaves; rmqpy upgrade"
            " prepare before it shortens the stop"
        )
    if step is NextStep.START and state in (LEFT_VERIFIED, LEFT_FINAL):
        return (
            f"{TEXTS[step]}; on the way to a controller of 5.x they stay stopped, and plan, apply,"
            " and switch --to controller come next"
        )
    return TEXTS[step]


def needs_leave(state: State, target: State) -> bool:
    """Return whether only ``leave`` leads from ``state`` to ``target``, a state before a switch."""
    return state in TO_LEAVE_FIRST and target in FORWARD[: FORWARD.index(SWITCHING)]


def is_back(target: State) -> bool:
    """Return whether ``target`` is on the way back to master and slaves."""
    return target in BACKWARD or target is CLASSIC


def reaches(state: State, target: State) -> bool:
    """Return whether a group in ``state`` has come as far as ``target`` on the way to it."""
    if target is CLASSIC:
        return state is CLASSIC
    if state is LEFT_FINAL:
        state = LEFT_VERIFIED
    if state is CLASSIC and target is RETURNED:
        return True  # `finalize` leads from the one to the other
    if target is STOPPED and state in (LEFT, LEFT_VERIFIED):
        return True  # From DLedger to a controller: no broker has to run in between.
    for way in (FORWARD, BACKWARD):
        if target in way:
            return state in way and way.index(state) >= way.index(target)
    return state is target
