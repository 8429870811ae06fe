"""Carry out the requests of a recording at a broker, and compare.

Requests of one recorded connection keep their order: each is sent when the one before it is
answered. Times are those of the recording, divided by ``speed``, or there are ``rate`` requests a
second. What consumers received is read from the target at the mapped offsets
(:mod:`rmqpy.traffic.offset_map`), after the sends that precede it in the recording.

Only the requests in ``SENDS`` and ``OTHERS`` are carried out. Others would change the target
(administration) or name places of the recorded log (transactions, messages sent back); they are
counted. So are messages that were sent before the recording and that the target does not have, and
those whose place depends on time (delayed, retried).

Memory: as many requests as ``WINDOW`` per connection, and received messages of ``LATE_MAX`` pulls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final

from attrs import define, evolve, field

from rmqpy.codec.message import batch_records, decode_message
from rmqpy.codec.properties import decode_properties
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.model.flags import TRANSACTION_PREPARED
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import is_dlq_topic, is_retry_topic
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.traffic.comparison import STORED, TrafficComparison, code_name
from rmqpy.traffic.exchanges import ExchangeReader, RecordedExchange
from rmqpy.traffic.offset_map import OffsetMap, Queue
from rmqpy.traffic.recording import RecordingReader

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }
)
OTHERS: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)
CLIENTS_MAX: Final = 64
WINDOW: Final = 64
LATE_MAX: Final = 1_000
LATE_US: Final = 2_000_000
"""The recorded time that a received message may precede the answer of its send."""
TIMEOUT_MS: Final = 10_000
PULL_COUNT: Final = 32
SUBSCRIPTION_ONLY: Final = "4"
"""The sysFlag of a pull that neither waits nor commits an offset, and has a subscription."""


@define(frozen=True, kw_only=True)
class ReplayPlan:
    """``speed`` divides the recorded times; 0 is as fast as possible, and so is ``rate``, in
    requests a second, if it is given. ``clients`` is the largest number of connections.
    """

    target: str
    speed: float = 1.0
    rate: float | None = None
    clients: int = CLIENTS_MAX


@define(eq=False)
class _ReplayClient:
    """One connection to the target, and the requests that wait for it."""

    client: RemotingClient
    waiting: asyncio.Queue[RecordedExchange] = field(factory=lambda: asyncio.Queue(WINDOW))
    task: asyncio.Task[None] | None = None


class TrafficReplay:
    """One replay of one recording."""

    def __init__(
        self, reader: RecordingReader, plan: ReplayPlan, scheduler: AsyncioScheduler
    ) -> None:
        self._reader = reader
        self._exchanges = ExchangeReader(reader)
        self._plan = plan
        self._scheduler = scheduler
        self._clients: dict[int, _ReplayClient] = {}
        self._late: deque[RecordedExchange] = deque()
        self._offsets = OffsetMap()
        self._result = TrafficComparison(plan.target)
        self._found: dict[Queue, dict[int, StoredMessage]] = {}

    async def run(self) -> TrafficComparison:
        """Replay everything. Raises RmqError if the target cannot be reached at the begin, or the
        recording is damaged.
        """
        try:
            await self._reach()
            begin_ms, first_us, number = self._scheduler.monotonic_ms(), -1, 0
            for exchange in self._exchanges:
                if first_us < 0:
                    first_us = exchange.time_us
                due_s = self._due_s(exchange.time_us - first_us, number)
                passed_s = (self._scheduler.monotonic_ms() - begin_ms) / 1000
                await asyncio.sleep(max(0.0, due_s - passed_s))
                number += await self._take(exchange)
                await self._compare_late(exchange.time_us - LATE_US)
            await self._compare_late(None)
        finally:
            for each in self._clients.values():
                if each.task is not None:
                    each.task.cancel()
            tasks = [each.task for each in self._clients.values() if each.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in self._clients.values():
                await each.client.close()
        self._note_rest()
        return self._result

    def _due_s(self, time_us: int, number: int) -> float:
        if self._plan.rate is not None:
            return number / self._plan.rate
        return time_us / 1e6 / self._plan.speed if self._plan.speed else 0.0

    async def _reach(self) -> None:
        """Raise RmqError if the target does not answer."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        try:
            await self._client_of(0).client.invoke(self._plan.target, request, TIMEOUT_MS)
        except NetworkError as error:
            raise RmqError(f"{error}; start the broker, or give another address") from error

    def _client_of(self, connection: int) -> _ReplayClient:
        number = connection % max(1, self._plan.clients)
        if number not in self._clients:
            each = _ReplayClient(RemotingClient(self._scheduler))
            each.task = asyncio.create_task(self._work(each))
            self._clients[number] = each
        return self._clients[number]

    async def _take(self, exchange: RecordedExchange) -> bool:
        """Put a request in the queue of its connection; return False if it is not carried out."""
        code = exchange.request.code
        if code in SENDS or code in OTHERS:
            client = self._client_of(exchange.connection)
            await client.waiting.put(exchange)
            return True
        if code == RequestCode.PULL_MESSAGE:
            answer = exchange.answer
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._late.append(exchange)
        else:
            self._result.left_out[f"requests {code_name(code, RequestCode)}"] += 1
        return False

    async def _work(self, client: _ReplayClient) -> None:
        while True:
            exchange = await client.waiting.get()
            try:
                await self._carry_out(client.client, exchange)
            finally:
                client.waiting.task_done()

    async def _carry_out(self, client: RemotingClient, exchange: RecordedExchange) -> None:
        recorded, request = exchange.answer, self._mapped(exchange.request)
        place = f"connection {exchange.connection}, {exchange.time_us / 1e6:.3f} s"
        try:
            if recorded is None:
                await client.invoke_oneway(self._plan.target, request)
                return
            found = await client.invoke(self._plan.target, request, TIMEOUT_MS)
        except RmqError as error:
            what = f"{code_name(request.code, RequestCode)}: {type(error).__name__}"
            self._result.answers += 1
            self._result.differ(what, place)
            return
        self._result.answer(request.code, recorded.code, found.code, place)
        if request.code in SENDS and recorded.code in STORED and found.code in STORED:
            self._sent(request, recorded, found, place)

    def _mapped(self, request: RemotingCommand) -> RemotingCommand:
        """Return the request with the offset of the target, if it has one."""
        fields = dict(request.ext_fields)
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            queue = fields.get("topic", ""), _number(fields.get("queueId"))
            offset = _number(fields.get("commitOffset"))
            if offset > 0:  # It is the offset after the last message.
                mapped = self._offsets.get(queue, offset - 1)
                fields["commitOffset"] = str(offset if mapped is None else mapped + 1)
        return evolve(request, ext_fields=fields)

    def _sent(
        self,
        request: RemotingCommand,
        recorded: RemotingCommand,
        found: RemotingCommand,
        place: str,
    ) -> None:
        fields = request.ext_fields
        is_v1 = request.code == RequestCode.SEND_MESSAGE
        topic = fields.get("topic" if is_v1 else "b", "")
        properties = decode_properties(fields.get("properties" if is_v1 else "i", "").encode())
        queues = [_number(each.ext_fields.get("queueId")) for each in (recorded, found)]
        if queues[0] != queues[1]:
            self._result.differ(f"topic {topic}: a message is stored in another queue", place)
            return
        is_half = _number(fields.get("sysFlag" if is_v1 else "f")) & TRANSACTION_PREPARED
        if is_half or "DELAY" in properties:
            return  # The offset belongs to another topic.
        first, target = (_number(each.ext_fields.get("queueOffset")) for each in (recorded, found))
        count = 1
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            count = len(batch_records(request.body))
        for number in range(count):
            self._offsets.add((topic, queues[0]), first + number, target + number)

    # -- what consumers received

    async def _compare_late(self, before_us: int | None) -> None:
        """Compare the received messages that were recorded before a time; None: all."""
        due = [
            each
            for each in self._late
            if before_us is None or each.time_us < before_us or len(self._late) > LATE_MAX
        ]
        if not due and before_us is not None:
            return
        for client in list(self._clients.values()):
            await client.waiting.join()
        for exchange in due:
            self._late.remove(exchange)
            await self._compare_received(exchange)

    async def _compare_received(self, exchange: RecordedExchange) -> None:
        assert exchange.answer is not None
        for recorded in _messages(exchange.answer.body):
            if is_retry_topic(recorded.topic) or is_dlq_topic(recorded.topic):
                self._result.left_out["messages of retry topics"] += 1
                continue
            if recorded.properties.get("REAL_TOPIC") or recorded.properties.get("DELAY"):
                self._result.left_out["messages with a delay"] += 1
                continue
            queue = recorded.topic, recorded.queue_id
            mapped = self._offsets.get(queue, recorded.queue_offset)
            if mapped is None:
                self._result.left_out["messages from before the recording"] += 1
                continue
            self._result.message(recorded, await self._read(exchange.request, queue, mapped))

    async def _read(self, pull: RemotingCommand, queue: Queue, offset: int) -> StoredMessage | None:
        """Return the message of the target at ``offset``, with the pull that was recorded."""
        known = self._found.get(queue, {})
        if offset not in known:
            fields = {
                **pull.ext_fields,
                "topic": queue[0],
                "queueId": str(queue[1]),
                "queueOffset": str(offset),
                "maxMsgNums": str(PULL_COUNT),
                "sysFlag": SUBSCRIPTION_ONLY,
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            }
            request = evolve(pull, ext_fields=fields, flag=0)
            client = self._client_of(0).client
            try:
                answer = await client.invoke(self._plan.target, request, TIMEOUT_MS)
            except RmqError as error:
                self._result.differ(
                    f"a pull of topic {queue[0]}: {type(error).__name__}", str(queue)
                )
                return None
            known = {each.queue_offset: each for each in _messages(answer.body)}
            self._found[queue] = known  # The next messages of this queue are probably in it.
        return known.get(offset)

    def _note_rest(self) -> None:
        if self._exchanges.unanswered:
            self._result.left_out["requests without a recorded answer"] += (
                self._exchanges.unanswered
            )
        if self._exchanges.unreadable:
            self._result.left_out["frames that cannot be decoded"] += self._exchanges.unreadable
        if self._reader.torn_bytes:
            self._result.notes.append(
                f"the recording ends with {self._reader.torn_bytes} bytes of a torn record"
            )


def _messages(body: bytes) -> Iterator[StoredMessage]:
    view, position = memoryview(body), 0
    while position < len(view):
        message = decode_message(view, position)
        position += message.size
        yield message


def _number(text: str | None) -> int:
    return int(text) if text and text.lstrip("-").isdecimal() else 0
