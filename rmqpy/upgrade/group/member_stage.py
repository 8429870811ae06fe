"""The stage of one member of a group, derived from its facts alone."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rmqpy.audit.facts.facts import Mode
from rmqpy.upgrade.checks.member_facts import MemberFacts
from rmqpy.upgrade.plan.journal import APPLIED, APPLYING, FINALIZED, ROLLING_BACK
from rmqpy.upgrade.steps.planning import ALIGN, SWITCH, WAYS_BACK


class MemberStage(Enum):
    """The stage of one member; the value is the text for the operator."""

    UNREACHABLE = "unreachable"
    DAMAGED = "damaged journal"
    APPLYING = "half applied"
    ROLLING_BACK = "half rolled back"
    MEMBER = "runs as member"
    CLASSIC = "runs"
    HIDDEN = "flag is off, has entries"
    SWITCHED = "switched"
    HALTED = "stopped member"
    HANDED_OVER = "handed over"
    LEFT = "has left"
    ALIGNED = "aligned"
    EMPTY = "empty"
    STOPPED = "stopped"
    UNCLEAN = "stopped uncleanly"


def stage_of(member: MemberFacts) -> MemberStage:
    """Return the stage of one member."""
    rules = (
        (bool(member.problem), MemberStage.UNREACHABLE),
        (member.journal == "damaged", MemberStage.DAMAGED),
        (member.journal == APPLYING, MemberStage.APPLYING),
        (member.journal == ROLLING_BACK, MemberStage.ROLLING_BACK),
        (member.running, MemberStage.MEMBER if member.dledger else MemberStage.CLASSIC),
        (not member.dledger and member.entries > 0, MemberStage.HIDDEN),
        (not member.clean_stop, MemberStage.UNCLEAN),
        (member.mode is Mode.EMPTY, MemberStage.EMPTY),
        (member.dledger, MemberStage.HALTED if member.entries else MemberStage.SWITCHED),
        (member.controlled, MemberStage.HANDED_OVER),
        (has_left(member) or has_left_finally(member), MemberStage.LEFT),
        (has_applied(member, ALIGN), MemberStage.ALIGNED),
    )
    return next((stage for holds, stage in rules if holds), MemberStage.STOPPED)


def has_left(member: MemberFacts) -> bool:
    """Return whether the way back was the last to change the member's logs."""
    return any(has_applied(member, steps) for steps in WAYS_BACK)


def has_left_finally(member: MemberFacts) -> bool:
    """Return whether the way back was the last to change the member's logs, and `finalize` has
    removed its undo records.
    """
    return member.journal == FINALIZED and member.steps in WAYS_BACK and member.untouched


def has_applied(member: MemberFacts, steps: Sequence[str], plan: str | None = None) -> bool:
    """Return whether a plan of these steps was the last to change the member's logs."""
    return (
        member.journal == APPLIED
        and member.steps == tuple(steps)
        and member.untouched
        and plan in (None, member.plan)
    )


def needs_rollback(member: MemberFacts) -> bool:
    """Return whether the member has switched and has no entry yet.

    ``leave`` needs entries, so until then only ``rollback`` leads back.
    """
    return member.journal == APPLIED and member.steps == SWITCH and not member.entries
