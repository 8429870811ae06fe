"""Planted bugs of the changes of a log while clients send: the switch to DLedger, and the leave.

:mod:`.mutations` lists them with its own.
"""

from __future__ import annotations

from rmqpy.broker.assembly.leave.slave import LeavingSlave
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.live import DECIDED, LiveSwitch
from rmqpy.broker.assembly.switch.local import LocalSwitch
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.leave_protocol import FrozenLog, LeaveActions, LeaveCoordinator
from rmqpy.broker.replication.switch_protocol import (
    Actions,
    Coordinator,
    Exchange,
    Outcome,
    Participant,
    Record,
    SendStep,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
)
from rmqpy.broker.services.fence import WriteFence
from rmqpy.net.dledger.driver import DLedgerDriver
from simulator.mutation_engine import Patches, change_mutation, leave_mutation, switch_mutation


def _without_record(patches: Patches, stage: SwitchStage) -> None:
    write = patches.original(SwitchJournal, "write")

    def writes(journal: SwitchJournal, record: SwitchRecord | None) -> None:
        if record is None or record.stage is not stage:
            write(journal, record)

    patches.replace(SwitchJournal, "write", writes)


@change_mutation
def vote_for_a_change_not_persisted(patches: Patches) -> None:
    _without_record(patches, SwitchStage.PREPARED)


@change_mutation
def decision_of_a_change_not_persisted(patches: Patches) -> None:
    _without_record(patches, SwitchStage.COMMITTED)


# ------------------------------------------------------------------------------------ the switch


@switch_mutation
def switched_with_the_vote(patches: Patches) -> None:
    """A slave exchanges its log before it knows the decision."""
    vote = patches.original(Participant, "vote")

    def votes(participant: Participant) -> Actions:
        return [*vote(participant), Exchange()]

    patches.replace(Participant, "vote", votes)


@switch_mutation
def switch_decided_without_votes(patches: Patches) -> None:
    frozen = patches.original(Coordinator, "frozen")

    def decides(coordinator: Coordinator) -> Actions:
        return coordinator._decide() if frozen(coordinator) else []

    patches.replace(Coordinator, "frozen", decides)


@switch_mutation
def vote_for_another_log(patches: Patches) -> None:
    """A slave votes although its log does not end where the master's does."""
    vote = patches.original(LiveSwitch, "_vote")

    def votes(
        switch: LiveSwitch, participant: Participant, _mark: object, deadline_ms: int, later: object
    ) -> None:
        vote(switch, participant, switch._local.log_mark(), deadline_ms, later)

    patches.replace(LiveSwitch, "_vote", votes)


@switch_mutation
def aborted_switch_keeps_its_votes(patches: Patches) -> None:
    decided = patches.original(Participant, "decided")

    def keeps(participant: Participant, outcome: Outcome) -> Actions:
        return [each for each in decided(participant, outcome) if each != Record(None)]

    patches.replace(Participant, "decided", keeps)


@switch_mutation
def aborted_switch_stays_frozen(patches: Patches) -> None:
    reopen = patches.original(LocalSwitch, "reopen")
    freeze = patches.original(WriteFence, "freeze")

    def reopens(local: LocalSwitch) -> None:
        WriteFence.freeze = lambda *_reason: None  # type: ignore[method-assign]
        try:
            reopen(local)
        finally:
            WriteFence.freeze = freeze  # type: ignore[method-assign]

    patches.replace(LocalSwitch, "reopen", reopens)


@switch_mutation
def aborted_switch_leaves_slaves_alone(patches: Patches) -> None:
    """The slaves of an aborted switch do not follow their master again."""
    patches.replace(ClassicRole, "unlock", lambda _role: None)


@switch_mutation
def decided_switch_replaced(patches: Patches) -> None:
    """Another switch may begin between the decision and the exchange of the master's log."""
    problems = patches.original(LiveSwitch, "_problems")

    def finds(switch: LiveSwitch, plan: SwitchPlan, self_id: str) -> list[str]:
        return [each for each in problems(switch, plan, self_id) if each != DECIDED]

    patches.replace(LiveSwitch, "_problems", finds)


# ------------------------------------------------------------------------------------- the leave


@leave_mutation
def member_takes_part_after_its_vote(patches: Patches) -> None:
    patches.replace(DLedgerDriver, "pause", lambda _driver: None)


@leave_mutation
def leave_without_the_end_of_the_log(patches: Patches) -> None:
    """The slave does not wait for the end of the members' log."""

    def at_once(
        _slave: LeavingSlave, coordinator: LeaveCoordinator, _log: FrozenLog
    ) -> LeaveActions:
        return coordinator.level()

    patches.replace(LeavingSlave, "_catch_up", at_once)


@leave_mutation
def leave_without_the_vote_of_the_leader(patches: Patches) -> None:
    voted = patches.original(LeaveCoordinator, "voted")

    def without_leader(coordinator: LeaveCoordinator, member: str) -> LeaveActions:
        actions: LeaveActions = voted(coordinator, member)
        asks = any(isinstance(each, SendStep) for each in actions)
        if not asks:
            return actions
        return voted(coordinator, coordinator.leader)  # type: ignore[no-any-return]

    patches.replace(LeaveCoordinator, "voted", without_leader)
