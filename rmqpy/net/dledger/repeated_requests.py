"""Requests that are repeated while they are not answered.

A member may drop a request, for example while its disk is full. Then nothing arrives until the
request times out, after ``rpc_timeout_ms``. The core repeats its own requests before that; requests
which the core does not know are repeated here, every ``heartbeat_interval_ms``, but at least every
``REPEAT_MS``, so that losing one delays a member no more than losing a heartbeat or a comparison.

Invariants: the first result of all repetitions, answer or failure, is the only one; nothing is sent
after it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.dledger.member import RaftOptions
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Network, Reply
from rmqpy.remoting.command import RemotingCommand

REPEAT_MS: Final = 500


@define(slots=True, eq=False, repr=False)
class _Unanswered:
    address: str
    command: RemotingCommand
    done: Reply
    deadline_ms: int
    repeat_ms: int


@define(slots=True, eq=False, repr=False)
class RepeatedRequests:
    """The repeated requests of one member; ``tick`` repeats those that are due."""

    options: RaftOptions
    network: Network
    clock: Clock
    _unanswered: list[_Unanswered] = field(factory=list)

    def send(self, address: str, command: RemotingCommand, done: Reply) -> None:
        """Send a request now, and repeat it. ``done`` is called once."""
        now_ms, options = self.clock.monotonic_ms(), self.options
        request = _Unanswered(
            address,
            command,
            done,
            now_ms + options.rpc_timeout_ms,
            now_ms + self._interval_ms,
        )
        self._unanswered.append(request)
        self._send(request, now_ms)

    def tick(self) -> None:
        if not self._unanswered:
            return
        now_ms = self.clock.monotonic_ms()
        for request in self._unanswered:
            if request.repeat_ms <= now_ms < request.deadline_ms:
                request.repeat_ms = now_ms + self._interval_ms
                self._send(request, now_ms)

    @property
    def _interval_ms(self) -> int:
        return min(self.options.heartbeat_interval_ms, REPEAT_MS)

    def _send(self, request: _Unanswered, now_ms: int) -> None:
        left_ms = request.deadline_ms - now_ms
        self.network.request(
            request.address, request.command, left_ms, partial(self._ended, request)
        )

    def _ended(
        self, request: _Unanswered, answer: RemotingCommand | None, fault: RmqError | None
    ) -> None:
        if request in self._unanswered:
            self._unanswered.remove(request)
            request.done(answer, fault)
