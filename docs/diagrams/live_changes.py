"""Draw the states of a switch and of a leave: tries the protocols out, and prints their transitions
as the source of a diagram.

The coordinators and the participant of ``rmqpy.broker.replication`` are given every input in every
state that they can reach, in a plan of three brokers. ``tox -e diagrams`` writes the result to
live-changes.dot; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from pathlib import Path
from typing import Final, TypeVar

from attrs import fields

from rmqpy.broker.replication.leave_protocol import SLAVE, FrozenLog, LeaveCoordinator
from rmqpy.broker.replication.switch_protocol import (
    BEFORE_FREEZE,
    Coordinator,
    Outcome,
    Participant,
    Phase,
    SwitchPlan,
)

M = TypeVar("M", Coordinator, LeaveCoordinator, Participant)
Input = Callable[[M], object]
Edges = dict[tuple[str, str], set[str]]
"""The labels of the transitions between two states."""

TARGET: Final = Path(__file__).with_name("live-changes.dot")
STATES_MAX: Final = 1000
HEAD: Final = """\
// Written by docs/diagrams/live_changes.py from the protocols themselves: run tox -e diagrams.
digraph live_changes {
    rankdir = LR
    node [shape = box, style = "rounded,filled", fillcolor = white]
    node [fontname = "sans-serif", fontsize = 11]
    edge [fontname = "sans-serif", fontsize = 9]
"""
WAITING: Final = [
    each.value for each in Phase if each not in (*BEFORE_FREEZE, Phase.COMPLETE, Phase.ABORTED)
]
"""The states in which requests that send wait."""


def plan_with(coordinator: str) -> SwitchPlan:
    brokers = {name: f"{name}:1" for name in ("n0", "n1", coordinator)}
    return SwitchPlan(switch="1", group="g", coordinator=coordinator, peers="", brokers=brokers)


def each_member(what: str, do: Callable[[M, str], object], plan: SwitchPlan) -> dict[str, Input[M]]:
    """Return an input for each broker, under one label."""

    def of(name: str) -> Input[M]:
        return lambda machine: do(machine, name)

    return {f"{what}#{name}": of(name) for name in plan.brokers}


def switch_inputs(plan: SwitchPlan) -> dict[str, Input[Coordinator]]:
    return {
        **each_member("all prepared", Coordinator.prepared, plan),
        "--postpone": postpone,
        "--resume": Coordinator.resume,
        "everything is confirmed\\nand on the disk": Coordinator.frozen,
        **each_member("all have voted:\\nthe decision is recorded", Coordinator.voted, plan),
        **each_member("all have exchanged\\ntheir logs", Coordinator.exchanged, plan),
        "not agreed in time": lambda machine: machine.abort(""),
    }


def leave_inputs(plan: SwitchPlan) -> dict[str, Input[LeaveCoordinator]]:
    def frozen(machine: LeaveCoordinator, name: str) -> object:
        return machine.frozen(name, FrozenLog(1, 1, 1) if name == "n1" else None)

    return {
        **each_member("all prepared", LeaveCoordinator.prepared, plan),
        "--postpone": postpone,
        "--resume": LeaveCoordinator.resume,
        **each_member("all are frozen", frozen, plan),
        "the slave has\\neverything": LeaveCoordinator.level,
        **each_member("all have voted:\\nthe decision is recorded", LeaveCoordinator.voted, plan),
        "the slave is master": LeaveCoordinator.taken,
        **each_member("all know the decision", LeaveCoordinator.committed, plan),
        "not agreed in time": lambda machine: machine.abort(""),
    }


def postpone(machine: Coordinator | LeaveCoordinator) -> None:
    """Postpone as the brokers do, which refuse it later."""
    if machine.phase in BEFORE_FREEZE:
        machine.postponed = True


MEMBER_INPUTS: Final[Mapping[str, Input[Participant]]] = {
    "vote is recorded": Participant.vote,
    "decision is known": lambda machine: machine.decided(Outcome.COMMITTED),
    "abort is known": lambda machine: machine.decided(Outcome.ABORTED),
}


def phase_of(machine: Coordinator | LeaveCoordinator) -> str:
    return machine.phase.value


def stage_of(machine: Participant) -> str:
    return "as before" if machine.stage is None else machine.stage.value


def content(machine: M) -> str:
    """Return all that a machine knows; sets in an order that does not depend on the process."""
    found = {each.name: getattr(machine, each.name) for each in fields(type(machine))}
    return repr({k: sorted(v) if isinstance(v, Set) else v for k, v in found.items()})


def transitions(machine: M, inputs: Mapping[str, Input[M]], state: Callable[[M], str]) -> Edges:
    """Return the transitions between the states that ``machine`` can reach."""
    edges: Edges = {}
    seen, left = {content(machine)}, [machine]
    while left:
        before = left.pop()
        for label, do in inputs.items():
            after = deepcopy(before)
            try:
                do(after)
            except ValueError:  # It refuses what contradicts what it knows.
                continue
            if state(after) != state(before):
                edges.setdefault((state(before), state(after)), set()).add(label.partition("#")[0])
            if content(after) not in seen:
                seen.add(content(after))
                left.append(after)
                assert len(seen) < STATES_MAX
    return edges


def cluster(name: str, title: str, edges: Edges, waiting: Sequence[str]) -> Iterator[str]:
    yield f"    subgraph cluster_{name} {{"
    yield f'        label = "{title}"'
    yield '        fontname = "sans-serif"'
    yield "        fontsize = 10"
    for each in dict.fromkeys(each for pair in edges for each in pair):
        grey = ", fillcolor = lightgrey" if each in waiting else ""
        yield f'        {name}_{node(each)} [label = "{each}"{grey}]'
    for (one, other), labels in edges.items():
        dashed = ", style = dashed" if other in ("aborted", "as before") else ""
        text = "" if other == "aborted" else "\\n".join(sorted(labels))
        text += ",\\npostponed" if other == "ready" else ""
        yield f'        {name}_{node(one)} -> {name}_{node(other)} [label = "{text}"{dashed}]'
    yield "    }"


def node(state: str) -> str:
    return state.replace(" ", "_")


def source() -> str:
    """Return the source of the diagram."""
    switch, leave = plan_with("n2"), plan_with(SLAVE)
    master, slave = Coordinator(switch), LeaveCoordinator(leave)
    master.begin()
    slave.begin()
    parts = [
        HEAD,
        *cluster(
            "switch",
            "switch: the master",
            transitions(master, switch_inputs(switch), phase_of),
            WAITING,
        ),
        *cluster(
            "leave",
            "leave: the slave that takes over",
            transitions(slave, leave_inputs(leave), phase_of),
            WAITING,
        ),
        *cluster(
            "member",
            "every other broker",
            transitions(Participant(switch, "n0"), MEMBER_INPUTS, stage_of),
            ["prepared"],
        ),
        "}",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
    sys.exit(0)
