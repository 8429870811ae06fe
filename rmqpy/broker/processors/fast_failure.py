"""Refusal of requests that have waited too long (``brokerFastFailureEnable``).

==================  ================================  ========
code                key                               default
==================  ================================  ========
10 310 320 36       waitTimeMillsInSendQueue            200 ms
11 361              waitTimeMillsInPullQueue           5000 ms
34                  waitTimeMillsInHeartbeatQueue     31000 ms
37                  waitTimeMillsInTransactionQueue    3000 ms
==================  ================================  ========

Sends that follow a write of the log which took longer than ``osPageCacheBusyTimeOutMills`` are
refused too, whatever their age: with ``[PCBUSY_CLEAN_QUEUE]`` if they are known to have waited,
and with ``[REJECTREQUEST]`` otherwise or if ``brokerFastFailureEnable`` is off.

All these senders receive SYSTEM_BUSY, which Java clients do not retry. How long a request has
waited is known when many wait (:mod:`rmqpy.net.server.stall_detector`). Refusing one request takes
Python as long as the fast path takes to store dozens, so requests beyond the time slice of a turn
are handled instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import SLICE_MS
from rmqpy.broker.base.store_api import StoreWriter
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.dispatcher import Dispatcher

NEVER_MS: Final = 1 << 62
PUTS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
"""The codes that Java's ``SendMessageProcessor`` handles."""
_NEED_WHOLE_QUEUES: Final = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
    }
)
RESTRICTED: Final = PUTS | _NEED_WHOLE_QUEUES
"""Codes that :func:`reject_if_unavailable` may refuse."""


def reject_if_unavailable(writer: StoreWriter, dispatcher: Dispatcher, code: int) -> None:
    """Raise RequestRejectedError for a request of :data:`RESTRICTED` that cannot be answered now:
    a send while the page cache is busy, or an offset while the consume queues are rebuilt.
    """
    if code not in PUTS:
        _reject_while_rebuilding(dispatcher)
    elif writer.page_cache_busy:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"
        )


@define(slots=True, eq=False, repr=False)
class FastFailure:
    """The ``OverloadFilter`` of the server, which refuses requests that have waited too long."""

    _identity: BrokerContext
    _writer: StoreWriter
    _scheduler: Scheduler
    refused: int = 0
    _until_ms: int | None = field(default=None, init=False)
    """The end of the time slice of this loop turn, which all servers of the process share; None
    before the first refusal of the turn.
    """

    @property
    def patience_ms(self) -> int:
        limits = self._limits()
        if not limits:
            return NEVER_MS
        return 1 if self._writer.page_cache_busy else min(limits.values())

    def sift(
        self, channel: Channel, commands: Sequence[RemotingCommand], waited_ms: int
    ) -> list[RemotingCommand]:
        """Refuse the requests that are too old and return the others in their order."""
        limits = self._limits()
        after_slow_write = bool(limits) and self._writer.page_cache_busy
        kept: list[RemotingCommand] = []
        answers: list[bytes] = []
        for command in commands:
            limit_ms = NEVER_MS if command.is_response else limits.get(command.code, NEVER_MS)
            reason = ""
            if waited_ms >= limit_ms:
                reason = "TIMEOUT_CLEAN_QUEUE"
            elif after_slow_write and command.code in PUTS and not command.is_response:
                reason = "PCBUSY_CLEAN_QUEUE"
            if not reason or not self._has_time():
                kept.append(command)
                continue
            self.refused += 1
            if not command.is_oneway:
                age = f"period in queue: {waited_ms}ms, size of queue: {len(commands)}"
                answers.append(encode_command(_busy(command, reason, age)))
        if answers:
            channel.write(b"".join(answers))
        return kept

    def _has_time(self) -> bool:
        """Return whether this turn has time to refuse one more request."""
        now_ms = self._scheduler.monotonic_ms()
        if self._until_ms is None:
            self._until_ms = now_ms + SLICE_MS
            self._scheduler.call_soon(self._turn_ended)
            return True
        return now_ms < self._until_ms

    def _turn_ended(self) -> None:
        self._until_ms = None

    def _limits(self) -> dict[int, int]:
        broker = self._identity.broker_settings
        if not broker.broker_fast_failure_enable:
            return {}
        send_ms = broker.wait_time_mills_in_send_queue
        pull_ms = broker.wait_time_mills_in_pull_queue
        return {
            **dict.fromkeys(PUTS, send_ms),
            RequestCode.PULL_MESSAGE: pull_ms,
            RequestCode.LITE_PULL_MESSAGE: pull_ms,
            RequestCode.HEART_BEAT: broker.wait_time_mills_in_heartbeat_queue,
            RequestCode.END_TRANSACTION: broker.wait_time_mills_in_transaction_queue,
        }


def _busy(request: RemotingCommand, reason: str, age: str) -> RemotingCommand:
    return RemotingCommand.response_to(
        request,
        ResponseCode.SYSTEM_BUSY,
        f"[{reason}]broker busy, start flow control for a while, {age}",
    )


def _reject_while_rebuilding(dispatcher: Dispatcher) -> None:
    """Raise RequestRejectedError while the consume queues lag behind the log after a restart.

    A pull returns the messages that its queue already contains, and waits if there are none
    (:mod:`rmqpy.store.reader`). Requests for offsets are refused: an answer from an incomplete
    queue would send a consumer to the wrong offset.
    """
    if dispatcher.is_rebuilding_queues:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            "the consume queues are being rebuilt from the log,"
            f" {dispatcher.behind_bytes} bytes remain",
        )
