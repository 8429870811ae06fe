"""The parts of the store that the processors and services of a broker use, and the type of a
request handler.

``rmqpy.store.message_store.MessageStore`` and its parts implement the protocols: its ``reader`` is
a MessageReader, its ``appender`` a StoreWriter, its ``flush_tracker`` a StoreFlush, and the store
itself a StoreAdmin. Each user receives the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.steps import Steps
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.commitlog.interface import CommitLog, FlushTask
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.flush_tracker import QueueFlush
from rmqpy.store.queues.table import ConsumeQueueTable, QueueName
from rmqpy.store.reader import RecordFilter
from rmqpy.store.results import GetMessageResult, PutResult, QueryMessageResult
from rmqpy.store.retention import RetentionCleaner

Handler = Callable[[Channel, RemotingCommand], RemotingCommand | None]
"""Answers one request: returns the response, or None if it is sent later or never. Raises
``RequestRejectedError`` to refuse the request.
"""

HandlerTable = Mapping[int, Handler]
"""Handlers by request code."""

Matcher = Callable[[int], bool]
"""Returns whether a message with this tags code may match the reader's filter."""


class MessageReader(Protocol):
    """The messages of the queues and their offsets, for processors that answer from the store."""

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None,
        wanted: RecordFilter | None = None,
    ) -> GetMessageResult: ...

    def queue_units(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[tuple[int, int, int]]: ...

    def queue_bytes(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> tuple[int, int]: ...

    def message_at(self, physical_offset: int) -> memoryview | None: ...

    def is_awaiting_repair(self, physical_offset: int) -> bool: ...

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryMessageResult: ...

    def max_queue_offset(self, topic: str, queue_id: int) -> int: ...

    def min_queue_offset(self, topic: str, queue_id: int) -> int: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int: ...

    def queue_names(self) -> Iterator[QueueName]: ...

    def earliest_store_timestamp(self) -> int: ...

    def in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool: ...


class StoreWriter(Protocol):
    """The write side, for messages of producers and of the broker itself."""

    def put(self, drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]: ...

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]: ...

    @property
    def page_cache_busy(self) -> bool: ...


class StoreFlush(Protocol):
    """The flush tasks of the store, for the services that flush."""

    @property
    def log(self) -> CommitLog: ...

    def flush_task(self) -> FlushTask | None: ...

    def flushed(self, offset: PhysicalOffset) -> None: ...

    def flush_failed(self, error: BaseException) -> None: ...

    def queue_flush_steps(self) -> Steps[QueueFlush | None]: ...

    def queues_flushed_steps(self, task: QueueFlush) -> Steps[None]: ...

    def queue_flush_failed(self, error: BaseException) -> None: ...


class StoreAdmin(Protocol):
    """The whole store, for cleaning and for the requests of operators."""

    @property
    def queues(self) -> ConsumeQueueTable: ...

    @property
    def retention(self) -> RetentionCleaner: ...

    def delete_topic_queues(self, topic: str) -> None: ...

    def delete_expired_queues(self) -> int: ...

    def runtime_info(self) -> dict[str, str]: ...
