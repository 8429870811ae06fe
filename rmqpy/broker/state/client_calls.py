"""Requests from the broker to its clients, over the connections that the clients opened.

``call`` sends a request with an opaque number that the broker chooses; the answer arrives like any
other frame of that connection and is passed to ``answered``::

    call ──► waiting ──► answered ────────► done(response)
                   ├───► timed out ───────► done(None)
                   └───► connection ended ► done(None)

Invariants: every ``done`` is called exactly once; an answer counts only on the connection to which
the request was sent; at most ``CALLS_MAX`` calls wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import field

from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.values import define
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import encode_command

CALL_TIMEOUT_MS: Final = 10_000
CALLS_MAX: Final = 10_000
OPAQUE_MAX: Final = 0x7FFF_FFFF

Answered = Callable[[RemotingCommand | None], None]


@define(slots=True, frozen=True)
class _Call:
    channel: Channel
    done: Answered
    timer: Timer


@define(slots=True, eq=False, repr=False)
class ClientRequests:
    """The pending requests to clients."""

    scheduler: Scheduler
    _calls: dict[int, _Call] = field(factory=dict, init=False)
    _opaque: int = field(default=0, init=False)

    def call(
        self,
        channel: Channel,
        request: RemotingCommand,
        done: Answered,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """Send a request; ``done`` receives the answer, or None if none arrives in time. Raises
        RequestRejectedError if ``CALLS_MAX`` calls wait already.
        """
        if len(self._calls) >= CALLS_MAX:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY, f"{CALLS_MAX} requests to clients are already waiting"
            )
        opaque = request.opaque = self._next_opaque()
        timer = self.scheduler.call_later(timeout_ms, lambda: self._end(opaque, None))
        self._calls[opaque] = _Call(channel, done, timer)
        channel.write(encode_command(request))

    def tell(self, channel: Channel, request: RemotingCommand) -> None:
        """Send a one-way request."""
        request.opaque = self._next_opaque()
        request.flag |= FLAG_ONEWAY
        channel.write(encode_command(request))

    def answered(self, channel: Channel, response: RemotingCommand) -> None:
        """Complete the pending call that a response frame answers; ignore other frames."""
        call = self._calls.get(response.opaque)
        if call is not None and call.channel is channel:
            self._end(response.opaque, response)

    def channel_closed(self, channel: Channel) -> None:
        pending = [opaque for opaque, call in self._calls.items() if call.channel is channel]
        for opaque in pending:
            self._end(opaque, None)

    def _next_opaque(self) -> int:
        self._opaque = self._opaque % OPAQUE_MAX + 1
        while self._opaque in self._calls:
            self._opaque = self._opaque % OPAQUE_MAX + 1
        return self._opaque

    def _end(self, opaque: int, response: RemotingCommand | None) -> None:
        call = self._calls.pop(opaque, None)
        if call is not None:
            call.timer.cancel()
            call.done(response)
