"""Members that run an earlier version of rmqpy, as during a rolling upgrade there and back.

They introduce themselves with version 1 of the handshake and do not know pushes in binary: they
answer them with code 3, and receive their entries as text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from attrs import define, evolve

from rmqpy.dledger.handshake import PeerHello
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from simulator.plan import SimulationPlan

EARLIER = 0.3
"""The probability that a process is of an earlier version."""


def is_earlier(plan: SimulationPlan, member: int, start: int) -> bool:
    """Return whether the process with which ``member`` starts for the ``start``-th time is of an
    earlier version.
    """
    return random.Random(f"version {plan.seed} {member} {start}").random() < EARLIER


@define(eq=False)
class EarlierVersion:
    """The peers' port of a member of an earlier version."""

    driver: DLedgerDriver

    def __attrs_post_init__(self) -> None:
        transport = self.driver.peers
        transport.introduce = transport.handshakes.introduce = self._introduce

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand]:
        known = []
        for command in commands:
            if command.code == RequestCode.RMQPY_PUSH_RUN:
                unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                channel.write(encode_command(RemotingCommand.response_to(command, unknown, "")))
            else:
                known.append(command)
        return self.driver.handle(channel, known)

    def turn_ended(self) -> None:
        self.driver.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        self.driver.channel_closed(channel)

    def _introduce(self) -> PeerHello:
        return evolve(self.driver.introduce(), version=1)
