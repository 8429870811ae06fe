"""The part of a member of a DLedger group in its leave. Its requests are those of the slave, which
coordinates (:mod:`.slave`), and of the command:

===========  ===============================  ==================================================
step         sent by                          answer
===========  ===============================  ==================================================
check        the command                      ``problems`` that prevent the leave
prepare      the slave                        when the member can leave; the leader: its end
freeze       the slave                        when it writes no more; the leader: its end, when
                                              everything is committed
vote         the slave                        when the member has recorded its vote
commit       the slave                        when it has recorded that it has left
abort        the slave                        when it is a member as before
outcome      a member in doubt                what the member knows about the decision
===========  ===============================  ==================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from attrs import define, field

from rmqpy.broker.assembly.dledger_group import slave_id_of
from rmqpy.broker.assembly.leave.relay import ClientHandover, ClientRelay
from rmqpy.broker.assembly.switch.inquiry import ASK_MS, OutcomeInquiry
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.assembly.switch.local import HELD_MS_MAX, POLL_MS, RETRY_MS
from rmqpy.broker.assembly.switch.requests import answer, decode, plan_of, refused
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.replication.leave_protocol import (
    AGREE_MS,
    SLAVE,
    UNDECIDED,
    has_majority,
)
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.replication.switch_protocol import (
    Actions,
    Exchange,
    Outcome,
    Participant,
    Record,
    Reopen,
    StopFollowing,
    SwitchPlan,
    SwitchRecord,
    SwitchStage,
    SwitchStep,
    recorded_outcome,
)
from rmqpy.broker.services.fence import SlaveStream
from rmqpy.config.keys import parse_dledger_peers
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.frame import encode_command
from rmqpy.store.message_store import MessageStore

UNVOTED_MS: Final = 2000
"""The time after which a frozen member that has not voted takes part in its group again."""
FROZEN: Final = "the broker leaves its DLedger group"
UNKNOWN_LEAVE: Final = "this broker does not take part in that leave"

logger = logging.getLogger(__name__)

LateAnswer = Callable[[str, Mapping[str, object]], None]
"""Answers a request with the reason why it was not carried out (or an empty text) and a body."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class LeavingParts:
    """The parts of a member that take part. ``stream`` is what slaves receive, if it serves any;
    ``left`` is called when the member has left: its port of the group may be closed.
    """

    broker: Broker
    store: MessageStore
    driver: DLedgerDriver
    stream: SlaveStream | None
    scheduler: Scheduler
    network: Network
    journal: SwitchJournal
    left: Callable[[], None]


@define(slots=True, eq=False, repr=False)
class LeavingMember:
    """The part of one member."""

    _parts: LeavingParts
    _participant: Participant | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _inquiry: OutcomeInquiry = field(init=False)

    def __attrs_post_init__(self) -> None:
        parts = self._parts
        self._inquiry = OutcomeInquiry(
            parts.network,
            parts.scheduler,
            RequestCode.RMQPY_LEAVE,
            self._decided,
            lambda: self._stopped,
        )

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_LEAVE: self.answer}

    def resume(self) -> None:
        """Continue with the record that a start has found, before the driver is started. A member
        that has voted takes no part in its group, and asks for the decision.
        """
        record = self._parts.journal.read()
        if record is not None and record.stage is SwitchStage.PREPARED:
            participant = Participant(record.plan, record.self_id, SwitchStage.PREPARED)
            self._participant = participant
            logger.warning("%s", UNDECIDED)
            self._parts.broker.fence.freeze(UNDECIDED)
            self._carry_out(participant, participant.restart())
            self._inquiry.ask_after(0, participant)

    def stop(self) -> None:
        """Answer what is held. What was recorded is carried out by the next start."""
        self._stopped = True
        self._parts.broker.server.release_writes()

    # -------------------------------------------------------------------------------- requests

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        body = decode(request.body)
        step = body.get("step")
        if step == "check":
            return answer(request, {"problems": self._problems(*plan_of(body))})
        if step == "outcome":
            return answer(request, {"outcome": self._outcome(str(body.get("switch"))).value})
        if step == SwitchStep.PREPARE.value:
            self._prepare(*plan_of(body))
            return answer(request, {"end": self._led_end})
        participant = self._participant
        if participant is None or participant.plan.switch != body.get("switch"):
            raise refused(UNKNOWN_LEAVE)
        later = partial(_reply, channel, request)
        deadline_ms = self._parts.scheduler.monotonic_ms() + AGREE_MS
        if step == SwitchStep.FREEZE.value:
            self._freeze(participant)
            self._report_frozen(participant, deadline_ms, later)
            return None
        if step == SwitchStep.VOTE.value:
            self._vote(participant, (body.get("index"), body.get("term")), deadline_ms, later)
            return None
        if step == SwitchStep.COMMIT.value:
            self._decided(participant, Outcome.COMMITTED)
            if participant.outcome is not Outcome.COMMITTED:
                raise refused("the decision could not be recorded")
        elif step == SwitchStep.ABORT.value:
            self._decided(participant, Outcome.ABORTED)
        else:
            raise refused(f"step={step}: expected one of the steps of a leave")
        return RemotingCommand.response_to(request)

    def _outcome(self, leave: str) -> Outcome:
        """Return what this member knows about a leave."""
        if self._participant is not None and self._participant.plan.switch == leave:
            return self._participant.outcome
        return recorded_outcome(self._parts.journal.read(), leave)

    def _problems(self, plan: SwitchPlan, self_id: str) -> list[str]:
        """Return the reasons why this broker cannot leave its group as member ``self_id``."""
        parts = self._parts
        settings = parts.broker.identity.store
        found = []
        if parts.broker.identity.name != plan.group:
            found.append(f"found brokerName={parts.broker.identity.name}, expected {plan.group}")
        if settings.dledger_self_id != self_id:
            found.append(f"found dLegerSelfId={settings.dledger_self_id}, expected {self_id}")
        members = {each.peer_id: each.address for each in settings.dledger_members}
        if {each.peer_id: each.address for each in parse_dledger_peers(plan.peers)} != members:
            found.append(f"found dLegerPeers={settings.dledger_peers}, expected {plan.peers}")
        if not has_majority(plan.others, members):
            found.append(
                f"found the members {', '.join(plan.others)}, expected a majority of"
                f" {', '.join(sorted(members))}"
            )
        if parts.stream is None:
            found.append(
                "this member serves no slaves; set haServeEntries=true on all members, and restart"
                " them one by one"
            )
        if parts.broker.fence.state().remaining_ms:
            found.append("this broker is fenced; open it (rmqpy admin fence --lift)")
        if parts.store.health.failure is not None:
            found.append(parts.store.health.failure)
        if self._participant is not None:
            if self._participant.awaits_decision:
                found.append(UNDECIDED)
            elif self._participant.outcome is Outcome.COMMITTED:
                found.append("this member has left its group")
        return found

    # ----------------------------------------------------------------------------------- steps

    def _prepare(self, plan: SwitchPlan, self_id: str) -> None:
        found = self._problems(plan, self_id)
        if found:
            raise refused("; ".join(found))
        if self._participant is not None:  # the slave was restarted meanwhile
            self._decided(self._participant, Outcome.ABORTED)
        self._participant = Participant(plan, self_id)

    @property
    def _led_end(self) -> int:
        """The end of the log that slaves see, if this member leads; otherwise 0."""
        stream, leads = self._parts.stream, self._parts.driver.carrier.leads
        return stream.end if stream is not None and leads else 0

    def _freeze(self, participant: Participant) -> None:
        """Hold the requests that write, and write nothing, until the decision."""
        broker, scheduler = self._parts.broker, self._parts.scheduler
        if participant.over or participant.stage is not None:
            raise refused(UNKNOWN_LEAVE)
        broker.server.hold_writes()
        broker.fence.freeze(FROZEN)

        def unvoted() -> None:
            if participant.stage is None and not self._stopped:
                self._decided(participant, Outcome.ABORTED)

        def held() -> None:
            if participant.outcome is Outcome.UNDECIDED:
                broker.server.release_writes()

        scheduler.call_later(UNVOTED_MS, unvoted)
        scheduler.call_later(HELD_MS_MAX, held)

    def _report_frozen(self, participant: Participant, deadline_ms: int, later: LateAnswer) -> None:
        parts = self._parts
        if participant.over or self._stopped:
            later(UNKNOWN_LEAVE, {})
        elif not parts.driver.carrier.leads:
            later("", {})
        elif self._is_drained:
            end = parts.driver.entries.end
            stream = parts.stream
            assert stream is not None
            later("", {"index": end.index, "term": end.term, "end": stream.end})
        elif parts.scheduler.monotonic_ms() >= deadline_ms:
            later(
                f"the leader has not committed everything within {AGREE_MS} ms, or no slave is"
                " connected to it",
                {},
            )
        else:
            again = partial(self._report_frozen, participant, deadline_ms, later)
            parts.scheduler.call_later(POLL_MS, again)

    @property
    def _is_drained(self) -> bool:
        """True if the leader's whole log is committed, and visible to slaves up to its marker."""
        parts = self._parts
        complete = parts.stream is not None and parts.stream.is_complete
        return complete and not parts.broker.fence.state().waiting

    def _vote(
        self,
        participant: Participant,
        expected: tuple[object, object],
        deadline_ms: int,
        later: LateAnswer,
    ) -> None:
        """Vote when the log ends with the entry of the leader."""
        parts = self._parts
        end = parts.driver.entries.end
        if participant.over or self._stopped:
            later(UNKNOWN_LEAVE, {})
        elif (end.index, end.term) == expected:
            try:
                self._carry_out(participant, participant.vote())
            except OSError as error:
                self._decided(participant, Outcome.ABORTED)
                later(f"the vote could not be recorded: {error}", {})
                return
            later("", {})
            self._inquiry.ask_after(ASK_MS, participant)
        elif parts.scheduler.monotonic_ms() >= deadline_ms:
            later(
                f"the log ends with entry {end.index} of term {end.term}, expected"
                f" {expected[0]} of term {expected[1]} within {AGREE_MS} ms",
                {},
            )
        else:
            again = partial(self._vote, participant, expected, deadline_ms, later)
            parts.scheduler.call_later(POLL_MS, again)

    def _decided(self, participant: Participant, outcome: Outcome) -> None:
        """Carry out the decision. Raises RequestRejectedError if it contradicts what is known."""
        try:
            actions = participant.decided(outcome)
        except ValueError as error:
            raise refused(str(error)) from None
        try:
            self._carry_out(participant, actions)
        except OSError as error:  # Only the record: the decision is asked for again.
            logger.error("the decision could not be recorded: %s", error)
            participant.stage, participant.over = SwitchStage.PREPARED, False
            self._inquiry.ask_after(RETRY_MS, participant)

    def _carry_out(self, participant: Participant, actions: Actions) -> None:
        """Carry out ``actions`` in their order. Raises OSError if one could not be recorded; those
        after it are not carried out then.
        """
        for action in actions:
            match action:
                case StopFollowing():
                    self._parts.driver.pause()
                case Record(stage):
                    record = None
                    if stage is not None:
                        record = SwitchRecord(stage, participant.plan, participant.self_id)
                    self._parts.journal.write(record)
                case Exchange():
                    self._leave(participant.plan)
                case Reopen():
                    self._reopen()
                case _:
                    raise AssertionError(action)

    def _reopen(self) -> None:
        broker = self._parts.broker
        self._parts.driver.resume()
        broker.fence.freeze(None)
        broker.server.release_writes()

    def _leave(self, plan: SwitchPlan) -> None:
        """End the service of this member: what clients still send to it goes to the new master."""
        parts, broker = self._parts, self._parts.broker
        master = plan.brokers[SLAVE]
        logger.warning("left the DLedger group %s: %s is the master", plan.group, master)
        parts.driver.stop()
        broker.registration.retire()
        change = RoleChange(
            broker.identity,
            parts.store,
            broker.registration,
            broker.services,
            broker.server.leadership_lost,
        )
        change.become_slave(slave_id_of(parts.driver.membership.self_id))
        ClientHandover(
            *(parts.network, parts.scheduler, broker.clients, master, plan.switch),
            stopped=lambda: self._stopped,
        ).begin()
        broker.server.relay_clients(ClientRelay(parts.network, master).answer)
        broker.server.release_writes()
        parts.left()


def _reply(
    channel: Channel, request: RemotingCommand, reason: str, value: Mapping[str, object]
) -> None:
    """Answer a request that has been carried out, or not, because of ``reason``."""
    code = ResponseCode.SYSTEM_ERROR if reason else ResponseCode.SUCCESS
    body: dict[str, Any] = dict(value)
    response = RemotingCommand.response_to(request, code, reason or None, body=dumps(body))
    if not request.is_oneway:
        channel.write(encode_command(response))
