"""The step of the upgrade that a member has taken last: what a plan in its directory did."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from rmqpy.upgrade.steps.planning import ALIGN, CONTROLLER, LEAVE, LEAVE_CONTROLLER, SWITCH


class TakenStep(Enum):
    """A kind of plan."""

    ALIGNMENT = "the alignment"
    SWITCH = "the switch"
    LEAVE = "the way back"
    OTHER = "another plan"


_BY_STEPS: dict[tuple[str, ...], TakenStep] = {
    ALIGN: TakenStep.ALIGNMENT,
    SWITCH: TakenStep.SWITCH,
    CONTROLLER: TakenStep.SWITCH,
    LEAVE: TakenStep.LEAVE,
    LEAVE_CONTROLLER: TakenStep.LEAVE,
}


def step_of(steps: Iterable[str]) -> TakenStep:
    """Return the kind of a plan with these migrations."""
    return _BY_STEPS.get(tuple(steps), TakenStep.OTHER)


def newest_step(taken: Iterable[tuple[TakenStep, int]]) -> TakenStep | None:
    """Return the step that was taken last, or None. ``taken`` has steps with their begin in ms."""
    newest = max(taken, key=lambda each: each[1], default=None)
    return None if newest is None else newest[0]
