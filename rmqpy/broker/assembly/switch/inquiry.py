"""The question of a member that has voted, and does not know the decision, to all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define

from rmqpy.broker.assembly.switch.requests import outcome_of
from rmqpy.broker.replication.switch_protocol import Outcome, Participant, resolve
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps

ASK_MS: Final = 800
"""The time after a vote until a member asks for the decision, and for which it waits for
answers.
"""
REPEAT_MS: Final = 250


@define(slots=True, frozen=True, eq=False, repr=False)
class OutcomeInquiry:
    """The questions of one broker, which have the request code ``code``."""

    _network: Network
    _scheduler: Scheduler
    _code: RequestCode
    _decided: Callable[[Participant, Outcome], None]
    _is_over: Callable[[], bool]

    def ask_after(self, delay_ms: int, participant: Participant) -> None:
        self._scheduler.call_later(delay_ms, lambda: self.ask(participant))

    def ask(self, participant: Participant) -> None:
        """Ask all other members for the decision, until one knows it."""
        if not participant.awaits_decision or self._is_over():
            return
        brokers = participant.plan.brokers
        waiting = brokers.keys() - {participant.self_id}
        body = dumps({"step": "outcome", "switch": participant.plan.switch})
        known: dict[str, Outcome | None] = {}

        def answered(
            member: str, response: RemotingCommand | None, _fault: RmqError | None
        ) -> None:
            known[member] = outcome_of(response)
            if known.keys() < waiting:
                return
            outcome = resolve(participant.plan, known)
            if participant.awaits_decision and outcome is not Outcome.UNDECIDED:
                self._decided(participant, outcome)
            self.ask_after(REPEAT_MS, participant)

        for member in sorted(waiting):
            command = RemotingCommand.request(self._code, body=body)
            self._network.request(brokers[member], command, ASK_MS, partial(answered, member))
