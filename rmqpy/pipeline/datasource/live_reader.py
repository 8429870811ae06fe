"""Read queues of live brokers: offsets, and the messages between two of them.

A process has one reader for all reads with the same settings; Spark's workers live long enough to
benefit from it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, TypeVar

from attrs import define, evolve

from rmqpy.client.blocking import Blocking
from rmqpy.client.core.base_consumer import PullOrder, exact_tags
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.codec.backend import scan_records
from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RemoteProtocolError, RequestRejectedError, RmqError
from rmqpy.model.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmqpy.pipeline.arrow.rows import ScanRows, slices
from rmqpy.pipeline.datasource.cluster_access import ClusterAccess
from rmqpy.pipeline.datasource.stream_offsets import EARLIEST, LATEST, Boundary, Position
from rmqpy.remoting.bodies import MessageQueue, TopicList
from rmqpy.remoting.headers import PullMessageResponseHeader

__all__ = ["BrokerAccess", "LiveQueueReader", "QueueRange", "TopicChoice", "reader_for"]

T = TypeVar("T")

logger: Final = logging.getLogger(__name__)

CONCURRENT_REQUESTS: Final = 32
"""The number of concurrent requests to brokers."""
PAUSE_SECONDS: Final = 0.2
JOINED_BYTES: Final = 1 << 20
"""The size in bytes from which the records of pulls make a batch."""
LIST_SECONDS: Final = 1.0
"""The time for which a stream reuses a list of all topics. Without it, an idle stream would request
the list a hundred times a second.
"""
TEMPORARY_CODES: Final = frozenset(
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    ]
)
"""Codes that a broker or name server may return while it starts, or while a group elects."""


@define(slots=True, frozen=True, kw_only=True)
class BrokerAccess:
    """The settings for reads.

    ``patience_ms`` is the time for which a broker may be down, ``start_ms`` the time in which a
    topic must be found at first. ``fails`` makes lost messages an error.
    """

    cluster: ClusterAccess
    group: str
    expression: str
    pull_count: int
    patience_ms: int
    start_ms: int
    fails: bool


@define(slots=True, frozen=True)
class TopicChoice:
    """The topics to read: ``names``, or all that ``pattern`` matches completely.

    A pattern never selects system topics, retry topics, and dead letter topics.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def of(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that the pattern selects."""
        return sorted(
            name
            for name in topics
            if re.fullmatch(self.pattern or "", name)
            and not is_system_topic(name)
            and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )


@define(slots=True, frozen=True)
class QueueRange:
    """The messages of a queue from offset ``begin`` to before ``end``."""

    queue: MessageQueue
    begin: int
    end: int

    def __str__(self) -> str:
        queue = self.queue
        return f"{queue.topic}, {queue.broker_name}, queue {queue.queue_id}"


@define(slots=True, frozen=True)
class PulledRecords:
    """The answer to a pull; ``next_offset`` is where the next pull continues."""

    code: ResponseCode
    records: bytes
    next_offset: int


class _RawConsumer(PullConsumer):
    """A pull consumer that does not decode the records of an answer."""

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__(access.group, access.cluster.name_servers)
        self._client = access.cluster.settings()

    async def pull_records(self, queue: MessageQueue, order: PullOrder) -> PulledRecords:
        self._subscribe(queue.topic)
        response = await self._pull_response(queue, order)
        header = PullMessageResponseHeader.decode(response.ext_fields)
        return PulledRecords(ResponseCode(response.code), response.body, header.next_begin_offset)

    async def topics(self) -> list[str]:
        """Return all topics of the name server."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        response = await self._open().invoke_namesrv(code)
        if response.code != ResponseCode.SUCCESS:
            raise RequestRejectedError(response.code, response.remark or "no list of topics")
        return TopicList.decode(response.body).topic_list

    async def queues_if_any(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic; none if it was deleted meanwhile."""
        try:
            return await self.queues(topic)
        except RequestRejectedError as refusal:
            if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []

    async def refresh_route(self, topic: str) -> None:
        """Request the route again, because another broker may be responsible by now."""
        instance = self._open()
        instance.invalidate_route(topic)
        await instance.route(topic)

    async def of_all(
        self,
        queues: Iterable[MessageQueue],
        request: Callable[[MessageQueue], Coroutine[Any, Any, T]],
    ) -> list[T | RmqError]:
        """Return the answer, or the error, for each queue."""
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def one(queue: MessageQueue) -> T | RmqError:
            async with limit:
                try:
                    return await request(queue)
                except (NetworkError, RequestRejectedError) as fault:
                    return fault

        return await asyncio.gather(*map(one, queues))

    async def first_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at ``time_ms`` or later, or the queue's
        end.
        """
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        while low < high:
            middle = (low + high) // 2
            pulled = await self.pull_records(queue, PullOrder(offset=middle, max_count=1))
            scan = scan_of(pulled.records)
            if not scan or scan.store_timestamp_ms[0] >= time_ms:
                high = middle
            else:
                low = scan.queue_offset[0] + 1
        return low


@cache
def reader_for(access: BrokerAccess) -> LiveQueueReader:
    """Return the connected reader of this process."""
    reader = LiveQueueReader(access)
    reader.start()
    return reader


class LiveQueueReader(Blocking[_RawConsumer]):
    """A reader that repeats each request until it succeeds or ``patience_ms`` has passed."""

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__(_RawConsumer(access))
        self._access = access
        self._tags = exact_tags(access.expression)
        self._lagging_since: dict[MessageQueue, float] = {}
        self._listed: list[str] = []
        self._listed_at = 0.0
        self._reached: set[str] = set()

    # -- positions

    def queues(self, topics: TopicChoice, age_seconds: float = 0.0) -> list[MessageQueue]:
        """Return the readable queues of the topics; a topic list may be ``age_seconds`` old."""
        if topics.pattern is None:
            names, request = topics.names, self._member.queues
        else:
            names, request = (
                tuple(topics.of(self._all_topics(age_seconds))),
                self._member.queues_if_any,
            )
        return [queue for topic in names for queue in self._found(topic, partial(request, topic))]

    def _found(self, topic: str, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer of the name server; before the first one about a topic, wait for it
        only a short time, because the topic or the address is probably wrong.
        """
        access = self._access
        known = topic in self._reached
        patience_ms = access.patience_ms if known else min(access.start_ms, access.patience_ms)
        answer = self._retry(topic, request, patience_ms)
        self._reached.add(topic)
        return answer

    def _all_topics(self, age_seconds: float) -> list[str]:
        if time.monotonic() - self._listed_at >= age_seconds:
            self._listed = self._found("", self._member.topics)
            self._listed_at = time.monotonic()
        return self._listed

    def resolve(self, queues: Sequence[MessageQueue], boundary: Boundary) -> Position:
        """Return the boundary as offsets."""
        member = self._member
        boundary.check(queues)

        async def offset_of(queue: MessageQueue) -> int:
            time_ms = boundary.time_of(queue)
            if time_ms is not None:
                return await member.first_at(queue, time_ms)
            at = boundary.of(queue)
            if at == EARLIEST:
                return await member.min_offset(queue)
            return await member.max_offset(queue) if at == LATEST else at

        return self._of_all(queues, offset_of)

    def ends(self, before: Position, topics: TopicChoice, *, every: bool) -> Position:
        """Return the ends of the queues.

        A queue whose broker does not answer is omitted, unless ``every`` is True. No end is smaller
        than in ``before``, except for a queue that was recreated (failOnDataLoss=false).
        """
        while True:
            queues = self.queues(topics, 0.0 if every else LIST_SECONDS)
            found = self._answered_ends(queues, every=every)
            ends = {
                queue: self._end(queue, at, before.get(queue, 0)) for queue, at in found.items()
            }
            if not every or not self._lagging_since.keys() & ends.keys():
                return ends
            time.sleep(PAUSE_SECONDS)

    def _answered_ends(self, queues: Sequence[MessageQueue], *, every: bool) -> Position:
        if every:
            return self._of_all(queues, self._member.max_offset)
        answers = self._wait(self._member.of_all(queues, self._member.max_offset))
        pairs = zip(queues, answers, strict=True)
        found = {queue: at for queue, at in pairs if isinstance(at, int)}
        for queue in queues[: 0 if found else 1]:
            found = self._of_all([queue], self._member.max_offset)
        return found

    def _end(self, queue: MessageQueue, at: int, before: int) -> int:
        """Return the end of a queue, at least ``before`` while its broker may still catch up.

        A new leader may briefly have fewer messages than the previous one.
        """
        now = time.monotonic()
        since = self._lagging_since.setdefault(queue, now) if at < before else now
        if at < before and (now - since) * 1000 < self._access.patience_ms:
            return before
        self._lagging_since.pop(queue, None)
        if at >= before:
            return at
        part = QueueRange(queue, at, before)
        reason = f"the queue ends at {at}, before {before}, which was already read"
        if self._access.fails:
            raise _loss(part, reason)
        logger.warning("%s: %s; it is read again from its first message", part, reason)
        return at

    def commit_position(self, group: str, position: Position) -> None:
        """Commit ``position`` as offsets of ``group``, for monitoring; errors are only logged."""
        reader = reader_for(evolve(self._access, group=group))
        member = reader._member

        async def commit(queue: MessageQueue) -> None:
            await member.commit_offset(queue, position[queue])

        for answer in reader._wait(member.of_all(position, commit)):
            if answer is not None:
                logger.warning("an offset of the group %s was not committed: %s", group, answer)

    # -- messages

    def rows(self, part: QueueRange) -> Iterator[ScanRows]:
        """Yield the messages of ``part``.

        The answers to several pulls are joined, because a batch costs as much as many messages.
        Raise NetworkError if the broker does not have all of them in time.
        """
        joined = bytearray()
        for records in self._pulled(part):
            joined += records
            if len(joined) >= JOINED_BYTES:
                yield from self._selected(part, bytes(joined))
                joined.clear()
        if joined:
            yield from self._selected(part, bytes(joined))

    def _pulled(self, part: QueueRange) -> Iterator[bytes]:
        offset, backoff = part.begin, _Backoff(self._access.patience_ms)
        while offset < part.end:
            order = PullOrder(
                offset=offset,
                max_count=min(self._access.pull_count, part.end - offset),
                expression=self._access.expression,
            )
            pull = partial(self._member.pull_records, part.queue, order)
            pulled = self._retry(part.queue.topic, pull)
            after = self._after(part, offset, pulled)
            if after <= offset:
                backoff.pause(
                    f"{part}: the broker does not have message {offset} (reading up to {part.end})"
                )
                self._retry(part.queue.topic, partial(self._member.refresh_route, part.queue.topic))
                continue
            backoff = _Backoff(self._access.patience_ms)
            if pulled.code == ResponseCode.SUCCESS:
                yield pulled.records
            offset = after

    def _after(self, part: QueueRange, offset: int, pulled: PulledRecords) -> int:
        """Return the offset at which to continue, or ``offset`` if there is no message yet."""
        if pulled.code == ResponseCode.PULL_NOT_FOUND:
            return offset
        after = max(pulled.next_offset, offset)
        if pulled.code == ResponseCode.SUCCESS:
            offsets = scan_of(pulled.records).queue_offset
            if self._tags is not None or after - offset == len(offsets):
                return after
        elif pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY and self._tags is not None:
            return after
        if after > offset and self._access.fails:
            raise _loss(part, f"some of the messages {offset} to {after - 1} are missing")
        if after > offset:
            logger.warning("%s: some of the messages %d to %d are missing", part, offset, after - 1)
        return after

    def _selected(self, part: QueueRange, records: bytes) -> Iterator[ScanRows]:
        scan = scan_of(records)
        view = memoryview(records)
        rows: Sequence[int] = [
            row for row, offset in enumerate(scan.queue_offset) if part.begin <= offset < part.end
        ]
        if self._tags is not None and rows:
            parts = ScanRows(scan, view, range(len(scan)), 0).parts(check_crc=False)
            ranges = list(zip(parts.tags_position, parts.tags_length, strict=True))
            texts = [java_text(records[at : at + length]) for at, length in ranges]
            rows = [row for row in rows if texts[row] in self._tags]
        found = ScanRows(scan, view, rows, 0)
        for first, end in slices(found.numbers("size")):
            yield found.part(range(first, end))

    # -- requests

    def _of_all(
        self,
        queues: Sequence[MessageQueue],
        request: Callable[[MessageQueue], Coroutine[Any, Any, T]],
    ) -> dict[MessageQueue, T]:
        """Return an answer for each queue; failed requests are repeated one after the other."""
        found: dict[MessageQueue, T] = {}
        answers = self._wait(self._member.of_all(queues, request))
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, RmqError):
                answer = self._retry(queue.topic, partial(request, queue))
            found[queue] = answer
        return found

    def _retry(
        self,
        topic: str,
        request: Callable[[], Coroutine[Any, Any, T]],
        patience_ms: int | None = None,
    ) -> T:
        backoff = _Backoff(self._access.patience_ms if patience_ms is None else patience_ms)
        while True:
            try:
                return self._wait(request())
            except (NetworkError, RequestRejectedError) as fault:
                if isinstance(fault, RequestRejectedError) and fault.code not in TEMPORARY_CODES:
                    raise
                backoff.pause(str(fault), fault)
            with suppress(NetworkError, RequestRejectedError):
                self._wait(self._member.refresh_route(topic))


class _Backoff:
    """Pauses between attempts until the patience is exhausted."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._end = time.monotonic() + patience_ms / 1000

    def pause(self, why: str, fault: RmqError | None = None) -> None:
        if time.monotonic() >= self._end:
            raise NetworkError(f"{why} (waited {self._patience_ms} ms)") from fault
        time.sleep(PAUSE_SECONDS)


def scan_of(records: bytes) -> Scan:
    """Return the scan of concatenated records. Raise RemoteProtocolError if they are invalid."""
    scan = scan_records(memoryview(records), 0, dledger=False, check_crc=False)
    if scan.stop is not StopReason.END:
        raise RemoteProtocolError(
            f"a pull returned an invalid message: {scan.stop.name} at {scan.end}"
        )
    return scan


def _loss(part: QueueRange, what: str) -> RmqError:
    return RmqError(
        f"{part}: {what}; they were deleted, or another store answers under this name. "
        "Set the option failOnDataLoss=false to continue without them"
    )
