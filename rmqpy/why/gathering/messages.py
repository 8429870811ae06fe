"""Collect the facts of a message, a topic, and a group from a source."""

from __future__ import annotations

from collections.abc import Mapping

from rmqpy.model.names import dlq_topic, pop_retry_topics, retry_topic
from rmqpy.model.near_names import did_you_mean
from rmqpy.why.gathering.pop import pop_facts
from rmqpy.why.message_id import MessageId
from rmqpy.why.questions.message_copies import CopyKind, WhereResult
from rmqpy.why.questions.message_facts import (
    ConsumerGroupFacts,
    NoMessageFacts,
    PopFacts,
    QueueFacts,
    TopicFacts,
)
from rmqpy.why.questions.where import find_message
from rmqpy.why.sources.interface import MessageSource

__all__ = ["no_message_facts"]

QUEUES_MAX = 1024


def no_message_facts(
    source: MessageSource,
    now_ms: int,
    wanted: MessageId | None,
    topic: str | None,
    group: str | None,
    *,
    scan: bool = True,
) -> NoMessageFacts:
    """Return the facts that :func:`rmqpy.why.questions.no_message.explain_no_message` needs."""
    within = _topics_of(topic, group) if topic else ()
    where = find_message(source, wanted, within, scan=scan) if wanted is not None else None
    settings, settings_from = source.settings()
    topic = topic or _topic_of(where)
    subject = " ".join(
        [
            source.name,
            *([f"message {wanted.text}"] if wanted is not None else []),
            *([f"topic {topic}"] if topic else []),
            *([f"group {group}"] if group else []),
        ]
    )
    return NoMessageFacts(
        subject=subject,
        is_live=source.is_live,
        target=source.name,
        now_ms=now_ms,
        settings=settings,
        settings_from=settings_from,
        range=source.range(),
        topic=_topic(source, topic, group) if topic else None,
        group=_group(source, topic, group) if group else None,
        wanted=wanted,
        where=where,
        pop=pop_facts(source, group) if group else PopFacts(),
        access=source.accounts() if group else None,
    )


def _topics_of(topic: str, group: str | None) -> tuple[str, ...]:
    """Return the topic, and those of its messages that the group did not consume."""
    if not group:
        return (topic,)
    return topic, retry_topic(group), dlq_topic(group), *pop_retry_topics(topic, group)


def _topic_of(where: WhereResult | None) -> str | None:
    """Return the topic whose consumers wait for the message, or None if that is not known."""
    if where is None:
        return None
    for kind in (CopyKind.TOPIC, CopyKind.HALF, CopyKind.DELAYED):
        for copy in where.copies_of(kind):
            return copy.real_topic
    return None


def _topic(source: MessageSource, name: str, group: str | None) -> TopicFacts:
    table = source.topics()
    config = table.get(name) if table is not None else None
    queues = _queues(source, name, group, config)
    return TopicFacts(
        name=name,
        known=table is not None,
        config=config,
        queues=queues,
        hint=did_you_mean(name, table or ()) if config is None else "",
    )


def _queues(
    source: MessageSource, topic: str, group: str | None, config: Mapping[str, object] | None
) -> tuple[QueueFacts, ...]:
    offsets = (source.consumer_offsets() or {}).get((topic, group or ""), {})
    counts = [config.get(key, 0) for key in ("readQueueNums", "writeQueueNums")] if config else []
    count = max((each for each in counts if isinstance(each, int)), default=0)
    found = []
    for queue_id in sorted({*range(min(count, QUEUES_MAX)), *offsets}):
        bounds = source.bounds(topic, queue_id)
        if bounds is None:
            if queue_id not in offsets:
                continue
            bounds = (0, 0)
        offset = offsets.get(queue_id)
        found.append(QueueFacts(queue_id=queue_id, first=bounds[0], end=bounds[1], offset=offset))
    return tuple(found)


def _group(source: MessageSource, topic: str | None, name: str) -> ConsumerGroupFacts:
    table = source.groups()
    config = table.get(name) if table is not None else None
    topics = source.topics() or {}
    retry, dead = retry_topic(name), dlq_topic(name)
    filters = source.filters() or {}
    return ConsumerGroupFacts(
        name=name,
        known=table is not None,
        config=config,
        hint=did_you_mean(name, table or ()) if config is None else "",
        members=source.members(name, topic or ""),
        sql=filters.get((topic or "", name)),
        retries=_queues(source, retry, name, topics.get(retry)),
        pop_retries=tuple(
            (again, queue)
            for again in (pop_retry_topics(topic, name) if topic else ())
            for queue in _queues(source, again, name, topics.get(again))
        ),
        dead_count=sum(
            each.end - each.first for each in _queues(source, dead, None, topics.get(dead))
        ),
    )
