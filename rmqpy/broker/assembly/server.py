"""The requests of a broker, and the commit at the end of each turn of the loop.

``handle`` answers every request through one table (request code to handler); sends are collected
and put together at its end. ``turn_ended`` commits: it writes the staged records, releases the
replies that waited for them, dispatches the records that have become readable, and wakes the
readers that wait for them::

    handle*  ──►  commit  ──►  gate.release  ──►  dispatch  ──►  hold.resume_ready

A refused request is answered with its code; any other error of one request is logged and answered
with code 1, and the connection stays open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import AdminTimeBudget, PeriodicWork
from rmqpy.broker.base.store_api import Handler, HandlerTable
from rmqpy.broker.processors.fast_failure import (
    PUTS,
    RESTRICTED,
    reject_if_unavailable,
)
from rmqpy.broker.processors.send import SendProcessor
from rmqpy.broker.services.flush import LogFlusher, QueueFlusher, StoreFailureHandler
from rmqpy.broker.services.pull_hold import PullRequestHold
from rmqpy.broker.state.client_calls import ClientRequests
from rmqpy.broker.state.clients import ClientTable
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.net.pending_replies import SendGate
from rmqpy.remoting.channel import Channel, RequestHandler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.files.lost_pages import LostPagesError
from rmqpy.store.message_store import MessageStore

UNAWAITED_DISPATCH_MS: Final = 5
"""The period in which a slave without waiting readers dispatches the records that it received."""
WRITE_AT: Final = 256 * 1024
"""The size of collected replies, in bytes, at which they are written before the remaining requests
of a read are answered.
"""
WRITES: Final = PUTS | {
    RequestCode.END_TRANSACTION,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
}
"""The codes of requests that write messages."""
REGISTRATIONS: Final = {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT}
"""The codes by which clients join and leave their groups."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
HELD_REQUEST_BYTES: Final = 1024
"""The limit on the requests that are held, and what one of them counts in addition to its body."""
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

logger = logging.getLogger(__name__)


class FastPathReplies(Protocol):
    """The parts of the fast path that the server calls."""

    def request_refresh(self) -> None:
        """Share the tables again before the next frame, because frames were handled in Python."""

    def flush_replies(self) -> None:
        """Send the replies that may leave after the commit."""

    def use_log(self) -> None:
        """Use the log that the store has now."""

    def hand_back_all(self) -> None:
        """Answer nothing more: every frame is handled in Python."""


@define(slots=True, eq=False, repr=False)
class HeldWrites:
    """The requests that write messages and wait, because the log is being exchanged."""

    requests: list[tuple[Channel, RemotingCommand]] = field(factory=list)
    _bytes: int = 0

    def take(self, channel: Channel, request: RemotingCommand) -> bool:
        """Hold a request. Return False if it writes nothing, or too many requests wait."""
        if request.code not in WRITES or self._bytes > HELD_BYTES_MAX:
            return False
        self._bytes += len(request.body) + HELD_REQUEST_BYTES
        self.requests.append((channel, request))
        return True


class RequestCheck(Protocol):
    """The access control of a broker."""

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """Raise RequestRejectedError unless the peer may send this request."""


@define(slots=True, kw_only=True, eq=False, repr=False)
class BrokerServer:
    """A ``remoting.channel.RequestHandler`` for the main port; :class:`FastPort` is the other."""

    _identity: BrokerContext
    _store: MessageStore
    _scheduler: Scheduler
    _periodic: PeriodicWork
    _gate: SendGate
    _hold: PullRequestHold
    _clients: ClientTable
    _calls: ClientRequests
    _sends: SendProcessor
    _resume_pull: Handler
    _handlers: dict[int, Handler]
    _immediate_codes: Collection[int]
    """Request codes of producers and consumers, which are answered in the turn of their arrival."""
    _access: RequestCheck | None
    _log_flusher: LogFlusher
    _queue_flusher: QueueFlusher
    _failures: StoreFailureHandler
    _budget: AdminTimeBudget = field(init=False)
    _fast_path: FastPathReplies | None = field(default=None, init=False)
    _held: HeldWrites | None = field(default=None, init=False)
    turn_number: int = field(default=0, init=False)
    """The number of turns that have ended."""
    _turning: bool = field(default=False, init=False)
    _dispatch_planned: bool = field(default=False, init=False)
    _resume_planned: bool = field(default=False, init=False)
    _behind_bytes: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._budget = AdminTimeBudget(self._scheduler)

    def install_fast_path(self, fast_path: FastPathReplies) -> None:
        """Send the replies of ``fast_path`` at the end of each turn."""
        self._fast_path = fast_path

    def use_log(self) -> None:
        """Use the log that the store has now. Nothing may be staged."""
        if self._fast_path is not None:
            self._fast_path.use_log()
        self.watch_log()

    def watch_log(self) -> None:
        """Dispatch when a watermark of the log grows outside of a turn."""
        for mark in self._store.log.acknowledged(True):
            mark.subscribe(self.log_grown)

    def hold_writes(self) -> None:
        """Hold the requests that write messages until :meth:`release_writes`."""
        if self._held is None:
            self._held = HeldWrites()

    def release_writes(self) -> None:
        """Answer the requests that were held, in their order."""
        held, self._held = self._held, None
        if held is not None and held.requests:
            self.run_in_turn(lambda: self._answer_held(held))

    def _answer_held(self, held: HeldWrites) -> None:
        for channel, request in held.requests:
            if not channel.closed:
                self.handle(channel, (request,))

    def relay_clients(self, handler: Handler) -> None:
        """Answer the requests of producers and consumers with ``handler`` from now on, and the
        pulls that wait. Only their registrations are still handled here.
        """
        if self._fast_path is not None:
            self._fast_path.hand_back_all()
        self._handlers.update(dict.fromkeys(set(self._immediate_codes) - REGISTRATIONS, handler))
        self._resume_pull = handler
        self._hold.end_all()
        self._scheduler.call_soon(self._resume_rest)

    def register_handlers(self, handlers: HandlerTable) -> None:
        """Answer further request codes."""
        self._handlers.update(handlers)

    # ---------------------------------------------------------------------------------- requests

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        self._begin_turn()
        answers: list[bytes] = []
        collected = 0
        rest = None
        response: bytes | None
        for number, command in enumerate(commands):
            if command.is_response:
                self._calls.answered(channel, command)
                continue
            if command.code not in self._immediate_codes and not self._budget.begin(
                self.turn_number
            ):
                rest = commands[number:]
                break
            if self._held is not None and self._held.take(channel, command):
                continue
            handler = self._handlers.get(command.code)
            if handler is None:
                response = encode_command(not_supported(command))
            else:
                response = self._run(handler, channel, command, self._access)
            if response is None:
                continue
            answers.append(response)
            collected += len(response)
            if collected >= WRITE_AT:
                channel.write(b"".join(answers))
                answers.clear()
                collected = 0
                if channel.closed or channel.congested:  # The client does not read its replies.
                    rest = commands[number + 1 :]
                    break
        try:
            if self._sends.collected or self._sends.answers:
                answers += self._sends.put_collected(channel)
        except Exception:
            logger.exception("answering the senders at %s failed", channel.peer)
        if answers:
            channel.write(answers[0] if len(answers) == 1 else b"".join(answers))
        return rest

    def turn_ended(self) -> None:
        fast_path = self._fast_path
        if (
            fast_path is not None
            and not self._turning
            and self._store.is_idle
            and not self._gate.waiting
        ):
            # Only pulls were answered, as in most turns of a broker that is only read.
            fast_path.flush_replies()
            return
        self._turning = True
        self.turn_number += 1
        self._store.appender.commit()
        if fast_path is not None:
            fast_path.flush_replies()
        if not self._store.health.is_healthy:
            self._failures.on_failure()
        if self._gate.waiting:
            self._gate.release()
        if self._store.dispatcher.is_behind or not self._store.health.is_healthy:
            self.dispatch()
        elif self._hold.has_due:
            self._resume_held()
        self._turning = False
        if self._gate.waiting:
            self._log_flusher.begin_if_awaited()

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Run work that may write messages as a separate turn, which commits them at its end."""
        if self._turning:
            self._scheduler.call_soon(lambda: self.run_in_turn(work))
            return
        self._begin_turn()
        try:
            work()
        finally:
            self.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        self._clients.channel_closed(channel)
        self._calls.channel_closed(channel)

    def leadership_lost(self) -> None:
        """Refuse the senders that wait, because messages without a quorum may be lost."""
        if self._fast_path is not None:
            # The replies of the fast path in this turn wait for the quorum too.
            self._fast_path.flush_replies()
        self._gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def _begin_turn(self) -> None:
        self._turning = True
        if self._fast_path is not None:
            self._fast_path.request_refresh()

    def _run(
        self,
        handler: Handler,
        channel: Channel,
        request: RemotingCommand,
        access: RequestCheck | None,
    ) -> bytes | None:
        """Return the frame that answers ``request`` now, or None if there is none yet."""
        try:
            if request.code in RESTRICTED:
                reject_if_unavailable(self._store.appender, self._store.dispatcher, request.code)
            if access is not None:
                access.check(channel, request)
            response = handler(channel, request)
            if response is None or request.is_oneway:
                return None
            return encode_command(response)
        except RequestRejectedError as refusal:
            response = RemotingCommand.response_to(request, refusal.code, refusal.remark)
        except LostPagesError as error:  # logged once, not for each request
            self._failures.check_pages()
            response = _failure(request, error)
        except Exception as error:
            logger.exception("request %d from %s failed", request.code, channel.peer)
            response = _failure(request, error)
        return None if request.is_oneway else encode_command(response)

    def _resume_held(self) -> None:
        """Resume a slice of the pulls that are due, and plan the next one."""
        self._hold.resume_ready(self._resume)
        if self._hold.has_due and not self._resume_planned:
            self._resume_planned = True
            self._scheduler.call_soon(self._resume_rest)

    def _resume_rest(self) -> None:
        self._resume_planned = False
        self._resume_held()

    def _resume(self, channel: Channel, request: RemotingCommand) -> None:
        frame = self._run(self._resume_pull, channel, request, None)
        if frame is not None:
            channel.write(frame)

    # ---------------------------------------------------------------------------------- dispatch

    def dispatch(self) -> None:
        """Dispatch the confirmed records, and wake the readers that wait for them."""
        self._dispatch_planned = False
        try:
            self._store.dispatch()
        except Exception:
            logger.exception("dispatching to the consume queues failed")
            self._failures.on_failure()
        self._resume_held()
        self._dispatch_rest()

    def sweep(self) -> None:
        """Dispatch, and answer the pulls that have waited long enough."""
        self.dispatch()
        self._hold.sweep(self._store.reader.max_queue_offset)
        self._resume_held()

    def log_grown(self, _offset: int) -> None:
        """Plan a dispatch when a watermark has grown outside of a turn (a quorum has confirmed)."""
        if self._turning or self._dispatch_planned:
            return
        self._dispatch_planned = True
        if self._identity.is_slave and not self._hold.count:
            self._periodic.once("dispatch", UNAWAITED_DISPATCH_MS, self.dispatch)
        else:
            self._scheduler.call_soon(self.dispatch)

    def _dispatch_rest(self) -> None:
        """Dispatch a long range in short steps, with other work in between."""
        behind = self._store.dispatcher.behind_bytes
        if behind and behind != self._behind_bytes and self._store.health.failure is None:
            self._dispatch_planned = True
            self._scheduler.call_soon(self.dispatch)
        elif self._store.dispatcher.queue_cursor >= self._store.flush_tracker.checkpoint_due_offset:
            self._queue_flusher.begin()
        self._behind_bytes = behind


@define(slots=True, frozen=True, eq=False, repr=False)
class FastPort:
    """The second port: a ``RequestHandler`` that refuses pulls and passes on other requests."""

    _server: RequestHandler

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        others = []
        for command in commands:
            if command.code in _PULLS and not command.is_response:
                channel.write(encode_command(not_supported(command)))
            else:
                others.append(command)
        return self._server.handle(channel, others)

    def turn_ended(self) -> None:
        self._server.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        self._server.channel_closed(channel)


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Return Java's answer to a code without a processor; one-way requests receive it too."""
    return RemotingCommand.response_to(
        request,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {request.code} not supported",
    )


def _failure(request: RemotingCommand, error: Exception) -> RemotingCommand:
    return RemotingCommand.response_to(
        request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
    )
