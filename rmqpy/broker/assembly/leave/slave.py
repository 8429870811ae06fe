"""The part of the classic slave that takes over from the DLedger group that it follows: it carries
out what :mod:`rmqpy.broker.replication.leave_protocol` decides, with the members' requests of
:mod:`.member` and these of the command:

===========  =================================================================================
step         answer
===========  =================================================================================
check        facts, and ``problems`` that prevent the leave
start        when the leave has begun
status       phase, reason, for how long the members held requests, in ms, and progress
throttle     the same; at most ``rate`` bytes of the log are copied per second before the freeze
cancel       the same; the leave is aborted if it is undecided
postpone     the same; nothing is frozen until ``resume``
resume       the same
outcome      (sent by a member in doubt) the decision
clients      (sent by a member that has left) when its clients are known here
===========  =================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from attrs import define, field

from rmqpy.broker.assembly.ha_group import CopyRate
from rmqpy.broker.assembly.leave.record import ROLE
from rmqpy.broker.assembly.leave.relay import handed_clients
from rmqpy.broker.assembly.switch.completion import Completion
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.local import POLL_MS, RETRY_MS, SYNC_POLL_MS
from rmqpy.broker.assembly.switch.requests import (
    CONTROLS,
    answer,
    change_info,
    decode,
    plan_of,
    rate_of,
    refused,
)
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.leave_protocol import (
    AGREE_MS,
    SLAVE,
    UNDECIDED,
    CatchUp,
    CopyTables,
    FrozenLog,
    LeaveActions,
    LeaveCoordinator,
    TakeOver,
)
from rmqpy.broker.replication.metadata_sync import MASTER_NAMED_MS
from rmqpy.broker.replication.switch_protocol import (
    BEFORE_FREEZE,
    Outcome,
    Phase,
    Record,
    Reopen,
    SendStep,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
    SwitchStep,
    recorded_outcome,
)
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.store.message_store import MessageStore

PREPARE_MS: Final = 120_000
"""The time for the preparation of all members, of the tables, and of what the slave lacks."""
AGED_MS: Final = 2000
"""The time of catching up after which what the members had at its begin has aged."""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class TakingParts:
    """The parts of a slave that take part. ``is_durable`` returns whether its log before an offset
    is on the disk and dispatched; if not, it starts the flush that is waited for.
    """

    broker: Broker
    store: MessageStore
    role: ClassicRole
    is_durable: Callable[[int], bool]
    scheduler: Scheduler
    network: Network
    journal: SwitchJournal
    rate: CopyRate


@define(slots=True, eq=False, repr=False)
class LeavingSlave:
    """The part of one slave."""

    _parts: TakingParts
    _coordinator: LeaveCoordinator | None = field(default=None, init=False)
    """The last leave."""
    _stopped: bool = field(default=False, init=False)
    _in_doubt: bool = field(default=False, init=False)
    """True if the decision may or may not be on the disk."""
    _level: int = field(default=0, init=False)
    """The end of the leader's log at the begin of the preparation."""
    _frozen_ms: int | None = field(default=None, init=False)
    _pause_ms: int | None = field(default=None, init=False)

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_LEAVE: self.answer}

    def resume(self) -> None:
        """Continue with a decision that a start has found: this broker is the master already."""
        record = self._parts.journal.read()
        if record is not None and record.self_id == SLAVE and record.stage is SwitchStage.COMMITTED:
            coordinator = self._coordinator = LeaveCoordinator.of_decided(record.plan)
            self._complete(record.plan)
            self._coordinate(coordinator, coordinator.taken())

    def stop(self) -> None:
        """Abort a leave that is undecided."""
        if self._coordinator is not None:
            self._coordinate(self._coordinator, self._coordinator.abort("the slave stops"))
        self._stopped = True

    # -------------------------------------------------------------------------------- requests

    def answer(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        body = decode(request.body)
        step = body.get("step")
        if step == "outcome":
            return answer(request, {"outcome": self._outcome(str(body.get("switch"))).value})
        if step == "clients":
            if self._outcome(str(body.get("switch"))) is not Outcome.COMMITTED:
                raise refused("this broker has not taken over from that group")
            self._parts.broker.handed_clients.take(*handed_clients(body))
            return answer(request, {})
        if step == "check":
            log = self._parts.store.log
            facts = {"begin": log.min_offset, "end": log.max_offset}
            return answer(request, {"problems": self._problems(*plan_of(body)), **facts})
        if step == "start":
            self._start(*plan_of(body), postponed=body.get("postpone") is True)
        elif step == "throttle":
            self._parts.rate.bytes_per_second = rate_of(body)
        elif step in CONTROLS:
            if self._coordinator is not None:
                self._control(self._coordinator, step)
        else:
            raise refused(f"step={step}: this broker is no member of a DLedger group")
        return answer(request, self._status())

    def _control(self, last: LeaveCoordinator, step: object) -> None:
        """Carry out a request of an administrator about the leave in progress."""
        if step == "cancel":
            self._coordinate(last, last.abort("an administrator has aborted the leave"))
        elif step == "postpone":
            if last.phase not in BEFORE_FREEZE:
                raise refused(f"the leave is {last.phase.value}: too late to postpone it")
            last.postponed = True
        elif step == "resume":
            self._prepare(last, last.resume())

    def runtime_info(self) -> dict[str, str]:
        """Return the lines about the last leave, if there was one."""
        last = self._coordinator
        return {} if last is None else change_info("leave", last.phase, self._pause_ms)

    def _status(self) -> dict[str, Any]:
        if self._in_doubt:
            raise refused(self._parts.store.health.failure or "")
        last, end = self._coordinator, self._parts.store.log.max_offset
        copying = last is not None and last.phase is Phase.PREPARING
        return {
            "leave": None if last is None else last.plan.switch,
            "phase": None if last is None else last.phase.value,
            "reason": "" if last is None else last.reason,
            "pause_ms": self._pause_ms,
            "postponed": last is not None and last.postponed,
            "waits_for": [] if last is None else last.waits_for,
            "end": end,
            "unread_bytes": max(0, self._level - end) if copying else None,
            "throttle_bytes": self._parts.rate.bytes_per_second,
        }

    def _outcome(self, leave: str) -> Outcome:
        if self._in_doubt:
            return Outcome.UNDECIDED
        if self._coordinator is not None and self._coordinator.plan.switch == leave:
            return self._coordinator.outcome
        return recorded_outcome(self._parts.journal.read(), leave)

    def _problems(self, plan: SwitchPlan, self_id: str) -> list[str]:
        """Return the reasons why this broker cannot take over."""
        parts, broker = self._parts, self._parts.broker
        found = []
        if self_id != SLAVE or plan.coordinator != SLAVE:
            found.append(f"found {self_id}, expected {SLAVE}")
        if broker.identity.name != plan.group:
            found.append(f"found brokerName={broker.identity.name}, expected {plan.group}")
        if parts.store.opened.dledger is not None:
            found.append(
                "this broker is a member of a DLedger group itself, expected a classic slave; to"
                " turn the members into classic brokers, use rmqpy upgrade leave"
            )
        elif not broker.identity.is_slave:
            found.append(f"found {broker.identity.role.value}, expected a slave")
        if broker.settings.file is None:
            found.append("this broker has no configuration file: start it with one (-c FILE)")
        if broker.fence.state().remaining_ms:
            found.append("this broker is fenced; open it (rmqpy admin fence --lift)")
        if parts.store.health.failure is not None:
            found.append(parts.store.health.failure)
        if self._coordinator is not None and self._coordinator.outcome is Outcome.UNDECIDED:
            found.append("a leave is in progress; wait for it, or abort it (--abort)")
        return found

    # ---------------------------------------------------------------------------- coordination

    def _start(self, plan: SwitchPlan, self_id: str, *, postponed: bool) -> None:
        found = self._problems(plan, self_id)
        if found:
            raise refused("; ".join(found))
        coordinator = self._coordinator = LeaveCoordinator(plan, postponed=postponed)
        self._frozen_ms = self._pause_ms = None
        logger.warning("taking over from the DLedger group %s", plan.group)
        self._prepare(coordinator, coordinator.begin())

    def _prepare(self, coordinator: LeaveCoordinator, actions: LeaveActions) -> None:
        def expired() -> None:
            if coordinator.phase is Phase.PREPARING:
                self._expire(coordinator, PREPARE_MS)

        if actions:
            self._parts.scheduler.call_later(PREPARE_MS, expired)
        self._coordinate(coordinator, actions)

    def _expire(self, coordinator: LeaveCoordinator, limit_ms: int) -> None:
        missing = ", ".join(coordinator.waits_for) or SLAVE
        reason = f"no agreement within {limit_ms} ms: {missing} did not answer in time"
        self._coordinate(coordinator, coordinator.abort(reason))

    def _coordinate(self, coordinator: LeaveCoordinator, actions: LeaveActions) -> None:
        """Carry out what the coordinator decides, in its order."""
        if self._stopped:
            return
        for action in actions:
            match action:
                case CopyTables():
                    self._level = 0
                    self._copy_tables(partial(self._catch_up_ahead, coordinator))
                case SendStep(to, step):
                    self._send(coordinator, to, step)
                case CatchUp(log):
                    self._copy_tables(partial(self._catch_up, coordinator, log))
                case Record(stage):
                    if not self._record(coordinator.plan, stage):
                        return
                case TakeOver():
                    self._take_over(coordinator)
                case Reopen():
                    logger.warning("not taking over: %s", coordinator.reason)
                    self._end_pause()
                    self._parts.role.unlock()
                case _:
                    raise AssertionError(action)

    def _copy_tables(self, then: Callable[[], LeaveActions]) -> None:
        coordinator, sync = self._coordinator, self._parts.broker.metadata_sync
        assert coordinator is not None

        def fetched() -> None:
            faults = "; ".join(sync.faults)
            actions = coordinator.abort(f"{SLAVE}: {faults}") if faults else then()
            self._coordinate(coordinator, actions)

        sync.fetch_now(fetched, named_within_ms=MASTER_NAMED_MS)

    def _catch_up_ahead(
        self, coordinator: LeaveCoordinator, answered_ms: int | None = None
    ) -> LeaveActions:
        """Wait until every member has answered, and what the leader had then is here, on the disk:
        what is left for the freeze is what was written meanwhile. ``answered_ms`` is when the last
        member had answered.
        """
        parts = self._parts
        if coordinator.phase is not Phase.PREPARING or self._stopped:
            return []
        if coordinator.waits_for == [SLAVE]:
            now_ms = parts.scheduler.monotonic_ms()
            answered_ms = now_ms if answered_ms is None else answered_ms
            if parts.store.log.max_offset >= self._level and parts.is_durable(self._level):
                if now_ms - answered_ms > AGED_MS:
                    return coordinator.begin()
                parts.rate.bytes_per_second = 0
                return coordinator.prepared(SLAVE)
        again = partial(self._catch_up_ahead, coordinator, answered_ms)
        parts.scheduler.call_later(SYNC_POLL_MS, lambda: self._coordinate(coordinator, again()))
        return []

    def _catch_up(self, coordinator: LeaveCoordinator, log: FrozenLog) -> LeaveActions:
        """Wait until the log ends where that of the members does, and is on the disk."""
        parts = self._parts
        end = parts.store.log.max_offset
        if coordinator.outcome is not Outcome.UNDECIDED or self._stopped:
            return []
        if end > log.end:
            return coordinator.abort(f"the log ends at {end}, that of the members at {log.end}")
        if not parts.broker.identity.is_slave:
            return coordinator.abort("this broker has become master in the meantime")
        if end == log.end and parts.is_durable(end) and parts.store.health.failure is None:
            parts.role.lock(UNDECIDED)
            return coordinator.level()
        parts.scheduler.call_later(
            POLL_MS, lambda: self._coordinate(coordinator, self._catch_up(coordinator, log))
        )
        return []

    def _send(self, coordinator: LeaveCoordinator, to: str, step: SwitchStep) -> None:
        plan, scheduler = coordinator.plan, self._parts.scheduler
        body: dict[str, Any] = {"step": step.value, "switch": plan.switch}
        if step is SwitchStep.PREPARE:
            body |= {"plan": plan.encode(), "member": to}
        elif step is SwitchStep.FREEZE and self._frozen_ms is None:
            self._frozen_ms = scheduler.monotonic_ms()
            scheduler.call_later(AGREE_MS, lambda: self._expire(coordinator, AGREE_MS))
        elif step is SwitchStep.VOTE:
            assert coordinator.frozen_log is not None
            body |= {"index": coordinator.frozen_log.index, "term": coordinator.frozen_log.term}
        command = RemotingCommand.request(RequestCode.RMQPY_LEAVE, body=dumps(body))
        timeout_ms = PREPARE_MS if step is SwitchStep.PREPARE else 2 * AGREE_MS
        answered = partial(self._answered, coordinator, to, step)
        self._parts.network.request(plan.brokers[to], command, timeout_ms, answered)

    def _answered(
        self,
        coordinator: LeaveCoordinator,
        member: str,
        step: SwitchStep,
        response: RemotingCommand | None,
        fault: RmqError | None,
    ) -> None:
        if step is SwitchStep.ABORT:
            return
        if response is not None and response.code == ResponseCode.SUCCESS:
            self._coordinate(coordinator, self._arrived(coordinator, member, step, response))
        elif step is SwitchStep.COMMIT:
            again = partial(coordinator.not_committed, member)
            self._parts.scheduler.call_later(
                RETRY_MS, lambda: self._coordinate(coordinator, again())
            )
        else:
            reason = fault if response is None else response.remark
            self._coordinate(coordinator, coordinator.abort(f"{member}: {reason}"))

    def _arrived(
        self,
        coordinator: LeaveCoordinator,
        member: str,
        step: SwitchStep,
        response: RemotingCommand,
    ) -> LeaveActions:
        if step is SwitchStep.FREEZE:
            try:
                return coordinator.frozen(member, _log_of(decode(response.body)))
            except (RequestRejectedError, ValueError) as error:
                return coordinator.abort(f"{member}: {error}")
        if step is SwitchStep.COMMIT:
            return coordinator.committed(member)
        if step is SwitchStep.PREPARE:
            self._level = max(self._level, end_of(response.body))
        arrived = coordinator.voted if step is SwitchStep.VOTE else coordinator.prepared
        return arrived(member)

    # --------------------------------------------------------------------------------- actions

    def _record(self, plan: SwitchPlan, stage: SwitchStage | None) -> bool:
        assert stage is not None
        try:
            self._parts.journal.write(SwitchRecord(stage, plan, SLAVE))
        except OSError as error:
            # Whether the decision is on the disk is unknown: only a start can read it.
            reason = f"the leave could not be recorded: {error}; restart this broker"
            logger.error("%s", reason)
            self._in_doubt = True
            self._parts.store.health.fail(reason)
            return False
        return True

    def _take_over(self, coordinator: LeaveCoordinator) -> None:
        self._parts.role.take_over(ROLE)
        self._end_pause()
        logger.warning(
            "took over from the DLedger group %s; messages waited for %d ms",
            coordinator.plan.group,
            self._pause_ms,
        )
        # The members hold requests until they know.
        self._coordinate(coordinator, coordinator.taken())
        self._complete(coordinator.plan)

    def _complete(self, plan: SwitchPlan) -> None:
        parts = self._parts
        completion = Completion(parts.broker, parts.journal, parts.scheduler, lambda: self._stopped)
        completion.begin(SwitchRecord(SwitchStage.COMPLETE, plan, SLAVE))

    def _end_pause(self) -> None:
        now_ms = self._parts.scheduler.monotonic_ms()
        self._pause_ms = 0 if self._frozen_ms is None else now_ms - self._frozen_ms


def end_of(body: bytes) -> int:
    """Return the end of a leader's log in the answer to a preparation; 0 if there is none: another
    member, or an older version.
    """
    end = decode(body).get("end", 0) if body else 0
    return end if isinstance(end, int) else 0


def _log_of(body: Mapping[str, Any]) -> FrozenLog | None:
    """Return the log in the answer of a frozen member; None if it does not lead."""
    if not body:
        return None
    values = [body.get(name) for name in ("index", "term", "end")]
    if not all(isinstance(value, int) for value in values):
        raise ValueError("expected index, term and end of a log")
    return FrozenLog(*(int(str(value)) for value in values))
