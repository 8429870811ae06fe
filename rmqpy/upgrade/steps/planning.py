"""Plans of the verbs: which steps, in which order, joined to one part a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve

from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.operations import MoveAside
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.steps.align import plan_align
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState, detect, load_step

ALIGN = ("m0001_baseline", "m0002_align")
SWITCH = ("m0003_seal", "m0004_join")
LEAVE = ("m0006_leave",)


def plan_alignment(situation: PlanContext) -> Plan:
    """Raises UpgradeRefusedError (Diverged, with both sides) when only the operator can go on."""
    state = detect(situation.group)
    reference = situation.reference
    _check_divides(situation)
    compared = {
        name: {"relation": each.relation.value, "common_end": each.common_end}
        for name, each in reference.others.items()
    }
    facts: dict[str, Any] = {
        "state": state.value,
        "reference": reference.replica.name,
        "why": reference.why,
        "end": reference.replica.survey().manifest.end,
        "others": compared,
        **_baseline(situation),
    }
    conflicts = [*situation.merged.conflicts, *_given_twice(situation)]
    return _plan(situation, ALIGN, facts, conflicts)


def plan_joining(situation: PlanContext, name: str) -> Plan:
    """For one replica that the group has refused: what it lacks of the reference's old log and
    tables. The reference may be running: its old log does not change any more. Raises
    UpgradeRefusedError for a replica that has entries of its own at other offsets.
    """
    replica, reference = situation.group.replica(name), situation.reference
    if not classic_log(reference.replica).files:
        raise UpgradeRefusedError(f"{reference.replica.name} has no old log to give")
    _check_divides(situation)
    part = plan_align(situation, replica)
    aside = list(_empty_ledgers(situation, replica, part.keep))
    facts = {"reference": reference.replica.name, **_baseline(situation)}
    conflicts = (*situation.merged.conflicts,)
    part = evolve(part, ops=(*aside, *part.ops))
    return Plan(steps=ALIGN, nodes=(part,), facts=facts, conflicts=conflicts)


def _empty_ledgers(situation: PlanContext, replica: Replica, keep: str) -> Iterator[MoveAside]:
    """What a refused start has made: no entry is in it, and it may begin at a wrong offset."""
    survey = replica.survey()
    if survey.has_entries:
        return
    for name in situation.files.list_dir(survey.root):
        if name.startswith("dledger-"):
            yield MoveAside(
                path=f"{survey.root}/{name}",
                to=f"{keep}/{name}",
                why="no entry is in it, and it begins elsewhere",
            )


def plan_switch(situation: PlanContext) -> Plan:
    """For the nodes of this host; all that are shown must be aligned."""
    state = detect(situation.group)
    if state not in (GroupState.ALIGNED, GroupState.SEALED):
        raise UpgradeRefusedError(
            f"the replicas are {state.value}: rmqpy upgrade plan and apply align them first"
        )
    if not situation.on_this_host:
        raise UpgradeRefusedError(
            "switch changes the directories of this host: none of them is shown"
        )
    facts = {"state": state.value, **_baseline(situation)}
    return _plan(situation, SWITCH, facts, [])


def plan_leaving(situation: PlanContext) -> Plan:
    state = detect(situation.group)
    if state not in (GroupState.JOINED, GroupState.DLEDGER_ONLY):
        raise UpgradeRefusedError(f"the replicas are {state.value}: only DLedger stores leave")
    return _plan(situation, LEAVE, {"state": state.value, **_baseline(situation)}, [])


def _baseline(situation: PlanContext) -> dict[str, Any]:
    """What the replicas were when the plan was made."""
    return {
        "replicas": {
            survey.name: {
                "root": survey.root,
                "begin": survey.manifest.begin,
                "end": survey.manifest.end,
                "messages": survey.manifest.messages,
            }
            for survey in situation.group.surveys
        }
    }


def _plan(
    situation: PlanContext, steps: Sequence[str], facts: dict[str, Any], conflicts: list[str]
) -> Plan:
    parts: dict[str, NodePlan] = {}
    for name in steps:
        made = load_step(name).plan(situation)
        assert isinstance(made, list)
        for part in made:
            before = parts.get(part.replica)
            parts[part.replica] = part if before is None else _joined(before, part)
    return Plan(
        steps=tuple(steps), nodes=tuple(parts.values()), facts=facts, conflicts=tuple(conflicts)
    )


def _joined(one: NodePlan, two: NodePlan) -> NodePlan:
    return NodePlan(
        replica=one.replica,
        root=one.root,
        keep=one.keep,
        ops=(*one.ops, *two.ops),
        notes=(*one.notes, *two.notes),
    )


def _check_divides(situation: PlanContext) -> None:
    """Where there is DLedger data already it must begin where the reference's old log ends, and
    nothing may have been written to that since: then the old part can still be aligned in front.
    """
    reference = situation.reference.replica
    files = classic_log(reference).files
    ends = files[-1].end_offset if files else situation.group.divide(reference)
    with_entries = [survey for survey in situation.group.surveys if survey.has_entries]
    for survey in with_entries:
        ledger = survey.manifest.facts.get("ledger")
        if ledger and ledger["begin"] != ends:
            raise UpgradeRefusedError(
                f"{survey.name}: its DLedger log begins at {ledger['begin']}, the old log of"
                f" {reference.name} ends at {ends}: entries and old messages have the same"
                " offsets, or none have those between. Keep all directories, export what only the"
                " DLedger log has, and begin again from the stores as they were before the switch"
            )
    if with_entries and files and not files[-1].sealed:
        raise UpgradeRefusedError(
            f"the old log of {reference.name} was written to after the switch, while the flag was"
            " off: its last messages have the queue offsets of entries. Keep all directories,"
            f" export what only {reference.name} has, and choose a member whose old log was not"
            " touched with --reference NAME: those messages are moved aside"
        )


def _given_twice(situation: PlanContext) -> list[str]:
    """Queue offsets that a wrong upgrade has given to two messages: no alignment mends that."""
    return [
        f"{survey.name}: {each.get('topic')} queue {each.get('queue_id')}: the message at offset"
        f" {each.get('offset')} has queue offset {each.get('found')} where {each.get('expected')}"
        " follows; where an older message has it too, consumers get the older one, and both are"
        " found by key and by id"
        for survey in situation.group.surveys
        for each in survey.found
        if each["code"] == "QUEUE_STEP"
        and each["file"].startswith("dledger-")
        and int(each["found"]) < int(each["expected"])
    ]
