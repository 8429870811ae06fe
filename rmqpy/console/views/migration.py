"""The migration of a group: where it stands among the states, and what each part of it says.

The states and their order are those of :mod:`rmqpy.upgrade.group.states`; what the members are, and
what comes next, is what ``rmqpy upgrade status --format json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define

from rmqpy.admin.elections import objects_in
from rmqpy.upgrade.group.states import (
    BACKWARD,
    CONTROLLER_HALTED,
    FORWARD,
    HALTED,
    PROVEN,
    STATES,
    NextStep,
    State,
    explanation,
)

__all__ = ["MIGRATION_VERBS", "MigrationPage", "MigrationStep", "MigrationVerb", "migration_page"]

BY_NAME: Final[Mapping[str, State]] = {each.name: each for each in STATES}


@define(slots=True, frozen=True)
class MigrationVerb:
    """A verb that the console runs: its words, and its effect for the confirmation.

    ``is_bound`` verbs depend on the state, and run only in the one in which they were confirmed.
    """

    words: tuple[str, ...]
    button: str
    effect: str
    is_bound: bool = True


MIGRATION_VERBS: Final[Mapping[str, MigrationVerb]] = {
    "next": MigrationVerb(("next", "--yes"), "Carry out the next step", ""),
    "back": MigrationVerb(("next", "--back", "--yes"), "Go a step back", ""),
    "prepare": MigrationVerb(
        ("prepare",),
        "Prepare",
        "reads the sealed files of all members at 50 MiB a second, and keeps what it has learned in"
        " their directories; brokers go on running",
        is_bound=False,
    ),
    "check": MigrationVerb(("check", "--format", "json"), "Check now", "", is_bound=False),
}
"""The verbs by the names of their buttons."""


@define(slots=True, frozen=True)
class MigrationStep:
    """A state in the stepper; ``place`` is done, current, or ahead."""

    name: str
    meaning: str
    place: str


@define(slots=True, frozen=True, kw_only=True)
class MigrationPage:
    """The whole screen. ``aside`` is whether the state is on neither way; ``back`` and ``forward``
    are the commands of the next step in either direction.
    """

    group: str
    state: str
    meaning: str
    served: str
    way_back: str
    direction: str
    steps: Sequence[MigrationStep]
    aside: bool
    members: Sequence[Mapping[str, Any]]
    contradictions: Sequence[str]
    forward: str
    forward_text: str
    has_next: bool
    has_back: bool


def migration_page(status: Mapping[str, Any]) -> MigrationPage:
    """Return the screen for the JSON form of ``rmqpy upgrade status``."""
    name = str(status.get("state", ""))
    state = BY_NAME.get(name)
    way = BACKWARD if state in BACKWARD else FORWARD
    step = _step(status.get("next"))
    contradictions = status.get("contradictions")
    texts = contradictions if isinstance(contradictions, list) else []
    idle = (NextStep.NOTHING, NextStep.LOOK, None)
    returning = state.next_step(returning=True) if state is not None else None
    return MigrationPage(
        group=str(status.get("group", "")),
        state=name,
        meaning=str(status.get("meaning", "")),
        served=str(status.get("served", "")),
        way_back=str(status.get("back", "")),
        direction="back to master and slaves" if way is BACKWARD else "to DLedger",
        steps=_steps(_shown_way(way, state), state),
        aside=state not in way,
        members=objects_in(status.get("members")),
        contradictions=[str(each) for each in texts],
        forward=str(status.get("command", "")),
        forward_text=explanation(step, state) if step is not None and state is not None else "",
        has_next=step not in idle and not texts,
        has_back=returning not in (*idle, step) and not texts,
    )


def _step(value: object) -> NextStep | None:
    return next((each for each in NextStep if each.value == value), None)


def _shown_way(way: Sequence[State], state: State | None) -> Sequence[State]:
    """Return the way without the starts of the way back that this group has not come from."""
    others = (HALTED, PROVEN) if state is CONTROLLER_HALTED else (CONTROLLER_HALTED,)
    return [each for each in way if each not in others]


def _steps(way: Sequence[State], state: State | None) -> Sequence[MigrationStep]:
    at = way.index(state) if state in way else -1
    return [
        MigrationStep(
            each.name,
            each.meaning,
            "current" if number == at else "done" if number < at else "ahead",
        )
        for number, each in enumerate(way)
    ]
