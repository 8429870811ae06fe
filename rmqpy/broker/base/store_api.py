"""What the processors ask of their surroundings: the store as the broker sees it, and the shape of
a processor.

``store.message_store.MessageStore`` is the store; tests may bring a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from rmqpy.config.loading import StoreSettings
from rmqpy.model.ids import PhysicalOffset
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.commitlog.interface import FlushTask
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.flush_tracker import QueueFlush
from rmqpy.store.results import Arrival, GetMessageResult, PutResult, QueryMessageResult
from rmqpy.store.retention import RetentionCleaner

Handler = Callable[[Channel, RemotingCommand], RemotingCommand | None]
"""Answers one request: the response now, or None when it comes later or never. Refuses by raising
``RequestRejectedError``.
"""

HandlerTable = Mapping[int, Handler]
"""Request code to handler."""

Matcher = Callable[[int], bool]
"""Whether a message with this tags code may interest the reader."""

RecordFilter = Callable[[memoryview], bool]
"""Whether a reader wants the message of this record."""


class MessageReader(Protocol):
    """Positions and messages of queues."""

    def get_message(
        self,
        group: str,
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

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> QueryMessageResult: ...

    def max_queue_offset(self, topic: str, queue_id: int) -> int: ...

    def min_queue_offset(self, topic: str, queue_id: int) -> int: ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...

    def store_timestamp_at(self, topic: str, queue_id: int, queue_offset: int) -> int: ...

    def earliest_store_timestamp(self) -> int: ...

    def in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool: ...


class StoreWriter(Protocol):
    """Where messages go."""

    def put(self, drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]: ...

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]: ...


class Store(MessageReader, StoreWriter, Protocol):
    """The whole store."""

    def subscribe_arrivals(self, listener: Callable[[Arrival], None]) -> None: ...

    @property
    def writeable(self) -> bool: ...

    @property
    def page_cache_busy(self) -> bool: ...

    @property
    def failure(self) -> str | None: ...

    def commit(self) -> None: ...

    def dispatch(self) -> None: ...

    def flush_task(self) -> FlushTask | None: ...

    def flushed(self, offset: PhysicalOffset) -> None: ...

    def queue_flush_task(self) -> QueueFlush | None: ...

    def queues_flushed(self, task: QueueFlush) -> None: ...

    def on_queue_flush_failed(self, error: BaseException) -> None: ...

    def fail(self, reason: str) -> None: ...

    def change_settings(self, settings: StoreSettings) -> None: ...

    @property
    def disk_full_reason(self) -> str | None: ...

    @property
    def is_healthy(self) -> bool: ...

    @property
    def cleaning(self) -> RetentionCleaner: ...

    def delete_expired_queues(self) -> int: ...

    @property
    def is_rebuilding_queues(self) -> bool: ...

    @property
    def dispatch_behind_bytes(self) -> int: ...

    @property
    def dispatch_due(self) -> bool: ...

    @property
    def is_idle(self) -> bool: ...

    def checkpoint_due(self) -> bool: ...

    def catch_up_index(self) -> bool: ...

    @property
    def flushed_offset(self) -> PhysicalOffset: ...

    @property
    def min_physical_offset(self) -> PhysicalOffset: ...

    @property
    def max_physical_offset(self) -> PhysicalOffset: ...

    @property
    def confirm_offset(self) -> PhysicalOffset: ...

    def read_log(self, offset: int, size: int) -> bytes: ...

    def append_raw(self, offset: PhysicalOffset, data: bytes) -> None: ...

    def queues(self) -> Iterable[tuple[str, int]]: ...

    def delete_topic_queues(self, topic: str) -> None: ...

    def runtime_info(self) -> dict[str, str]: ...

    def shutdown(self) -> None: ...
