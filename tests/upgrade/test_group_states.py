"""The states of a group: derived from facts alone, each with a next step that leads on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.audit.facts.facts import Mode
from rmqpy.upgrade.checks.member_facts import MemberFacts
from rmqpy.upgrade.group.detection import GroupFacts, PlanFacts, ProofFacts, detect_state
from rmqpy.upgrade.group.member_stage import MemberStage, stage_of
from rmqpy.upgrade.group.states import (
    BACKWARD,
    FORWARD,
    STATES,
    TEXTS,
    NextStep,
    explanation,
    reaches,
)
from rmqpy.upgrade.steps.planning import ALIGN, CONTROLLER, LEAVE, LEAVE_CONTROLLER, SWITCH

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "upgrade.md"
BY_NAME = {state.name: state for state in STATES}

STOPPED: dict[str, Any] = {"mode": Mode.CLASSIC, "end": 100}
ON_THE_WAY = ("left-verified", "left-final")
"""The states from which a group can go on to a controller."""
BY_CONTROLLER = ("handed-over", "controller-starting", "controller-halted")
RUNS = {**STOPPED, "running": True}
ALIGNED = {
    **STOPPED,
    "journal": "applied",
    "steps": ALIGN,
    "plan": "p1",
    "untouched": True,
    "since_ms": 10,
}
SWITCHED = {**ALIGNED, "steps": SWITCH, "plan": "p2", "dledger": True, "since_ms": 20}
MEMBER = {**SWITCHED, "mode": Mode.JOINED, "entries": 7, "end": 200, "untouched": False}
FRESH = {"dledger": True}
REFILL = PlanFacts(id="p5", steps=ALIGN, ends={"n0": 200, "n1": 200, "n2": 0})
REFILLED = {"journal": "applied", "steps": ALIGN, "plan": "p5", "untouched": True, "since_ms": 30}
LEFT = {**ALIGNED, "steps": LEAVE, "plan": "p3", "end": 200, "since_ms": 40}
GIVEN_UP = {**LEFT, "journal": "finalized"}
"""``finalize`` has removed the undo records of the way back."""
CONTROL = {"enableControllerMode": "true", "controllerAddr": "c:1"}
CONTROLLED = {**STOPPED, "keys": CONTROL}
HANDED = {**CONTROLLED, **ALIGNED, "steps": CONTROLLER, "plan": "p6", "since_ms": 20}
ALIGNMENT = PlanFacts(id="p1", steps=ALIGN, ends={"n0": 100, "n1": 100, "n2": 100})
FROM_CONTROLLER = PlanFacts(id="p7", steps=LEAVE_CONTROLLER, ends=ALIGNMENT.ends)
FREED = {**ALIGNED, "steps": LEAVE_CONTROLLER, "plan": "p7", "since_ms": 40}
AGAIN = PlanFacts(id="p8", steps=ALIGN, ends={"n0": 200, "n1": 200, "n2": 200})
WAY_BACK = PlanFacts(id="p3", steps=LEAVE, ends={"n0": 200, "n1": 200, "n2": 200})


def proof(made_ms: int = 30, end: int = 200, holds: bool = True) -> ProofFacts:
    return ProofFacts(made_ms=made_ms, holds=holds, ends={f"n{n}": end for n in range(3)})


def up(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "running": True}


CASES: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("classic", [RUNS, RUNS, {"mode": Mode.EMPTY}], {}),
    ("classic", [up(ALIGNED)] * 3, {"plan": ALIGNMENT}),
    ("stopping", [RUNS, STOPPED, STOPPED], {}),
    ("stopped", [STOPPED] * 3, {}),
    ("stopped", [{"mode": Mode.EMPTY}] * 3, {}),
    ("stopped", [{**STOPPED, "end": 101}, STOPPED, STOPPED], {"plan": ALIGNMENT}),
    ("stopped", [{**ALIGNED, "untouched": False, "end": 101}] * 3, {"plan": ALIGNMENT}),
    ("stopped", [ALIGNED, ALIGNED, {**ALIGNED, "plan": "p0", "end": 90}], {"plan": ALIGNMENT}),
    ("planned", [STOPPED] * 3, {"plan": ALIGNMENT}),
    ("planned", [{**STOPPED, "journal": "rolled_back"}] * 3, {"plan": ALIGNMENT}),
    ("aligning", [ALIGNED, STOPPED, STOPPED], {"plan": ALIGNMENT}),
    ("aligned", [ALIGNED] * 3, {}),
    ("switching", [SWITCHED, ALIGNED, ALIGNED], {}),
    ("switched", [SWITCHED] * 3, {"plan": ALIGNMENT}),
    ("switched", [FRESH] * 3, {}),
    ("unequal", [{**STOPPED, "dledger": True}, {**STOPPED, "dledger": True, "end": 90}], {}),
    ("unequal", [SWITCHED, SWITCHED, FRESH], {}),
    ("starting", [up(SWITCHED), SWITCHED, SWITCHED], {}),
    ("starting", [up(MEMBER), up(MEMBER), MEMBER], {}),
    ("dledger", [up(MEMBER)] * 3, {}),
    ("dledger", [up(MEMBER)] * 3, {"proof": proof(made_ms=19)}),
    ("dledger", [up(MEMBER)] * 3, {"proof": proof(holds=False)}),
    ("verified", [up(MEMBER)] * 3, {"proof": proof()}),
    ("final", [up({**MEMBER, "journal": "finalized"})] * 3, {"proof": proof()}),
    ("halted", [MEMBER] * 3, {"proof": proof(end=199)}),
    ("proven", [MEMBER] * 3, {"proof": proof()}),
    ("incomplete", [MEMBER, MEMBER, FRESH], {}),
    ("incomplete", [MEMBER, MEMBER, FRESH], {"proof": proof()}),
    ("planned", [MEMBER, MEMBER, FRESH], {"plan": REFILL}),
    ("aligning", [{**MEMBER, **REFILLED}, MEMBER, FRESH], {"plan": REFILL}),
    ("behind", [{**MEMBER, **REFILLED}] * 2 + [{**FRESH, **STOPPED, **REFILLED}], {"plan": REFILL}),
    ("behind", [MEMBER, MEMBER, SWITCHED], {}),
    ("behind", [{**MEMBER, "mode": Mode.DLEDGER}] * 2 + [FRESH], {}),
    ("lacking", [up(MEMBER), up(MEMBER), FRESH], {}),
    ("starting", [up({**MEMBER, "mode": Mode.DLEDGER})] * 2 + [FRESH], {}),
    ("leave-planned", [MEMBER] * 3, {"plan": WAY_BACK, "proof": proof()}),
    ("halted", [{**MEMBER, "end": 201}, MEMBER, MEMBER], {"plan": WAY_BACK, "proof": proof()}),
    ("leaving", [LEFT, MEMBER, MEMBER], {"plan": WAY_BACK}),
    ("left", [LEFT] * 3, {"plan": WAY_BACK}),
    ("left", [LEFT] * 3, {"proof": proof(made_ms=39)}),
    ("left-verified", [LEFT] * 3, {"proof": proof(made_ms=41)}),
    ("returning", [up(LEFT), LEFT, LEFT], {}),
    ("returned", [up({**LEFT, "untouched": False})] * 3, {}),
    ("classic", [up(GIVEN_UP)] * 3, {}),
    ("left-final", [GIVEN_UP] * 3, {}),
    ("left-final", [GIVEN_UP] * 3, {"proof": proof(made_ms=41)}),
    ("left-final", [GIVEN_UP, LEFT, LEFT], {}),
    ("left-final", [{**GIVEN_UP, "steps": LEAVE_CONTROLLER}] * 3, {}),
    ("planned", [LEFT] * 3, {"plan": AGAIN, "proof": proof(made_ms=41)}),
    ("planned", [GIVEN_UP] * 3, {"plan": AGAIN}),
    ("returning", [up({**GIVEN_UP, "untouched": False}), GIVEN_UP, GIVEN_UP], {}),
    ("stopping", [up(GIVEN_UP), {**GIVEN_UP, "untouched": False}], {}),
    ("stopped", [{**LEFT, "untouched": False, "end": 300}] * 3, {}),
    ("stopped", [{**GIVEN_UP, "untouched": False, "end": 300}] * 3, {}),
    ("handing-over", [HANDED, ALIGNED, ALIGNED], {}),
    ("handed-over", [HANDED] * 3, {}),
    ("controller-halted", [{**HANDED, "untouched": False}] * 3, {}),
    ("controller-halted", [CONTROLLED] * 3, {}),
    ("leave-planned", [CONTROLLED] * 3, {"plan": FROM_CONTROLLER}),
    ("leaving", [FREED, CONTROLLED, CONTROLLED], {"plan": FROM_CONTROLLER}),
    ("left", [FREED] * 3, {"plan": FROM_CONTROLLER}),
    ("left-verified", [FREED] * 3, {"proof": proof(made_ms=41, end=100)}),
    ("returned", [up({**FREED, "untouched": False})] * 3, {}),
    ("mixed", [up(CONTROLLED), STOPPED, STOPPED], {}),
    ("controller-starting", [up(CONTROLLED), CONTROLLED, CONTROLLED], {}),
    ("controller", [up({**HANDED, "untouched": False})] * 3, {"proof": proof(made_ms=19)}),
    ("controller-verified", [up({**HANDED, "untouched": False})] * 3, {"proof": proof()}),
    ("controller-final", [up({**HANDED, "journal": "finalized"})] * 3, {"proof": proof()}),
    ("controller-final", [up(CONTROLLED)] * 3, {}),
    ("handing-over", [HANDED, ALIGNED, STOPPED], {}),
    ("mixed", [HANDED, up(ALIGNED), ALIGNED], {}),
    ("mixed", [up(HANDED), ALIGNED, ALIGNED], {}),
    (
        "mixed",
        [HANDED, {**HANDED, "keys": {**CONTROL, "controllerAddr": "d:1"}}, ALIGNED],
        {},
    ),
    ("mixed", [CONTROLLED, STOPPED, STOPPED], {}),
    ("interrupted", [{**STOPPED, "journal": "applying"}, STOPPED, STOPPED], {}),
    ("rolling-back", [{**STOPPED, "journal": "rolling_back"}, STOPPED, STOPPED], {}),
    ("hidden", [{**MEMBER, "dledger": False}, MEMBER, MEMBER], {}),
    ("mixed", [up(SWITCHED), RUNS, RUNS], {}),
    ("mixed", [MEMBER, STOPPED, STOPPED], {}),
    ("damaged", [{**STOPPED, "journal": "damaged"}, STOPPED, STOPPED], {}),
    ("unreachable", [{"problem": "no answer"}, STOPPED, STOPPED], {}),
]


def group(rows: list[dict[str, Any]], more: dict[str, Any]) -> GroupFacts:
    members = tuple(MemberFacts(name=f"n{number}", **row) for number, row in enumerate(rows))
    return GroupFacts(members=members, **more)


@pytest.mark.parametrize(("name", "rows", "more"), CASES)
def test_the_state_follows_from_the_facts(
    name: str, rows: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    assert detect_state(group(rows, more)).name == name


def test_every_state_is_reached_by_a_case() -> None:
    assert {name for name, _, _ in CASES} == set(BY_NAME)


def test_every_state_has_a_name_a_next_step_and_a_way_back() -> None:
    assert len(BY_NAME) == len(STATES)
    for state in STATES:
        assert state.meaning and state.served and state.back and TEXTS[state.next]


@given(
    rows=st.lists(
        st.sampled_from([row for _, rows, _ in CASES for row in rows]), min_size=2, max_size=4
    ),
    plan=st.sampled_from([None, ALIGNMENT, WAY_BACK]),
    proven=st.sampled_from([None, proof(), proof(end=100)]),
)
def test_any_facts_have_a_state(
    rows: list[dict[str, Any]], plan: PlanFacts | None, proven: ProofFacts | None
) -> None:
    facts = group(rows, {"plan": plan, "proof": proven})
    state = detect_state(facts)
    assert state in STATES
    reordered = evolve(facts, members=tuple(reversed(facts.members)))
    assert detect_state(reordered) is state
    for member in facts.members:
        stage_of(member)


def test_an_empty_member_is_said_to_be_empty_with_and_without_the_flag() -> None:
    for row in (FRESH, {"mode": Mode.EMPTY}):
        assert stage_of(group([row], {}).members[0]) is MemberStage.EMPTY


def test_a_group_that_works_is_not_told_to_stop_without_a_reason() -> None:
    assert "if the group is to be switched" in explanation(NextStep.STOP, BY_NAME["classic"])
    assert "switched" not in explanation(NextStep.STOP, BY_NAME["dledger"])


def test_only_a_controller_group_is_told_of_its_controller() -> None:
    for state in STATES:
        text = explanation(NextStep.START, state)
        assert text.startswith("the controller") is (state.name in BY_CONTROLLER), state.name
        assert ("a controller of 5.x" in text) is (state.name in ON_THE_WAY), state.name


def test_the_master_that_a_controller_elects_is_stopped_last() -> None:
    for state in STATES:
        text = explanation(NextStep.STOP, state)
        runs = state.name.startswith("controller") and state.name != "controller-halted"
        assert text.startswith("the slaves, then the master") is runs, state.name


def test_members_of_a_group_that_elects_have_no_master_to_start_first() -> None:
    for state in STATES:
        starts = NextStep.START in (state.next, state.returning)
        elects = "elect" in explanation(NextStep.START, state)
        assert elects is (starts and state.name in ("switched", "starting", "proven", "behind"))


def test_only_running_groups_are_said_to_be_served() -> None:
    for name, rows, _ in CASES:
        runs = any(row.get("running") for row in rows)
        if BY_NAME[name].served.startswith("yes"):
            assert all(row.get("running") or row["mode"] is Mode.EMPTY for row in rows), name
        if name not in ("mixed", "unreachable"):
            assert runs or BY_NAME[name].served == "no", name


def test_a_later_state_reaches_an_earlier_one_of_its_way_only() -> None:
    for way in (FORWARD, BACKWARD):
        for earlier, later in itertools.pairwise(way):
            if earlier.name != "classic":
                assert reaches(later, earlier)
            assert not reaches(earlier, later)
    assert not reaches(BY_NAME["verified"], BY_NAME["classic"]), "the way to it is the way back"
    assert not reaches(BY_NAME["verified"], BY_NAME["returned"])
    for name in ("left", "left-verified"):
        assert reaches(BY_NAME[name], BY_NAME["stopped"]), "on the way to a controller"
        assert not reaches(BY_NAME[name], BY_NAME["aligned"])


def test_a_way_back_that_is_final_has_come_as_far_as_before() -> None:
    final, classic = BY_NAME["left-final"], BY_NAME["classic"]
    assert reaches(final, BY_NAME["left-verified"]) and not reaches(final, BY_NAME["returned"])
    assert reaches(classic, BY_NAME["returned"]) and not reaches(classic, BY_NAME["halted"])


def test_the_page_lists_every_state() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("| state | ", 1)[1].split("\n\n")[0].splitlines()[2:]
    expected = []
    for state in STATES:
        step = f"`{state.next.value}`" if state.next is not NextStep.NOTHING else "none"
        if state.returning is not None:
            back = (
                f"`{state.returning.value}`" if state.returning is not NextStep.NOTHING else "none"
            )
            step += f"; to go back {back}"
        expected.append(
            f"| `{state.name}` | {state.meaning} | {state.served} | {step} | {state.back} |"
        )
    assert table == expected
