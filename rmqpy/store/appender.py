"""MessageAppender: checks messages, assigns their queue offsets, and stages and writes them.

The topic-queue table (``tails``) assigns the queue offset of each message. It is derived from the
ends of the consume queues and from the part of the log that they do not have yet, at the start and
after each change of role; nothing is put before that.

Invariants: a queue offset is consumed only when the log has accepted the message; nothing is staged
while the store does not accept messages (:mod:`rmqpy.store.health`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from attrs import evolve

from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.hashes import java_text
from rmqpy.codec.layout import (
    PROPERTIES_BYTES_MAX,
    QUEUE_OFFSET_POSITION,
    REVERSIBLE_PROPERTIES_MAX,
    TOPIC_BYTES_MAX,
)
from rmqpy.codec.message import check_record, decode_message, encode_message, record_size
from rmqpy.codec.properties import reserve_property_crc
from rmqpy.config.loading import StoreSettings
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.flags import has_queue_unit
from rmqpy.model.ids import QueueOffset
from rmqpy.model.message import OutgoingMessage
from rmqpy.model.text import format_bytes
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.health import StoreHealth, Writer
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds
from rmqpy.store.queues.table import is_queue_name
from rmqpy.store.queues.topic_queue_table import QueueKey, TopicQueueTable
from rmqpy.store.results import PutResult
from rmqpy.store.startup import StoreContext, StoreParts

SCANNED_AT_START = 2 << 30
SCANNED_IN_TURN = 64 << 20
"""Puts wait while the consume queues lag by more bytes than this; up to it, the queue offsets are
read from the log, which takes a few milliseconds.
"""

_ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL

logger = logging.getLogger(__name__)


class MessageAppender:
    """The write side of a store."""

    def __init__(
        self,
        context: StoreContext,
        parts: StoreParts,
        health: StoreHealth,
        silent_ends: ExpiredQueueEnds,
    ) -> None:
        self._settings = context.settings
        self._clock = context.clock
        self._queues = parts.queues
        self._dispatcher = parts.dispatcher
        self._health = health
        self._silent_ends = silent_ends
        self.tails = TopicQueueTable(self._end_of)
        self.blocking_leave = 0
        """The number of messages, since the start, that block the way back to a classic log."""
        self._write_ms = 0
        self._tails_known = False
        self.use_log(parts.opened)
        self._learn_tails(SCANNED_AT_START)

    def use_log(self, opened: OpenedLog) -> None:
        """Append to this log from now on."""
        self._log = opened.log
        self._entries = opened.entries
        self.appends_crc = self._entries is None and self._settings.enabled_append_prop_crc
        """True if records carry the checksum of 5.x, which only Python writes."""
        self.forget_tails()

    def is_ready(self) -> bool:
        """Return whether the state of the store allows a put."""
        return (
            self._health.writeable
            and not self.page_cache_busy
            and (self._tails_known or self._learn_tails(SCANNED_IN_TURN))
        )

    @property
    def page_cache_busy(self) -> bool:
        """True if the last write of the log took longer than ``osPageCacheBusyTimeOutMills``.

        The senders after that write have waited as long. The next write that is empty or fast
        enough ends the state.
        """
        return self._write_ms > self._settings.os_page_cache_busy_time_out_mills

    def change_settings(self, settings: StoreSettings) -> None:
        """Apply the limits of ``settings`` to the next puts."""
        self._settings = settings

    def forget_tails(self) -> None:
        """Make the next put derive the queue offsets again, because the role has changed."""
        self._tails_known = False

    def put(self, drafts: Sequence[OutgoingMessage], batch: bool = False) -> list[PutResult]:
        """Stage messages. Return one result per draft, or a single one for a ``batch`` (messages of
        one topic and queue, of which all or none are stored).

        The reply to a put may leave when the :meth:`acknowledged` watermarks have passed the
        ``end`` of its result.
        """
        if not self.is_ready():
            return [self._refused()] * (1 if batch else len(drafts))
        assert drafts, "a put without a message"
        if self.appends_crc:
            drafts = [evolve(d, properties=reserve_property_crc(d.properties)) for d in drafts]
        if batch:
            return [self._put_batch(drafts)]
        limit = self._settings.max_message_size
        now_ms = self._clock.now_ms()
        results = []
        for draft in drafts:
            result = validate_message(draft, limit)
            if result is None:
                result = self._append((draft,), [encode_message(draft)], now_ms)
            results.append(result)
        return results

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        """Return the watermarks that the reply to a put waits for; fewer if the sender set
        WAIT=false.
        """
        return self._log.acknowledged(wait_store_ok)

    def _put_batch(self, drafts: Sequence[OutgoingMessage]) -> PutResult:
        limit = self._settings.max_message_size
        for draft in drafts:
            result = validate_message(draft, limit)
            if result is not None:
                return result
        if sum(len(draft.body) for draft in drafts) > limit:
            return PutResult(
                PutMessageStatus.MESSAGE_ILLEGAL, remark="batch body above maxMessageSize"
            )
        records = [encode_message(draft) for draft in drafts]
        return self._append(drafts, records, self._clock.now_ms())

    def put_record(self, record: bytes) -> PutResult:
        """Append a complete record that another program has encoded. Its queue offset, physical
        offset and store timestamp are replaced by those of this store.
        """
        if not self.is_ready():
            return self._refused()
        try:
            check_record(record, 0)
            message = decode_message(record)
        except InvalidRecordError as fault:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, remark=f"not a record: {fault}")
        if message.version != 1:
            return PutResult(PutMessageStatus.MESSAGE_ILLEGAL, remark="a record of version 2")
        draft = OutgoingMessage(
            topic=message.topic.encode(),
            queue_id=message.queue_id,
            body=message.body,
            properties=message.raw_properties,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            store_host=message.store_host,
        )
        illegal = validate_message(draft, self._settings.max_message_size)
        if illegal is not None:
            return illegal
        return self._append((draft,), [bytearray(record)], self._clock.now_ms())

    def _append(
        self, drafts: Sequence[OutgoingMessage], records: list[bytearray], now_ms: int
    ) -> PutResult:
        if not self._health.is_healthy:  # an earlier message could not be written
            return self._refused()
        first = drafts[0]
        name = (first.topic, first.queue_id)
        queue_offset = tail = 0
        counted = not first.sys_flag or has_queue_unit(first.sys_flag)
        if counted:
            tail = self.tails.index_of(name)
            queue_offset = self.tails.cells[tail]
            for number, record in enumerate(records):
                place = QUEUE_OFFSET_POSITION
                record[place : place + 8] = (queue_offset + number).to_bytes(8)
        try:
            appended = self._log.append(records, now_ms)
        except OSError as error:
            self._health.write_failed(Writer.LOG, error)
            return self._refused()
        if appended.status is not PutMessageStatus.PUT_OK:
            return PutResult(appended.status, remark=appended.remark)
        if counted:
            self.tails.cells[tail] = queue_offset + len(records)
        if self._entries is not None:
            for draft in drafts:
                if len(draft.properties) > REVERSIBLE_PROPERTIES_MAX:
                    self._report_blocking_leave(draft)
        return PutResult(
            appended.status, QueueOffset(queue_offset), appended.physical_offsets, appended.end
        )

    def _report_blocking_leave(self, draft: OutgoingMessage) -> None:
        """Count a message that blocks the way back; log a warning for the first one."""
        self.blocking_leave += 1
        if self.blocking_leave == 1:
            logger.warning(
                "a message of topic %s has properties of %d bytes: until all messages with more"
                " than %d have expired, rmqpy upgrade leave will refuse the way back to a classic"
                " log (rmqpyRefuseBlockingLeave=true refuses such messages); further ones are"
                " counted only",
                draft.topic.decode(errors="replace"),
                len(draft.properties),
                REVERSIBLE_PROPERTIES_MAX,
            )

    def _refused(self) -> PutResult:
        remark = self._health.refusal
        if remark is None and self.page_cache_busy:
            remark = f"the last write of the log took {self._write_ms} ms"
            return PutResult(PutMessageStatus.OS_PAGECACHE_BUSY, remark=remark)
        if remark is None:
            remark = "messages found on disk are not confirmed by a quorum yet"
            if self._dispatcher.behind_bytes > SCANNED_IN_TURN:
                to_go = format_bytes(self._dispatcher.behind_bytes)
                remark = f"the consume queues are being rebuilt, {to_go} of the log remain"
        return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark=remark)

    @property
    def is_idle(self) -> bool:
        """True if :meth:`commit` has nothing to do."""
        return self._health.is_healthy and not self._write_ms and not self._log.has_staged

    def commit(self) -> None:
        """Write what was staged since the last call.

        After a failed write nothing more is accepted. If the disk was full, the bytes stay staged
        and are written by the first call that finds space.
        """
        if self.is_idle or self._health.failure is not None:
            return
        began_ms = self._clock.monotonic_ms()
        try:
            self._log.commit()
            if not self._health.is_healthy:
                self._health.wrote(Writer.LOG)
        except OSError as error:
            self._health.write_failed(Writer.LOG, error)
        self._write_ms = self._clock.monotonic_ms() - began_ms

    def _learn_tails(self, scanned_bytes_max: int) -> bool:
        """Make the topic-queue table follow from the ends of the consume queues, and from at most
        ``scanned_bytes_max`` of the log after them.

        Return False while messages that were found on disk are not committed: their queue offsets
        would be assigned twice.
        """
        entries = self._entries
        if entries is not None and entries.committed_index < entries.end.index:
            return False
        self.commit()
        if self._dispatcher.behind_bytes > scanned_bytes_max:
            return False
        ends = self._dispatcher.queue_ends_ahead()
        for (topic, queue_id), end in self._silent_ends.ends.items():
            name = topic.encode(), queue_id
            ends[name] = max(end, ends.get(name, 0), self._end_of(name))
        self.tails.replace(ends)
        self._tails_known = True
        return True

    def _end_of(self, key: QueueKey) -> int:
        """Return the queue offset after the last message of a queue that was not used yet."""
        topic, queue_id = key
        queue = self._queues.find(java_text(topic), queue_id)
        return 0 if queue is None else queue.max_offset


def validate_message(draft: OutgoingMessage, size_limit: int) -> PutResult | None:
    """Return why ``draft`` is refused, or None if it is valid. ``size_limit`` is maxMessageSize.

    These are the checks that Java performs before the append, in the same order.
    """
    if len(draft.topic) > TOPIC_BYTES_MAX:
        return PutResult(_ILLEGAL, remark=f"topic length above {TOPIC_BYTES_MAX}")
    if not is_queue_name(draft.topic, draft.queue_id):
        remark = f"no queue can be named {draft.topic!r}, {draft.queue_id}"
        return PutResult(_ILLEGAL, remark=remark)
    if len(draft.properties) > PROPERTIES_BYTES_MAX:
        remark = f"properties above {PROPERTIES_BYTES_MAX} bytes"
        return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, remark=remark)
    if record_size(draft) > size_limit:
        return PutResult(_ILLEGAL, remark=f"message above {size_limit} bytes")
    return None
