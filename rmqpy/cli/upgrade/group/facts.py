"""Collect the facts from which the state of a group is detected, member by member."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from attrs import define

from rmqpy.cli.upgrade.base.replicas import all_replicas
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from pathlib import Path

    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.checks.member_facts import MemberFacts
    from rmqpy.upgrade.group.detection import GroupFacts, PlanFacts, ProofFacts
    from rmqpy.upgrade.group.group_file import MemberSpec
    from rmqpy.upgrade.group.states import State


@define(slots=True, frozen=True)
class GroupView:
    """The facts of a group, its state, and the contradictions with the members' broker.conf."""

    facts: GroupFacts
    state: State
    contradictions: tuple[str, ...]


def view_group(options: argparse.Namespace, group: GivenGroup) -> GroupView:
    """Return the present state of a group. Members that cannot be read say so."""
    from rmqpy.upgrade.group.contradictions import contradictions
    from rmqpy.upgrade.group.detection import GroupFacts, detect_state

    members = tuple(_facts_of(options, each) for each in group.file.members)
    facts = GroupFacts(
        members=members, plan=_plan_facts(group.plan), proof=_proof_facts(group.certificate)
    )
    wrong = [
        text
        for each in members
        if not each.problem
        for text in contradictions(group.file, group.file.member(each.name), each.keys)
    ]
    return GroupView(facts, detect_state(facts), tuple(wrong))


def _facts_of(options: argparse.Namespace, member: MemberSpec) -> MemberFacts:
    from rmqpy.upgrade.checks.member_facts import MemberFacts

    mine = argparse.Namespace(**vars(options))
    mine.replica, mine.may_be_empty = [member.replica], True
    mine.config = [each for each in options.config if each.startswith(f"{member.name}=")]
    try:
        (replica,) = all_replicas(mine)
        return replica.facts()
    except RmqError as error:
        return MemberFacts(name=member.name, problem=str(error))


def _plan_facts(path: Path) -> PlanFacts | None:
    from rmqpy.upgrade.group.detection import PlanFacts
    from rmqpy.upgrade.plan.plan import Plan

    tree = _tree(path)
    if tree is None:
        return None
    try:
        plan = Plan.from_json(tree)
        replicas = plan.facts["replicas"]
        ends = {name: int(facts["end"]) for name, facts in replicas.items()}
    except (RmqError, KeyError, TypeError, ValueError, AttributeError):
        return None  # ``apply`` says what is wrong with it.
    return PlanFacts(id=plan.id, steps=plan.steps, ends=ends)


def _proof_facts(path: Path) -> ProofFacts | None:
    from rmqpy.audit.replicas.certificate import Certificate
    from rmqpy.upgrade.group.detection import ProofFacts

    try:
        certificate = Certificate.decode(path.read_bytes())
    except (RmqError, OSError):
        return None
    ends = {each.name: each.end for each in certificate.subjects}
    return ProofFacts(made_ms=certificate.made_ms, holds=certificate.holds, ends=ends)


def _tree(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) else None
