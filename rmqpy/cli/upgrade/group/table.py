"""Render the state of a group: one table, what it means, and the next command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rmqpy.cli.terminal import Rows

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.group.facts import GroupView
    from rmqpy.upgrade.checks.member_facts import MemberFacts
    from rmqpy.upgrade.group.detection import GroupFacts, ProofFacts
    from rmqpy.upgrade.group.group_file import GroupFile
    from rmqpy.upgrade.group.states import NextStep, State

HEAD = ("member", "role", "state", "since", "log end", "last proof")


Roles = Mapping[str, str]
"""The present roles of running brokers, by member."""


def group_lines(
    group: GroupFile, view: GroupView, step: NextStep, roles: Roles, now_ms: int
) -> Iterator[str | Rows]:
    """Yield the state, the table, and the next step."""
    from rmqpy.upgrade.group.states import explanation

    state = view.state
    yield f"group {group.broker}: {state.name}; {state.meaning}"
    yield f"clients are served: {state.served}"
    proof = view.facts.proof
    yield Rows(HEAD, [_row(group, each, proof, roles, now_ms) for each in view.facts.members])
    for each in view.facts.members:
        for text in (each.problem, each.damage):
            if text:
                yield f"{each.name}: {text.removeprefix(f'{each.name}: ')}"
    yield from view.contradictions
    yield f"next: {command_of(step, view.facts)} ({explanation(step, view.state)})"
    yield f"way back: {_back(state)}"


def state_lines(group: GroupFile, view: GroupView, step: NextStep) -> Iterator[str]:
    """Yield the state and the next command."""
    from rmqpy.upgrade.group.states import explanation

    yield f"group {group.broker}: {view.state.name}; {view.state.meaning}"
    yield f"next: {command_of(step, view.facts)} ({explanation(step, view.state)})"


def state_json(group: GroupFile, view: GroupView, step: NextStep) -> dict[str, Any]:
    state = view.state
    return {
        "group": group.broker,
        "state": state.name,
        "meaning": state.meaning,
        "served": state.served,
        "next": step.value,
        "command": command_of(step, view.facts),
        "back": _back(state),
    }


def group_json(
    group: GroupFile, view: GroupView, step: NextStep, roles: Roles, now_ms: int
) -> dict[str, Any]:
    proof = view.facts.proof
    return {
        **state_json(group, view, step),
        "members": [
            dict(
                zip(
                    ("member", "role", "state", "since", "end", "proof"),
                    _row(group, each, proof, roles, now_ms),
                    strict=True,
                )
            )
            | {
                "role_now": roles.get(each.name),
                "plan": each.plan,
                "journal": each.journal,
                "problem": each.problem or each.damage,
            }
            for each in view.facts.members
        ],
        "contradictions": list(view.contradictions),
    }


def _back(state: State) -> str:
    """Return the way back with its commands as they are typed."""
    return re.sub(r"`(\w+)`", r"rmqpy upgrade \1", state.back)


def command_of(step: NextStep, facts: GroupFacts) -> str:
    """Return the command of a step, or the words for what the operator does."""
    from rmqpy.upgrade.group.states import NextStep

    match step:
        case NextStep.STOP | NextStep.START:
            return f"{step.value} the brokers"
        case NextStep.LOOK:
            return "rmqpy upgrade check"
        case NextStep.RESUME:
            return "rmqpy upgrade apply"
        case NextStep.HAND_OVER:
            controllers = shlex.quote(";".join(facts.controllers))
            return f"rmqpy upgrade switch --to controller --controllers {controllers}"
        case NextStep.NOTHING:
            return "nothing"
    return f"rmqpy upgrade {step.value}"


def _row(
    group: GroupFile, member: MemberFacts, proof: ProofFacts | None, roles: Roles, now_ms: int
) -> tuple[str, ...]:
    from rmqpy.upgrade.group.member_stage import stage_of

    given = group.member(member.name)
    if member.problem:
        return (member.name, f"{given.role} (configured)", stage_of(member).value, "-", "-", "-")
    configured = member.keys.get("brokerRole")
    if member.dledger or member.controlled:
        configured = f"member {given.id}" if member.dledger else "the controller's"
    role = roles.get(member.name) or f"{configured or given.role} (configured)"
    since_ms = max(member.turned_ms, member.since_ms if member.journal else 0)
    return (
        member.name,
        role,
        stage_of(member).value,
        _time(since_ms) if since_ms else "-",
        f"{member.end}",
        _proof(member, proof, now_ms),
    )


def _proof(member: MemberFacts, proof: ProofFacts | None, now_ms: int) -> str:
    if proof is None or member.name not in proof.ends:
        return "never"
    age = f"{_duration(now_ms - proof.made_ms)} ago"
    if not proof.holds:
        return f"{age}, failed"
    grown = member.end - proof.ends[member.name]
    if not grown:
        return age
    return f"{age}, {abs(grown)} bytes {'more' if grown > 0 else 'less'} now"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _duration(elapsed_ms: int) -> str:
    seconds = max(elapsed_ms, 0) // 1000
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
