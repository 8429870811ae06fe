"""Reading queues of live brokers: positions, and the messages between two of them.

A process has one reader for brokers that it reads in the same way; the workers of Spark live long
enough for it to pay.
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

AT_A_TIME: Final = 32
"""Questions to brokers under way."""
PAUSE_SECONDS: Final = 0.2
LIST_SECONDS: Final = 1.0
"""How long a stream uses a list of all topics: one that waits asks a hundred times a second."""
PASSING: Final = frozenset(
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    ]
)
"""What a broker or name server may answer while it starts, or while a group elects."""


@define(slots=True, frozen=True, kw_only=True)
class BrokerAccess:
    """How to read. ``patience_ms``: how long a broker may be away. ``fails``: on lost messages."""

    cluster: ClusterAccess
    group: str
    expression: str
    pull_count: int
    patience_ms: int
    fails: bool


@define(slots=True, frozen=True)
class TopicChoice:
    """``names``; or those of all topics that ``pattern`` matches whole: none of the system's own,
    and none of retries and dead letters.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def of(self, topics: Iterable[str]) -> list[str]:
        """What a pattern chooses among all."""
        return sorted(
            name
            for name in topics
            if re.fullmatch(self.pattern or "", name)
            and not is_system_topic(name)
            and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )


@define(slots=True, frozen=True)
class QueueRange:
    """The messages from offset ``begin`` to before ``end``."""

    queue: MessageQueue
    begin: int
    end: int

    def __str__(self) -> str:
        queue = self.queue
        return f"{queue.topic}, {queue.broker_name}, queue {queue.queue_id}"


@define(slots=True, frozen=True)
class PulledRecords:
    """An answer to a pull. ``next_offset``: where the next one goes on."""

    code: ResponseCode
    records: bytes
    next_offset: int


class _RawConsumer(PullConsumer):
    """Leaves the records of an answer as they are."""

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__(access.group, access.cluster.name_servers)
        self._client = access.cluster.settings()

    async def pull_records(self, queue: MessageQueue, order: PullOrder) -> PulledRecords:
        self._subscribe(queue.topic)
        response = await self._pull_response(queue, order)
        header = PullMessageResponseHeader.decode(response.ext_fields)
        return PulledRecords(ResponseCode(response.code), response.body, header.next_begin_offset)

    async def topics(self) -> list[str]:
        """All that the name server knows."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        response = await self._open().invoke_namesrv(code)
        if response.code != ResponseCode.SUCCESS:
            raise RequestRejectedError(response.code, response.remark or "no list of topics")
        return TopicList.decode(response.body).topic_list

    async def queues_if_any(self, topic: str) -> list[MessageQueue]:
        """None where the topic is just being deleted."""
        try:
            return await self.queues(topic)
        except RequestRejectedError as refusal:
            if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []

    async def doubt(self, topic: str) -> None:
        """Who answered is not whom to ask: take the route anew."""
        instance = self._open()
        instance.invalidate_route(topic)
        await instance.route(topic)

    async def of_all(
        self, queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Coroutine[Any, Any, T]]
    ) -> list[T | RmqError]:
        """The answer, or the fault, for each."""
        room = asyncio.Semaphore(AT_A_TIME)

        async def one(queue: MessageQueue) -> T | RmqError:
            async with room:
                try:
                    return await ask(queue)
                except (NetworkError, RequestRejectedError) as fault:
                    return fault

        return await asyncio.gather(*map(one, queues))

    async def first_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored then or later; the queue's end without."""
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
    """The one of this process, connected."""
    reader = LiveQueueReader(access)
    reader.start()
    return reader


class LiveQueueReader(Blocking[_RawConsumer]):
    """Each question is asked until it is answered, or ``patience_ms`` is over."""

    def __init__(self, access: BrokerAccess) -> None:
        super().__init__(_RawConsumer(access))
        self._access = access
        self._tags = exact_tags(access.expression)
        self._behind_since: dict[MessageQueue, float] = {}
        self._listed: list[str] = []
        self._listed_at = 0.0

    # -- positions

    def queues(self, topics: TopicChoice, age_seconds: float = 0.0) -> list[MessageQueue]:
        """The readable queues of all of them; what a pattern matches may be known for so long."""
        if topics.pattern is None:
            names, ask = topics.names, self._member.queues
        else:
            names, ask = tuple(topics.of(self._all_topics(age_seconds))), self._member.queues_if_any
        return [queue for topic in names for queue in self._patient(topic, partial(ask, topic))]

    def _all_topics(self, age_seconds: float) -> list[str]:
        if time.monotonic() - self._listed_at >= age_seconds:
            self._listed = self._patient("", self._member.topics)
            self._listed_at = time.monotonic()
        return self._listed

    def resolve(self, queues: Sequence[MessageQueue], boundary: Boundary) -> Position:
        """The boundary as offsets."""
        member = self._member

        async def place(queue: MessageQueue) -> int:
            if boundary.time_ms is not None:
                return await member.first_at(queue, boundary.time_ms)
            at = boundary.of(queue)
            if at == EARLIEST:
                return await member.min_offset(queue)
            return await member.max_offset(queue) if at == LATEST else at

        return self._of_all(queues, place)

    def ends(self, before: Position, topics: TopicChoice, *, every: bool) -> Position:
        """Where the queues end. One whose broker does not answer is missing, unless it must be
        ``every``. None ends before ``before``, but one that began anew (failOnDataLoss=false).
        """
        while True:
            queues = self.queues(topics, 0.0 if every else LIST_SECONDS)
            found = self._answered_ends(queues, every=every)
            ends = {
                queue: self._end(queue, at, before.get(queue, 0)) for queue, at in found.items()
            }
            if not every or not self._behind_since.keys() & ends.keys():
                return ends
            time.sleep(PAUSE_SECONDS)

    def _answered_ends(self, queues: Sequence[MessageQueue], *, every: bool) -> Position:
        if every:
            return self._of_all(queues, self._member.max_offset)
        answers = self._wait(self._member.of_all(queues, self._member.max_offset))
        told = dict(zip(queues, answers, strict=True))
        found = {queue: at for queue, at in told.items() if isinstance(at, int)}
        for queue in queues[: 0 if found else 1]:
            found = self._of_all([queue], self._member.max_offset)
        return found

    def _end(self, queue: MessageQueue, at: int, before: int) -> int:
        """A broker that leads anew may know less for a moment; not for long."""
        now = time.monotonic()
        since = self._behind_since.setdefault(queue, now) if at < before else now
        if at < before and (now - since) * 1000 < self._access.patience_ms:
            return before
        self._behind_since.pop(queue, None)
        if at >= before:
            return at
        part = QueueRange(queue, at, before)
        told = f"the queue ends at {at}, before {before}, which was read already"
        if self._access.fails:
            raise _loss(part, told)
        logger.warning("%s: %s; it is read anew from its first message on", part, told)
        return at

    def show_progress(self, group: str, position: Position) -> None:
        """As that group's offsets, for those who look on; a fault costs no more than the view."""
        reader = reader_for(evolve(self._access, group=group))
        member = reader._member

        async def commit(queue: MessageQueue) -> None:
            await member.commit_offset(queue, position[queue])

        for answer in reader._wait(member.of_all(position, commit)):
            if answer is not None:
                logger.warning("an offset of the group %s was not committed: %s", group, answer)

    # -- messages

    def rows(self, part: QueueRange) -> Iterator[ScanRows]:
        """The wanted messages of ``part``; NetworkError when its broker does not come so far."""
        offset, waits = part.begin, _Backoff(self._access.patience_ms)
        while offset < part.end:
            order = PullOrder(
                offset=offset,
                max_count=min(self._access.pull_count, part.end - offset),
                expression=self._access.expression,
            )
            pull = partial(self._member.pull_records, part.queue, order)
            pulled = self._patient(part.queue.topic, pull)
            after = self._after(part, offset, pulled)
            if after <= offset:
                waits.pause(f"{part}: the broker has no message {offset} of those up to {part.end}")
                self._patient(part.queue.topic, partial(self._member.doubt, part.queue.topic))
                continue
            waits = _Backoff(self._access.patience_ms)
            if pulled.code == ResponseCode.SUCCESS:
                yield from self._wanted(part, pulled.records)
            offset = after

    def _after(self, part: QueueRange, offset: int, pulled: PulledRecords) -> int:
        """Where to go on; ``offset`` where there is nothing yet."""
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
            raise _loss(part, f"of the messages {offset} to {after - 1} not all are there")
        if after > offset:
            logger.warning(
                "%s: of the messages %d to %d not all are there", part, offset, after - 1
            )
        return after

    def _wanted(self, part: QueueRange, records: bytes) -> Iterator[ScanRows]:
        scan = scan_of(records)
        view = memoryview(records)
        rows: Sequence[int] = [
            row for row, offset in enumerate(scan.queue_offset) if part.begin <= offset < part.end
        ]
        if self._tags is not None and rows:
            parts = ScanRows(scan, view, range(len(scan)), 0).parts(check_crc=False)
            places = list(zip(parts.tags_position, parts.tags_length, strict=True))
            texts = [java_text(records[at : at + length]) for at, length in places]
            rows = [row for row in rows if texts[row] in self._tags]
        found = ScanRows(scan, view, rows, 0)
        for first, end in slices(found.numbers("size")):
            yield found.part(range(first, end))

    # -- asking

    def _of_all(
        self, queues: Sequence[MessageQueue], ask: Callable[[MessageQueue], Coroutine[Any, Any, T]]
    ) -> dict[MessageQueue, T]:
        """Of those that do not answer at once again, one after the other."""
        found: dict[MessageQueue, T] = {}
        answers = self._wait(self._member.of_all(queues, ask))
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, RmqError):
                answer = self._patient(queue.topic, partial(ask, queue))
            found[queue] = answer
        return found

    def _patient(self, topic: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        waits = _Backoff(self._access.patience_ms)
        while True:
            try:
                return self._wait(ask())
            except (NetworkError, RequestRejectedError) as fault:
                if isinstance(fault, RequestRejectedError) and fault.code not in PASSING:
                    raise
                waits.pause(str(fault), fault)
            with suppress(NetworkError, RequestRejectedError):
                self._wait(self._member.doubt(topic))


class _Backoff:
    """Pauses until the patience is over."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._end = time.monotonic() + patience_ms / 1000

    def pause(self, why: str, fault: RmqError | None = None) -> None:
        if time.monotonic() >= self._end:
            raise NetworkError(f"{why} (waited {self._patience_ms} ms)") from fault
        time.sleep(PAUSE_SECONDS)


def scan_of(records: bytes) -> Scan:
    """The records of an answer, back to back; RemoteProtocolError where they are none."""
    scan = scan_records(memoryview(records), 0, dledger=False, check_crc=False)
    if scan.stop is not StopReason.END:
        raise RemoteProtocolError(
            f"a pull brought what is no message: {scan.stop.name} at {scan.end}"
        )
    return scan


def _loss(part: QueueRange, what: str) -> RmqError:
    return RmqError(
        f"{part}: {what}; they were deleted, or another store answers under this name. "
        "The option failOnDataLoss=false goes on without them"
    )
