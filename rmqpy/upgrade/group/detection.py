"""Detect the state of a group from facts.

Nothing remembers the state. :func:`detect_state` derives it from the facts of the members (their
directories, locks, journals, and broker.conf), the present plan, and the certificate, so it is
right after a kill, after a start by hand, and on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import define

from rmqpy.audit.facts.facts import Mode
from rmqpy.upgrade.checks.member_facts import MemberFacts
from rmqpy.upgrade.group.member_stage import has_applied, has_left, has_left_finally
from rmqpy.upgrade.group.states import (
    ALIGNED,
    ALIGNING,
    BEHIND,
    CLASSIC,
    CONTROLLER,
    CONTROLLER_FINAL,
    CONTROLLER_HALTED,
    CONTROLLER_STARTING,
    CONTROLLER_VERIFIED,
    DAMAGED,
    DLEDGER,
    FINAL,
    HALTED,
    HANDED_OVER,
    HANDING_OVER,
    HIDDEN,
    INCOMPLETE,
    INTERRUPTED,
    LACKING,
    LEAVE_PLANNED,
    LEAVING,
    LEFT,
    LEFT_FINAL,
    LEFT_VERIFIED,
    MIXED,
    PLANNED,
    PROVEN,
    RETURNED,
    RETURNING,
    ROLLING_BACK_STATE,
    STARTING,
    STOPPED,
    STOPPING,
    SWITCHED,
    SWITCHING,
    UNEQUAL,
    UNREACHABLE,
    VERIFIED,
    State,
)
from rmqpy.upgrade.plan.journal import APPLIED, APPLYING, FINALIZED, ROLLING_BACK
from rmqpy.upgrade.steps.planning import (
    ALIGN,
    LEAVE,
    LEAVE_CONTROLLER,
    SWITCH,
    WAYS_BACK,
)
from rmqpy.upgrade.steps.planning import (
    CONTROLLER as TO_CONTROLLER,
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
    def controllers(self) -> tuple[str, ...]:
        """The different ``controllerAddr`` of the members that belong to a controller."""
        found = (each.keys.get("controllerAddr", "") for each in self.members if each.controlled)
        return tuple(dict.fromkeys(found))

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
        return _working_state(facts, DLEDGER, VERIFIED, FINAL)
    lacks_old_log = facts.some(lambda each: each.mode is Mode.EMPTY) and facts.some(
        lambda each: each.mode is Mode.JOINED
    )
    if facts.some(lambda each: each.running):
        return LACKING if lacks_old_log else STARTING
    if not facts.some(lambda each: each.entries > 0):
        return SWITCHED if len({each.end for each in facts.members}) == 1 else UNEQUAL
    if facts.fits(LEAVE):
        return LEAVE_PLANNED
    if lacks_old_log:
        return _align_state(facts) or INCOMPLETE
    if not facts.every(lambda each: each.entries > 0):
        return BEHIND
    return PROVEN if facts.is_proven else HALTED


def _classic_state(facts: GroupFacts) -> State:
    if facts.some(lambda each: each.controlled):
        return _controller_state(facts)
    came_back = facts.some(lambda each: each.journal == APPLIED and each.steps in WAYS_BACK)
    some_run = facts.some(lambda each: each.running)
    if some_run and facts.every(lambda each: each.running or each.mode is Mode.EMPTY):
        return RETURNED if came_back else CLASSIC
    left_finally = [each for each in facts.members if has_left_finally(each)]
    if some_run:
        waits = any(not each.running for each in left_finally)
        return RETURNING if came_back or waits else STOPPING
    if facts.every(has_left):
        return _align_state(facts) or (LEFT_VERIFIED if facts.is_proven else LEFT)
    plans = {each.plan for each in facts.members if has_applied(each, ALIGN)}
    if len(plans) == 1 and facts.every(lambda each: has_applied(each, ALIGN)):
        return ALIGNED
    if left_finally and facts.every(lambda each: has_left(each) or has_left_finally(each)):
        return _align_state(facts) or LEFT_FINAL
    return _align_state(facts) or STOPPED


def _controller_state(facts: GroupFacts) -> State:
    """Return the state of a group of which a member leaves the roles to a controller."""
    others = [each for each in facts.members if not each.controlled]
    runs = facts.some(lambda each: each.running)
    if not others and facts.every(lambda each: each.running):
        return _working_state(facts, CONTROLLER, CONTROLLER_VERIFIED, CONTROLLER_FINAL)
    if runs:
        return MIXED if others else CONTROLLER_STARTING
    if facts.fits(LEAVE_CONTROLLER):
        left = facts.some(lambda each: has_applied(each, LEAVE_CONTROLLER))
        return LEAVING if left else LEAVE_PLANNED
    mine = [each for each in facts.members if each.controlled]
    untouched = all(has_applied(each, TO_CONTROLLER) for each in mine)
    if others:
        return HANDING_OVER if untouched and len(facts.controllers) == 1 else MIXED
    return HANDED_OVER if untouched else CONTROLLER_HALTED


def _working_state(facts: GroupFacts, unproven: State, verified: State, final: State) -> State:
    """Return which of these states a group is in whose members all run after a switch."""
    if facts.every(lambda each: each.journal in ("", FINALIZED)):
        return final
    return verified if facts.is_proven_since_the_plan else unproven


def _align_state(facts: GroupFacts) -> State | None:
    """Return how far the present plan, if it is an alignment and fits, has been carried out."""
    if not facts.fits(ALIGN):
        return None
    return ALIGNING if facts.some(lambda each: has_applied(each, ALIGN)) else PLANNED


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
