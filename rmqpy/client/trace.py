"""The message trace, in the format of Java's clients: when and by which client a message was sent
and consumed.

Tracing is off unless the settings of a member name a ``trace_topic`` (Java: RMQ_SYS_TRACE_TOPIC,
which a broker offers with ``traceTopicEnable``). A trace message consists of records, and a record
of fields. The keys of a trace message are the ids and keys of the messages that its records
describe, so that ``mqadmin queryMsgTraceById`` finds it.

=========  ======================================================================================
record     fields, separated by 0x01, with 0x02 after the last
=========  ======================================================================================
Pub        time, region, group, topic, msgId, tags, keys, storeHost, bodyLength, costTime,
           msgType, offsetMsgId, success
SubBefore  time, region, group, requestId, msgId, retryTimes, keys
SubAfter   requestId, msgId, costTime, success, keys, contextCode, time, group
=========  ======================================================================================

Times are in ms. ``msgType``: 0 normal, 1 half, 3 delayed. ``contextCode``: 0 success, 1 timeout, 2
exception, 4 failed. Tracing never delays or fails the traced operation: records wait in a bounded
queue (``WAITING_MAX``), and records that find it full, or no broker, are counted in
:attr:`Tracer.lost`.
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
"""The largest number of records in one trace message."""
BODY_BYTES_MAX: Final = 128_000
PAUSE_SECONDS: Final = 0.1
REGION: Final = "DefaultRegion"
NONE: Final = "null"
"""The text for missing tags and keys: Java's readers fail on a record whose last field is empty."""
NORMAL, HALF, DELAYED = 0, 1, 3
SUCCESS, FAULT, FAILED = 0, 2, 4

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class TraceRecord:
    """One record of a trace; ``keys`` are the keys under which it is found."""

    text: str
    keys: tuple[str, ...]


@define(slots=True, frozen=True, kw_only=True)
class SendTrace:
    """The outcome of one send, successful or not."""

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

    def record(self, start_ms: int, cost_ms: int) -> TraceRecord:
        """Return the ``Pub`` record of a send that started at ``start_ms`` and took ``cost_ms``."""
        fields: list[object] = ["Pub", start_ms, REGION, self.group, self.topic, self.msg_id]
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
    """A queue of trace records, which are sent in batches until it is closed.

    ``send`` delivers one message; ``ended`` is called after the last one.
    """

    topic: str
    clock: Clock
    send: Callable[[Message], Awaitable[object]]
    ended: Callable[[], Awaitable[None]]
    lost: int = 0
    _waiting: deque[TraceRecord] = field(factory=deque)
    _has_records: asyncio.Event = field(factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task that sends the records."""
        self._task = asyncio.create_task(self._send_forever(), name="rmqpy-client-trace")

    async def close(self) -> None:
        """Send the waiting records once, then stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting:
            await self._send_some()
        await self.ended()

    def add(self, record: TraceRecord) -> None:
        """Queue ``record``, or count it as lost if the queue is full."""
        if len(self._waiting) >= WAITING_MAX:
            self.lost += 1
            return
        self._waiting.append(record)
        self._has_records.set()

    def traced_listener(self, group: str, listener: Listener) -> Listener:
        """Return ``listener``, with a record written before and after each call."""

        async def consume(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            request = messages[0].msg_id
            start_ms = self.clock.now_ms()
            for message in messages:
                self.add(_sub_before(group, request, start_ms, message))
            code = FAULT
            try:
                result = await listener(messages)
                code = FAILED if result is ConsumeResult.RECONSUME_LATER else SUCCESS
                return result
            finally:
                now_ms = self.clock.now_ms()
                cost_ms = (now_ms - start_ms) // len(messages)
                for message in messages:
                    self.add(_sub_after(group, request, (now_ms, cost_ms, code), message))

        return consume

    async def _send_forever(self) -> None:
        while True:
            await self._has_records.wait()
            await asyncio.sleep(PAUSE_SECONDS)  # The message then contains more records.
            self._has_records.clear()
            while self._waiting:
                await self._send_some()

    async def _send_some(self) -> None:
        """Send one message with as many waiting records as fit."""
        batch: list[TraceRecord] = []
        size = 0
        while self._waiting and len(batch) < RECORDS_MAX and size < BODY_BYTES_MAX:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].text)
        keys = dict.fromkeys(key for record in batch for key in record.keys)
        body = "".join(record.text for record in batch).encode()
        try:
            await self.send(Message(topic=self.topic, body=body, keys=" ".join(keys)))
        except RmqError as fault:
            self.lost += len(batch)
            logger.warning(
                "lost %d trace records, because sending them failed: %s", len(batch), fault
            )


def _sub_before(group: str, request: str, now_ms: int, message: MessageExt) -> TraceRecord:
    times = message.stored.reconsume_times
    fields = ("SubBefore", now_ms, REGION, group, request, message.msg_id, times)
    return _record((*fields, message.keys or NONE), message.msg_id, message.keys)


def _sub_after(
    group: str, request: str, outcome: tuple[int, int, int], message: MessageExt
) -> TraceRecord:
    now_ms, cost_ms, code = outcome
    fields = ("SubAfter", request, message.msg_id, cost_ms, code == SUCCESS)
    return _record(
        (*fields, message.keys or NONE, code, now_ms, group), message.msg_id, message.keys
    )
