"""Where a message is: log, consume queue, key index, group offsets, and the other copies of it.

A message has several copies if it was delayed, sent in a transaction, sent back by a consumer, or
given up: each copy is a record of its own, in another topic, with the same unique id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import evolve

from rmqpy.admin.commands.trace import Trace, decode_traces
from rmqpy.client.core.message import MessageExt
from rmqpy.codec.properties import (
    PROPERTY_UNIQ_KEY,
)
from rmqpy.model.flags import has_queue_unit
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import (
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_HALF_TOPIC,
    is_dlq_topic,
    is_retry_topic,
)
from rmqpy.model.text import count_text
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.why.message_id import IdKind, MessageId
from rmqpy.why.questions.message_copies import CopyKind, GroupPosition, MessageCopy, WhereResult
from rmqpy.why.sources.interface import MessageSource, QueueUnitPlace

__all__ = ["find_message"]

NOT_CONTENT = frozenset((TRANSACTION_OP_HALF_TOPIC, TRACE_TOPIC))


def find_message(
    source: MessageSource,
    wanted: MessageId,
    within: Sequence[str] = (),
    *,
    scan: bool = True,
) -> WhereResult:
    """Return the copies of a message, searched by offset, then in the key index (of the topics in
    ``within``, else of all), then, with ``scan``, by reading the log if none was found or the
    topics are not known.
    """
    searched: list[str] = []
    incomplete: list[str] = []
    found: dict[int, tuple[StoredMessage, str]] = {}
    if wanted.kind is IdKind.OFFSET:
        searched.append(f"physical offset {wanted.physical_offset}")
        message = source.message(wanted.physical_offset)
        if message is not None:
            found[message.physical_offset] = (message, "")
    unique_ids = {
        each.properties[PROPERTY_UNIQ_KEY]
        for each, _ in found.values()
        if PROPERTY_UNIQ_KEY in each.properties
    }
    if wanted.kind is not IdKind.OFFSET:
        unique_ids.add(wanted.text)
    topics = list(within) or _topics(source)
    for key in sorted(unique_ids):
        unique = wanted.kind is not IdKind.KEY
        for message in source.unindexed(key) if scan else ():
            found.setdefault(message.physical_offset, (message, ""))
        for hit, file in _in_index(source, topics, key, unique=unique):
            found[hit.physical_offset] = (hit, file)
    if unique_ids:
        searched.append(f"the key index, for {count_text(len(topics), 'topic')}")
    if unique_ids and scan and not source.is_live:
        searched.append("the parts of the log that no index file covers")
    knows_topics = bool(within) or source.topics() is not None
    if found and knows_topics:
        pass
    elif scan:
        scanned = source.scan(wanted.text)
        if scanned is None:
            incomplete.append("the log without the key index: a broker answers no such request")
        else:
            searched.append("every record of the log")
            found = {each.physical_offset: (each, "") for each in scanned} | found
    else:
        incomplete.append("the records of the log: not read because of --no-scan")
    offsets = source.consumer_offsets()
    if offsets is None and found:
        incomplete.append("the offsets of the groups: the source has no readable table of them")
    copies = [_copy(source, *found[offset], offsets or {}) for offset in sorted(found)]
    halves = sum(each.kind in (CopyKind.HALF, CopyKind.GIVEN_UP) for each in copies)
    for number, copy in enumerate(copies):
        if copy.kind in (CopyKind.HALF, CopyKind.GIVEN_UP):
            halves -= 1
            copies[number] = evolve(copy, later_copies=halves)
    return WhereResult(
        source=source.name,
        copies=tuple(copies),
        searched=tuple(searched),
        incomplete=tuple(incomplete),
        traces=tuple(_traces(source, unique_ids)),
    )


def _traces(source: MessageSource, unique_ids: set[str]) -> Iterator[Trace]:
    for key in sorted(unique_ids):
        for record, _ in source.with_key(TRACE_TOPIC, key, unique=False):
            queue = MessageQueue(record.topic, "", record.queue_id)
            yield from decode_traces(MessageExt(queue=queue, stored=record), key)


def _topics(source: MessageSource) -> list[str]:
    known = {*(source.topics() or {}), SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC}
    return sorted(known - NOT_CONTENT)


def _in_index(
    source: MessageSource, topics: Iterable[str], key: str, *, unique: bool
) -> Iterator[tuple[StoredMessage, str]]:
    for topic in topics:
        yield from source.with_key(topic, key, unique=unique)


def _copy(
    source: MessageSource,
    message: StoredMessage,
    index_file: str,
    offsets: Any,
) -> MessageCopy:
    kind = kind_of(message)
    queue_offset = message.queue_offset
    unit = None
    fault = "half and rolled-back messages have none"
    if has_queue_unit(message.sys_flag):
        unit = source.unit(message.topic, message.queue_id, queue_offset)
        fault = _unit_fault(message, unit)
    groups = tuple(
        GroupPosition(group, queues[message.queue_id], queue_offset)
        for (topic, group), queues in sorted(offsets.items())
        if topic == message.topic and message.queue_id in queues and group != TRANSACTION_GROUP
    )
    copy = MessageCopy(
        kind=kind,
        message=message,
        place=source.place(message),
        unit=unit,
        unit_fault=fault,
        index_file=index_file,
        groups=groups,
    )
    return _with_state(source, copy)


def _with_state(source: MessageSource, copy: MessageCopy) -> MessageCopy:
    message = copy.message
    if copy.kind is CopyKind.DELAYED:
        level = message.queue_id + 1
        delivered_to = (source.delay_offsets() or {}).get(level)
        delivered = None if delivered_to is None else delivered_to > message.queue_offset
        due_ms = copy.unit.tags_code if copy.unit is not None else -1
        return evolve(copy, level=level, due_ms=due_ms, delivered=delivered)
    if copy.kind is CopyKind.HALF:
        resolved = source.resolved_halves(message.queue_id)
        known = None if resolved is None else message.queue_offset in resolved
        return evolve(copy, resolved=known)
    return copy


def kind_of(message: StoredMessage) -> CopyKind:
    if message.topic == SCHEDULE_TOPIC:
        return CopyKind.DELAYED
    if message.topic == TRANSACTION_HALF_TOPIC:
        return CopyKind.HALF
    if message.topic == TRANSACTION_CHECK_MAX_TIME_TOPIC:
        return CopyKind.GIVEN_UP
    if is_retry_topic(message.topic):
        return CopyKind.RETRY
    return CopyKind.DEAD if is_dlq_topic(message.topic) else CopyKind.TOPIC


def _unit_fault(message: StoredMessage, unit: QueueUnitPlace | None) -> str:
    """Return what is wrong with the unit of a message, or "" if it leads to the message."""
    if unit is None:
        return "the queue has no unit for it"
    if (unit.physical_offset, unit.size) != (message.physical_offset, message.size):
        return f"it leads to {unit.size} bytes at physical offset {unit.physical_offset} instead"
    return ""
