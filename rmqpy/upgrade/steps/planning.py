"""The plans of the commands: their steps in order, merged into one part per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from attrs import evolve

from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.operations import MoveAside
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.steps.diverged_entries import drop_diverged
from rmqpy.upgrade.steps.given_up import beyond_reference, fact_of
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.preconditions import (
    BEFORE_ALIGNMENT,
    BEFORE_CONTROLLER,
    BEFORE_LEAVING,
    BEFORE_SWITCH,
    refuse_findings,
    refuse_half_done,
)
from rmqpy.upgrade.steps.states import (
    AlignStep,
    GroupState,
    LeaveStep,
    detect,
    is_controlled,
    load_step,
)

ALIGN = ("m0001_baseline", "m0002_align")
SWITCH = ("m0003_seal", "m0004_join")
LEAVE = ("m0006_leave",)
CONTROLLER = ("m0007_controller",)
LEAVE_CONTROLLER = ("m0008_leave_controller",)
WAYS_BACK = (LEAVE, LEAVE_CONTROLLER)


def plan_alignment(context: PlanContext) -> Plan:
    """Return the plan that makes all replicas equal.

    Raise UpgradeRefusedError when only the operator can decide (DivergedError, with both sides).
    """
    refuse_half_done(context)
    refuse_findings(context, BEFORE_ALIGNMENT, "the replicas cannot be one group")
    state = detect(context.group)
    reference = context.reference
    _check_divides(context)
    compared = {
        name: {"verdict": each.relation.word.value, "common_end": each.common_end}
        for name, each in reference.others.items()
    }
    facts: dict[str, Any] = {
        "state": state.value,
        "reference": reference.replica.name,
        "why": reference.why,
        "end": reference.replica.survey().manifest.end,
        "others": compared,
        **beyond_reference(context, context.group.replicas),
        **_baseline(context),
    }
    conflicts = [*context.merged.conflicts, *_duplicate_queue_offsets(context)]
    return _plan(context, ALIGN, facts, conflicts)


def plan_joining(context: PlanContext, name: str, *, given_up: bool = False) -> Plan:
    """Return the plan with which one replica that its group refuses can join again.

    The replica receives the missing parts of the reference's old log and tables, and loses the
    committed entries that the group does not have; ``given_up`` says that the operator gives up
    messages (:func:`drop_diverged`). The reference may be running, because its old
    log and its committed entries no longer change. Raise UpgradeRefusedError for a replica that has
    entries at other offsets.
    """
    refuse_findings(context, BEFORE_ALIGNMENT, "the replicas cannot be one group")
    replica, reference = context.group.replica(name), context.reference
    if not isinstance(replica, LocalReplica):
        raise UpgradeRefusedError(f"{name} is on another host; run join on the host of the member")
    if not classic_log(reference.replica).files and not reference.replica.survey().has_entries:
        raise UpgradeRefusedError(
            f"{reference.replica.name}: found neither an old log nor entries, expected a member of"
            f" the group that {name} is to join; give another one with --from"
        )
    facts: dict[str, Any] = {"reference": reference.replica.name, **_baseline(context)}
    part = _old_log_part(context, replica)
    if classic_log(reference.replica).files:
        facts |= beyond_reference(context, [replica])
    diverged = drop_diverged(context, replica, part.keep, given_up=given_up)
    if diverged is not None:
        aside = {op.path for op in part.ops if isinstance(op, MoveAside)}
        more = (op for op in diverged.ops if not (isinstance(op, MoveAside) and op.path in aside))
        part = evolve(part, ops=(*part.ops, *more), notes=(*part.notes, diverged.note))
        facts |= fact_of(diverged.topics, {name: diverged.topics.total()})
    conflicts = (*context.merged.conflicts,)
    return Plan(steps=ALIGN, nodes=(part,), facts=facts, conflicts=conflicts)


def _old_log_part(context: PlanContext, replica: LocalReplica) -> NodePlan:
    """Return the part that gives ``replica`` the old log of the reference.

    Nothing is done if the reference has none: it has expired there, and will expire here.
    """
    keep = context.keep_folder(replica)
    part = NodePlan(replica=replica.name, root=replica.root, keep=keep, ops=())
    if not classic_log(context.reference.replica).files:
        return part
    _check_divides(context)
    align = cast(AlignStep, load_step("m0002_align"))
    part = align.plan_replica(context, replica, may_be_unclean=True)
    aside = _move_empty_ledgers(context, replica, part.keep)
    return evolve(part, ops=(*aside, *part.ops))


def _move_empty_ledgers(context: PlanContext, replica: Replica, keep: str) -> Iterator[MoveAside]:
    """Move aside the empty ledgers of a refused start, which may begin at a wrong offset."""
    survey = replica.survey()
    if survey.has_entries:
        return
    for name in context.files.list_dir(survey.root):
        if name.startswith("dledger-"):
            yield MoveAside(
                path=f"{survey.root}/{name}",
                to=f"{keep}/{name}",
                why="it holds no entry, and begins at another offset",
            )


def plan_switch(context: PlanContext) -> Plan:
    """Return the plan for the nodes of this host; all given replicas must be aligned.

    It leads to DLedger, or to a controller of 5.x if the options have its addresses.
    """
    state = detect(context.group)
    if state not in (GroupState.ALIGNED, GroupState.SEALED):
        refuse_half_done(context)
        raise UpgradeRefusedError(
            f"found {state.text}, expected equal classic logs; {_before_switch(state)}"
        )
    if not context.on_this_host:
        raise UpgradeRefusedError(
            "switch changes directories of this host, and no replica given is one of them"
        )
    to_controller = bool(context.options.controllers)
    checks = BEFORE_CONTROLLER if to_controller else BEFORE_SWITCH
    refuse_findings(context, checks, "the replicas are not ready for a switch")
    facts = {"state": state.value, **_baseline(context)}
    return _plan(context, CONTROLLER if to_controller else SWITCH, facts, [])


def _before_switch(state: GroupState) -> str:
    """Return what leads from another state to that before a switch."""
    if state in (GroupState.JOINED, GroupState.DLEDGER_ONLY):
        return "rmqpy upgrade leave makes a classic log of their entries first"
    if state is GroupState.CONTROLLED:
        return "they belong to a controller; rmqpy upgrade rollback or leave takes that back"
    return "rmqpy upgrade plan and apply align them first"


def _before_leave(state: GroupState) -> str:
    """Return what to do in a state in which nothing can leave."""
    if state is GroupState.MIXED:
        return (
            "leave works on all members at once: give all of them, or rmqpy upgrade join the rest"
        )
    if state is GroupState.SEALED:
        return "rmqpy upgrade rollback takes a switch without entries back"
    return "they are master and slaves already: start the brokers as they are"


def plan_leaving(context: PlanContext) -> Plan:
    """Return the plan of the way back for the members of this host."""
    refuse_half_done(context)
    if is_controlled(context.group):
        return _plan_leaving_controller(context)
    if context.options.reference is not None:
        raise UpgradeRefusedError(
            f"found --reference {context.options.reference}, expected none: in a DLedger group the"
            " terms of the entries decide; leave it out, or give --cut-index"
        )
    state = detect(context.group)
    if state not in (GroupState.JOINED, GroupState.DLEDGER_ONLY):
        raise UpgradeRefusedError(
            f"found {state.text}, expected a DLedger log with entries in every replica;"
            f" {_before_leave(state)}"
        )
    names = BEFORE_LEAVING
    if state is GroupState.DLEDGER_ONLY:
        # Without an old log there is no divide; members may have expired different files.
        names = tuple(name for name in names if name != "same-divide")
    refuse_findings(context, names, "the members cannot leave as they are, nothing was changed")
    step = cast(LeaveStep, load_step("m0006_leave"))
    facts = {"state": state.value, **step.given_up(context), **_baseline(context)}
    return _plan(context, LEAVE, facts, [])


def _plan_leaving_controller(context: PlanContext) -> Plan:
    refuse_findings(context, BEFORE_ALIGNMENT, "the replicas cannot be one group")
    if context.options.cut_index is not None:
        raise UpgradeRefusedError(
            f"found --cut-index {context.options.cut_index}, expected none: the log of a controller"
            " group has no entries; leave it out"
        )
    reference = context.reference
    facts = {
        "state": GroupState.CONTROLLED.value,
        "reference": reference.replica.name,
        "why": reference.why,
        **beyond_reference(context, context.group.replicas),
        **_baseline(context),
    }
    return _plan(context, LEAVE_CONTROLLER, facts, context.merged.conflicts)


def _baseline(context: PlanContext) -> dict[str, Any]:
    """Return the state of the replicas at the time of planning."""
    return {
        "replicas": {
            survey.name: {
                "root": survey.root,
                "begin": survey.manifest.begin,
                "end": survey.manifest.end,
                "messages": survey.manifest.messages,
            }
            for survey in context.group.surveys
        }
    }


def _plan(
    context: PlanContext, steps: Sequence[str], facts: dict[str, Any], conflicts: Sequence[str]
) -> Plan:
    parts: dict[str, NodePlan] = {}
    for name in steps:
        for part in load_step(name).plan(context):
            before = parts.get(part.replica)
            parts[part.replica] = part if before is None else _merge(before, part)
    return Plan(
        steps=tuple(steps), nodes=tuple(parts.values()), facts=facts, conflicts=tuple(conflicts)
    )


def _merge(one: NodePlan, two: NodePlan) -> NodePlan:
    return NodePlan(
        replica=one.replica,
        root=one.root,
        keep=one.keep,
        ops=(*one.ops, *two.ops),
        notes=(*one.notes, *two.notes),
    )


def _check_divides(context: PlanContext) -> None:
    """Check that the old log can still be aligned before existing DLedger data.

    The DLedger data must begin where the reference's old log ends, and nothing may have been
    written to the old log since. Raise UpgradeRefusedError otherwise.
    """
    reference = context.reference.replica
    files = classic_log(reference).files
    ends = files[-1].end_offset if files else context.group.divide(reference)
    with_entries = [survey for survey in context.group.surveys if survey.has_entries]
    for survey in with_entries:
        ledger = survey.manifest.facts.get("ledger")
        if ledger and ledger["begin"] != ends:
            raise UpgradeRefusedError(
                f"{survey.name}: its DLedger log begins at {ledger['begin']}, the old log of"
                f" {reference.name} ends at {ends}: entries and old messages overlap, or"
                " there is a gap between them. Keep all directories, export what only the DLedger"
                " log has, and start again from the stores as they were before the switch"
            )
    if with_entries and files and not files[-1].sealed:
        raise UpgradeRefusedError(
            f"the old log of {reference.name} was written to after the switch, while the flag was"
            " off: its last messages have the queue offsets of entries. Keep all directories,"
            f" export what only {reference.name} has, and choose a member whose old log has not"
            " changed with --reference NAME: those messages are moved aside"
        )


def _duplicate_queue_offsets(context: PlanContext) -> list[str]:
    """Return the queue offsets that a wrong upgrade assigned to two messages.

    No alignment repairs that.
    """
    return [
        f"{survey.name}: {each.get('topic')} queue {each.get('queue_id')}: the message at offset"
        f" {each.get('offset')} has queue offset {each.get('found')} where {each.get('expected')}"
        " was expected; where an older message has that offset too, consumers get the older one,"
        " and both are found by key and by id"
        for survey in context.group.surveys
        for each in survey.found
        if each["code"] == "QUEUE_STEP"
        and each["file"].startswith("dledger-")
        and int(each["found"]) < int(each["expected"])
    ]
