"""Message trace as Java's clients write it: who sent a message, who consumed it, and when.

Off unless the settings of a member name a ``trace_topic`` (Java: RMQ_SYS_TRACE_TOPIC, which a
broker offers with ``traceTopicEnable``). A trace message has records, each of fields; its keys are
the ids and keys of the messages that it tells of, so that ``mqadmin queryMsgTraceById`` finds it.

=========  ======================================================================================
record     fields, with 0x01 between them and 0x02 behind the last
=========  ======================================================================================
Pub        time, region, group, topic, msgId, tags, keys, storeHost, bodyLength, costTime,
           msgType, offsetMsgId, success
SubBefore  time, region, group, requestId, msgId, retryTimes, keys
SubAfter   requestId, msgId, costTime, success, keys, contextCode, time, group
=========  ======================================================================================

Times in ms. ``msgType``: 0 normal, 1 half, 3 delayed. ``contextCode``: 0 success, 1 time-out,
2 exception, 4 failed. Tracing never delays or fails what is traced: records wait in a bounded queue
(``WAITING_MAX``), and what finds no room, or no broker, is counted in :attr:`Tracer.lost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from attrs import define, field

from rmqpy.client.consuming.consume_service import ConsumeResult, Listener
from rmqpy.client.core.message import Message, MessageExt
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RmqError

WAITING_MAX: Final = 2_048
RECORDS_MAX: Final = 100
"""Records of one trace message."""
BODY_BYTES_MAX: Final = 128_000
PAUSE_SECONDS: Final = 0.1
REGION: Final = "DefaultRegion"
NONE: Final = "null"
"""Tags and keys that a message has not; Java's readers fail on a record that ends with nothing."""
NORMAL, HALF, DELAYED = 0, 1, 3
SUCCESS, FAULT, FAILED = 0, 2, 4

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class TraceRecord:
    """One line of a trace; ``keys`` lead to it."""

    text: str
    keys: tuple[str, ...]


@define(slots=True, frozen=True, kw_only=True)
class SendTrace:
    """A message that was sent, or not."""

    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    kind: int
    offset_msg_id: str
    success: bool

    def record(self, began_ms: int, cost_ms: int) -> TraceRecord:
        fields: list[object] = ["Pub", began_ms, REGION, self.group, self.topic, self.msg_id]
        fields += [self.tags or NONE, self.keys or NONE, self.store_host]
        fields += [self.body_bytes, cost_ms, self.kind]
        fields += [self.offset_msg_id, self.success]
        return _record(fields, self.msg_id, self.keys)


def _record(fields: Iterable[object], msg_id: str, keys: str) -> TraceRecord:
    text = "\x01".join(str(each).lower() if isinstance(each, bool) else str(each)
                       for each in fields)  # fmt: skip
    return TraceRecord(f"{text}\x02", (msg_id, *keys.split()))


@define(eq=False, repr=False)
class Tracer:
    """Collects records and sends them on, until it is closed. ``send`` delivers one message,
    ``ended`` runs at the end.
    """

    topic: str
    clock: Clock
    send: Callable[[Message], Awaitable[object]]
    ended: Callable[[], Awaitable[None]]
    lost: int = 0
    _waiting: deque[TraceRecord] = field(factory=deque)
    _news: asyncio.Event = field(factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._send_for_ever(), name="rmqpy-client-trace")

    async def close(self) -> None:
        """Send what waits, once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting:
            await self._send_some()
        await self.ended()

    def add(self, record: TraceRecord) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.lost += 1
            return
        self._waiting.append(record)
        self._news.set()

    def listening(self, group: str, listener: Listener) -> Listener:
        """``listener``, told of before and behind each call."""

        async def consume(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            request = messages[0].msg_id
            began_ms = self.clock.now_ms()
            for message in messages:
                self.add(_before(group, request, began_ms, message))
            code = FAULT
            try:
                result = await listener(messages)
                code = FAILED if result is ConsumeResult.RECONSUME_LATER else SUCCESS
                return result
            finally:
                now_ms = self.clock.now_ms()
                cost_ms = (now_ms - began_ms) // len(messages)
                for message in messages:
                    self.add(_after(group, request, (now_ms, cost_ms, code), message))

        return consume

    async def _send_for_ever(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(PAUSE_SECONDS)  # more of them make one message
            self._news.clear()
            while self._waiting:
                await self._send_some()

    async def _send_some(self) -> None:
        """One trace message."""
        taken: list[TraceRecord] = []
        size = 0
        while self._waiting and len(taken) < RECORDS_MAX and size < BODY_BYTES_MAX:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].text)
        keys = dict.fromkeys(key for record in taken for key in record.keys)
        body = "".join(record.text for record in taken).encode()
        try:
            await self.send(Message(topic=self.topic, body=body, keys=" ".join(keys)))
        except RmqError as fault:
            self.lost += len(taken)
            logger.warning("%d trace records are lost: %s", len(taken), fault)


def _before(group: str, request: str, now_ms: int, message: MessageExt) -> TraceRecord:
    times = message.stored.reconsume_times
    fields = ("SubBefore", now_ms, REGION, group, request, message.msg_id, times)
    return _record((*fields, message.keys or NONE), message.msg_id, message.keys)


def _after(
    group: str, request: str, outcome: tuple[int, int, int], message: MessageExt
) -> TraceRecord:
    now_ms, cost_ms, code = outcome
    fields = ("SubAfter", request, message.msg_id, cost_ms, code == SUCCESS)
    return _record(
        (*fields, message.keys or NONE, code, now_ms, group), message.msg_id, message.keys
    )
