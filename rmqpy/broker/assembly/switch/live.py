"""The part of a running broker in the switch of its group to DLedger: carries out what
:mod:`rmqpy.broker.replication.switch_protocol` decides.

The requests are of one code, ``RMQPY_SWITCH``, with a JSON body whose ``step`` says which:

===========  ===============================  ====================================================
step         sent by, to                      answer
===========  ===============================  ====================================================
check        the command, each member         facts, and ``problems`` that prevent the switch
start        the command, the master          when the switch has begun
status       the command, each member         phase, reason, pause in ms, and progress
cancel       the command, the master          the same; the switch is aborted if it is undecided
postpone     the command, the master          the same; nothing is frozen until ``resume``
resume       the command, the master          the same
throttle     the command, each member         the same; at most ``rate`` bytes are read per second
prepare      the master, each slave           when the port of the group is open
vote         the master, each slave           when the slave has recorded its vote
commit       the master, each slave           when the slave has a DLedger log
abort        the master, each slave           when the slave follows again
outcome      a slave in doubt, each member    what the member knows about the decision
===========  ===============================  ====================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from attrs import define, field

from rmqpy.broker.assembly.switch.checks import difference, facts, problems
from rmqpy.broker.assembly.switch.completion import Completion
from rmqpy.broker.assembly.switch.inquiry import ASK_MS, OutcomeInquiry
from rmqpy.broker.assembly.switch.local import (
    POLL_MS,
    RETRY_MS,
    LocalSwitch,
    SwitchDependencies,
)
from rmqpy.broker.assembly.switch.requests import (
    CONTROLS,
    answer,
    change_info,
    decode,
    mark_of,
    plan_of,
    rate_of,
    refused,
    reply,
)
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.replication.metadata_sync import MASTER_NAMED_MS
from rmqpy.broker.replication.switch_protocol import (
    BEFORE_FREEZE,
    Action,
    Actions,
    Coordinator,
    Exchange,
    Freeze,
    Lead,
    Outcome,
    Participant,
    Prepare,
    Record,
    Reopen,
    SendStep,
    StopFollowing,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
    SwitchStep,
)
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.store.ledger.classic_prefix import ClassicPrefixMark

PREPARE_MS: Final = 120_000
"""The time for the preparation of all members, which reads up to two files of the log."""
PREPARE_RETRY_MS: Final = 1000
LAG_POLL_MS: Final = 10
AGREE_MS: Final = 800
"""The time from the freeze until all have voted; the switch is aborted after it."""
LEAD_WAIT_MS: Final = 300
"""The time for which the new leader waits for members that have not exchanged their logs."""
UNKNOWN_SWITCH: Final = "this broker does not take part in that switch"
UNDECIDED: Final = "a switch to DLedger is undecided; the master decides it when it runs"
IN_PROGRESS: Final = "a switch is in progress; wait for it, or abort it (--abort)"
DECIDED: Final = "a switch to DLedger is decided, and is being carried out: wait for it"

logger = logging.getLogger(__name__)

Answer = Callable[[str], None]
"""Answers a request with the reason why it was not carried out, or an empty text."""


@define(slots=True, eq=False, repr=False)
class LiveSwitch:
    """The part of one broker, master or slave."""

    _deps: SwitchDependencies
    _local: LocalSwitch = field(init=False)
    _role: Coordinator | Participant | None = field(default=None, init=False)
    """The part in the last switch."""
    _self_id: str = field(default="", init=False)
    _inquiry: OutcomeInquiry = field(init=False)
    _completion: Completion = field(init=False)
    _in_doubt: bool = field(default=False, init=False)
    """True if the decision of this master may or may not be on the disk."""

    def __attrs_post_init__(self) -> None:
        self._local = LocalSwitch(self._deps)
        deps = self._deps

        def is_stopped() -> bool:
            return self._local.stopped

        self._inquiry = OutcomeInquiry(
            deps.network, deps.scheduler, RequestCode.RMQPY_SWITCH, self._decided, is_stopped
        )
        self._completion = Completion(deps.running.broker, deps.journal, deps.scheduler, is_stopped)

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_SWITCH: self.answer}

    def resume(self, record: SwitchRecord | None) -> None:
        """Continue with the record that a start has found. A slave that has voted waits for the
        decision.
        """
        if record is not None and record.stage is SwitchStage.PREPARED:
            participant = self._role = Participant(
                record.plan, record.self_id, SwitchStage.PREPARED
            )
            self._self_id = record.self_id
            self._carry_out(participant.restart())
            self._prepare_again(participant)

    def _prepare_again(self, participant: Participant) -> None:
        def prepared(reason: str) -> None:
            if reason:
                logger.error("a switch is undecided, and cannot be completed: %s", reason)
                again = partial(self._prepare_again, participant)
                self._deps.scheduler.call_later(PREPARE_RETRY_MS, again)
            else:
                self._inquiry.ask(participant)

        if not self._local.stopped:
            self._local.prepare(participant.plan, self._self_id, prepared)

    def stop(self) -> None:
        """Stop taking part. A decision that was recorded is carried out by the next start."""
        if isinstance(self._role, Coordinator):
            self._coordinate(self._role.abort("the master stops"))
        self._local.stop()

    # -------------------------------------------------------------------------------- requests

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        body = decode(request.body)
        step = body.get("step")
        if step == "check":
            found = {"problems": self._problems(*plan_of(body)), **facts(self._deps.running)}
            return answer(request, found)
        if step == "start":
            self._start(*plan_of(body), postponed=body.get("postpone") is True)
            return answer(request, self._status())
        if step == "throttle":
            self._local.throttle_bytes = rate_of(body)
        elif isinstance(self._role, Coordinator):
            self._control(self._role, step)
        if step in ("status", "throttle", *CONTROLS):
            return answer(request, self._status())
        if step == "outcome":
            return answer(request, {"outcome": self._outcome(str(body.get("switch"))).value})
        return self._answer_master(step, body, request, partial(reply, channel, request))

    def _control(self, role: Coordinator, step: object) -> None:
        """Carry out a request of an administrator about the switch in progress."""
        if step == "cancel":
            self._coordinate(role.abort("an administrator has aborted the switch"))
        elif step == "postpone":
            if role.phase not in BEFORE_FREEZE:
                raise refused(f"the switch is {role.phase.value}: too late to postpone it")
            role.postponed = True
        elif step == "resume":
            self._coordinate(role.resume())

    def _answer_master(
        self, step: object, body: Mapping[str, Any], request: RemotingCommand, later: Answer
    ) -> RemotingCommand | None:
        """Answer a request of the master to a slave."""
        if step == SwitchStep.PREPARE.value:
            self._receive_prepare(*plan_of(body), mark_of(body), later)
            return None
        participant = self._role
        if not isinstance(participant, Participant) or participant.plan.switch != body.get(
            "switch"
        ):
            raise refused(UNKNOWN_SWITCH)
        if step == SwitchStep.VOTE.value:
            deadline_ms = self._deps.scheduler.monotonic_ms() + AGREE_MS
            if not participant.over:
                self._local.hold_flushes()
            self._vote(participant, mark_of(body), deadline_ms, later)
            return None
        if step == SwitchStep.COMMIT.value:
            self._decided(participant, Outcome.COMMITTED)
            deadline_ms = self._deps.scheduler.monotonic_ms() + AGREE_MS
            self._report_exchanged(deadline_ms, later)
            return None
        if step == SwitchStep.ABORT.value:
            self._decided(participant, Outcome.ABORTED)
        else:
            raise refused(f"step={step}: expected one of the steps of a switch")
        return RemotingCommand.response_to(request)

    def _status(self) -> dict[str, Any]:
        role = self._role
        progress = {
            "unread_bytes": self._local.unread_bytes,
            "throttle_bytes": self._local.throttle_bytes,
            "end": self._deps.running.store.log.max_offset,
        }
        if not isinstance(role, Coordinator):
            return {"switch": None, "phase": None, "reason": "", "pause_ms": None, **progress}
        return {
            "switch": role.plan.switch,
            "phase": role.phase.value,
            "reason": role.reason,
            "pause_ms": self._local.pause_ms,
            "postponed": role.postponed,
            "waits_for": role.waits_for,
            **progress,
        }

    def runtime_info(self) -> dict[str, str]:
        """Return the lines about the last switch, if this broker has coordinated one."""
        role = self._role
        if not isinstance(role, Coordinator):
            return {}
        return change_info("switch", role.phase, self._local.pause_ms)

    def _outcome(self, switch: str) -> Outcome:
        """Return what this member knows about a switch."""
        if self._in_doubt:
            return Outcome.UNDECIDED
        if self._role is not None and self._role.plan.switch == switch:
            return self._role.outcome
        return self._deps.journal.outcome(switch)

    def _problems(self, plan: SwitchPlan, self_id: str) -> list[str]:
        found = problems(self._deps.running, self._deps.journal.files, plan, self_id)
        role = self._role
        if isinstance(role, Coordinator) and role.outcome is Outcome.UNDECIDED:
            found.append(IN_PROGRESS)
        if isinstance(role, Participant) and role.awaits_decision:
            found.append(UNDECIDED)
        if role is not None and role.outcome is Outcome.COMMITTED and not self._local.has_exchanged:
            # Another switch would undo what this one has prepared, which the decision needs.
            found.append(DECIDED)
        return found

    # ------------------------------------------------------------------------------ the master

    def _start(self, plan: SwitchPlan, self_id: str, *, postponed: bool) -> None:
        found = self._problems(plan, self_id)
        if found:
            raise refused("; ".join(found))
        if self_id != plan.coordinator:
            raise refused(f"found {self_id}, expected the master, {plan.coordinator}")
        coordinator = self._role = Coordinator(plan, postponed=postponed)
        self._self_id = self_id
        logger.warning("switching to DLedger: %s", plan.peers)
        self._coordinate(coordinator.begin())

    def _coordinate(self, actions: Actions) -> None:
        """Carry out what the master decides."""
        try:
            self._carry_out(actions)
        except OSError as error:
            # Whether the decision is on the disk is unknown: only a start can read it.
            reason = f"the switch could not be recorded: {error}; restart this broker"
            logger.error("%s", reason)
            self._in_doubt = True
            self._deps.running.store.health.fail(reason)

    def _freeze(self, coordinator: Coordinator) -> None:
        running = self._deps.running
        if running.broker.identity.is_slave:  # A slave was promoted meanwhile.
            reason = f"{self._self_id}: this broker has become a slave in the meantime"
            self._coordinate(coordinator.abort(reason))
            return
        running.group.role.lock(IN_PROGRESS)

        def expired() -> None:
            missing = ", ".join(coordinator.waits_for) or self._self_id
            reason = f"no agreement within {AGREE_MS} ms: {missing} did not answer in time"
            self._coordinate(coordinator.abort(reason))

        self._deps.scheduler.call_later(AGREE_MS, expired)
        self._local.freeze(lambda: self._coordinate(coordinator.frozen()))

    def _prepared(self, coordinator: Coordinator, reason: str) -> None:
        if reason:
            self._coordinate(coordinator.abort(reason))
        else:
            self._coordinate(coordinator.prepared(self._self_id))

    def _send(self, coordinator: Coordinator, to: str, step: SwitchStep) -> None:
        plan = coordinator.plan
        body: dict[str, Any] = {"step": step.value, "switch": plan.switch}
        if step is SwitchStep.PREPARE:
            end = self._deps.running.store.log.max_offset
            body |= {"plan": plan.encode(), "member": to, "end": end}
        elif step is SwitchStep.VOTE:
            body |= {"end": self._local.mark.end, "digest": self._local.mark.digest}
        command = RemotingCommand.request(RequestCode.RMQPY_SWITCH, body=dumps(body))
        timeout_ms = (
            PREPARE_MS if step is SwitchStep.PREPARE else 2 * AGREE_MS
        )  # after the deadline
        answered = partial(self._answered, coordinator, to, step)
        self._deps.network.request(plan.brokers[to], command, timeout_ms, answered)

    def _answered(
        self,
        coordinator: Coordinator,
        member: str,
        step: SwitchStep,
        response: RemotingCommand | None,
        fault: RmqError | None,
    ) -> None:
        if self._local.stopped or step is SwitchStep.ABORT:
            return
        if response is not None and response.code == ResponseCode.SUCCESS:
            arrived = {
                SwitchStep.PREPARE: coordinator.prepared,
                SwitchStep.VOTE: coordinator.voted,
                SwitchStep.COMMIT: coordinator.exchanged,
            }[step]
            self._coordinate(arrived(member))
        elif step is SwitchStep.COMMIT:
            self._deps.scheduler.call_later(
                RETRY_MS, lambda: self._coordinate(coordinator.not_exchanged(member))
            )
        else:
            reason = fault if response is None else response.remark
            self._coordinate(coordinator.abort(f"{member}: {reason}"))

    # ------------------------------------------------------------------------------- the slaves

    def _receive_prepare(
        self, plan: SwitchPlan, self_id: str, mark: ClassicPrefixMark, later: Answer
    ) -> None:
        """Prepare a slave. It must have the log up to the end of ``mark`` before the master holds
        any requests.
        """
        found = self._problems(plan, self_id)
        if found:
            later("; ".join(found))
            return
        if isinstance(self._role, Participant):  # the master was restarted meanwhile
            self._decided(self._role, Outcome.ABORTED)
        participant = self._role = Participant(plan, self_id)
        self._self_id = self_id
        sync = self._deps.running.broker.metadata_sync

        def prepared(reason: str) -> None:
            if reason:
                self._decided(participant, Outcome.ABORTED)
            if reason or participant.over:
                later(reason or UNKNOWN_SWITCH)
            elif self._deps.running.store.log.max_offset < mark.end:
                self._deps.scheduler.call_later(LAG_POLL_MS, lambda: prepared(""))
            else:
                later("")

        def fetched() -> None:
            if sync.faults or participant.over:
                prepared("; ".join(sync.faults) or UNKNOWN_SWITCH)
            else:
                self._local.prepare(plan, self_id, prepared)

        def expired() -> None:
            if participant is self._role and participant.stage is None:
                self._decided(participant, Outcome.ABORTED)

        self._deps.scheduler.call_later(2 * PREPARE_MS, expired)
        sync.fetch_now(fetched, named_within_ms=MASTER_NAMED_MS)

    def _vote(
        self,
        participant: Participant,
        mark: ClassicPrefixMark,
        deadline_ms: int,
        later: Answer,
    ) -> None:
        """Vote when the log ends where the master's does, and is on the disk."""
        running, scheduler = self._deps.running, self._deps.scheduler
        end = running.store.log.max_offset
        if participant.over:
            later(UNKNOWN_SWITCH)
        elif scheduler.monotonic_ms() >= deadline_ms or end > mark.end or self._local.stopped:
            later(f"the log ends at {end}, expected {mark.end} on the disk within {AGREE_MS} ms")
        elif not running.broker.identity.is_slave:
            later("this broker has become master in the meantime")
        elif end < mark.end or not running.is_quiet():
            again = partial(self._vote, participant, mark, deadline_ms, later)
            scheduler.call_later(POLL_MS, again)
        elif differs := difference(mark, self._local.log_mark()):
            later(differs)
        else:
            try:
                self._carry_out(participant.vote())
            except OSError as error:
                self._decided(participant, Outcome.ABORTED)
                later(f"the vote could not be recorded: {error}")
                return
            later("")
            self._inquiry.ask_after(ASK_MS, participant)

    def _report_exchanged(self, deadline_ms: int, later: Answer) -> None:
        """Answer as soon as the log has been exchanged: the master leads when a majority has."""
        scheduler = self._deps.scheduler
        if self._local.has_exchanged:
            later("")
        elif scheduler.monotonic_ms() >= deadline_ms or self._local.stopped:
            later("the log is not exchanged yet")
        else:
            again = partial(self._report_exchanged, deadline_ms, later)
            scheduler.call_later(POLL_MS, again)

    def _decided(self, participant: Participant, outcome: Outcome) -> None:
        """Carry out the decision. Raises RequestRejectedError if it contradicts what is known."""
        try:
            actions = participant.decided(outcome)
        except ValueError as error:
            raise refused(str(error)) from None
        try:
            self._carry_out(actions)
        except OSError as error:  # Only the record: the decision is asked for again.
            logger.error("the decision could not be recorded: %s", error)
            participant.stage, participant.over = SwitchStage.PREPARED, False
            self._inquiry.ask_after(RETRY_MS, participant)

    # --------------------------------------------------------------------------------- actions

    def _carry_out(self, actions: Actions) -> None:
        """Carry out ``actions`` in their order. Raises OSError if one could not be recorded; those
        after it are not carried out then.
        """
        for action in actions:
            self._carry_out_one(action)

    def _carry_out_one(self, action: Action) -> None:
        role, local = self._role, self._local
        assert role is not None
        match action:
            case StopFollowing():
                self._deps.running.group.role.lock(UNDECIDED)
            case Record(stage):
                self._record(role.plan, stage)
            case Exchange() if isinstance(role, Coordinator):
                # The requests leave first, so that all members exchange their logs at once.
                self._deps.scheduler.call_later(POLL_MS, partial(self._exchange, role))
            case Exchange():
                self._exchange(role)
            case Reopen():
                if isinstance(role, Coordinator):
                    logger.warning("not switched to DLedger: %s", role.reason)
                local.reopen()
            case Lead():
                local.lead()
            case Prepare() if isinstance(role, Coordinator):
                local.prepare(role.plan, self._self_id, partial(self._prepared, role))
            case Freeze() if isinstance(role, Coordinator):
                self._freeze(role)
            case SendStep(to, step) if isinstance(role, Coordinator):
                self._send(role, to, step)
            case _:
                raise AssertionError(action)

    def _record(self, plan: SwitchPlan, stage: SwitchStage | None) -> None:
        record = None if stage is None else SwitchRecord(stage, plan, self._self_id)
        self._deps.journal.write(record)

    def _exchange(self, role: Coordinator | Participant) -> None:
        self._local.exchange(role.plan.coordinator, partial(self._exchanged, role))

    def _exchanged(self, role: Coordinator | Participant) -> None:
        self._completion.begin(SwitchRecord(SwitchStage.COMPLETE, role.plan, self._self_id))
        if isinstance(role, Coordinator):
            self._deps.scheduler.call_later(
                LEAD_WAIT_MS, lambda: self._coordinate(role.lead_alone())
            )
            self._coordinate(role.exchanged(self._self_id))
        else:
            self._local.follow()
