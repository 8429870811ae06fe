"""Why a group does not get a message that one of its clients has received by POP.

A message that was received is invisible to other clients until its time is over. Then the reviver
of a running 5.x broker writes it to a retry topic of the group, from which it is received again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rmqpy.model.message import StoredMessage
from rmqpy.model.names import pop_retry_topics
from rmqpy.model.text import count_text, time_text
from rmqpy.store.unread.pop import REVIVE_GROUP, PopReceipt
from rmqpy.why.answer import Cause, duration_text, possible, proven
from rmqpy.why.questions.message_copies import CopyKind, MessageCopy
from rmqpy.why.questions.message_facts import (
    ConsumerGroupFacts,
    NoMessageFacts,
    TopicFacts,
    place_of,
)

__all__ = ["pop_causes"]

REVIVER = "only a running 5.x broker returns messages to their group: start it; rmqpy does not"
REVIVER_PROGRESS = (
    f"rmqpy admin consumerProgress -g {REVIVE_GROUP} shows whether the broker examines the records"
)
CONSUMER = "see the log of the consumer: it did not acknowledge the message in time"


def pop_causes(facts: NoMessageFacts) -> Iterator[Cause]:
    """Yield where the message is on its way by POP, or how many messages of the topic are."""
    group, topic = facts.group, facts.topic
    if group is None or topic is None:
        return
    if facts.copy is not None:
        yield from _of_message(facts, group, facts.copy)
    elif facts.wanted is None:
        yield from _of_topic(facts, group, topic)


# -- a message


def _of_message(
    facts: NoMessageFacts, group: ConsumerGroupFacts, first: MessageCopy
) -> Iterator[Cause]:
    """Yield what is known of the last copy for the group: the message, or one that has returned."""
    assert facts.where is not None
    again = pop_retry_topics(first.message.topic, group.name)
    returned = [
        each for each in facts.where.copies_of(CopyKind.RETRY) if each.message.topic in again
    ]
    last = returned[-1] if returned else first
    message = last.message
    receipt = next(
        (
            each
            for each in reversed(facts.pop.receipts)
            if each.has(message.topic, message.queue_id, message.queue_offset)
        ),
        None,
    )
    if receipt is not None:
        yield _received(facts, group, last, receipt)
    elif returned:
        times = count_text(message.reconsume_times, "time")
        yield proven(
            f"{group.name} received it by POP {times} and did not acknowledge it: it"
            " returned to the group, and no client has received it since",
            place_of(last),
            next=(CONSUMER, *_start(group)),
        )
    elif any(_has_later(each, message) for each in facts.pop.receipts):
        yield possible(
            f"{group.name} has received later messages of the queue by POP, and this one has no"
            " record: it was received, and acknowledged",
            place_of(last),
            next=("the log of the consumer shows the result",),
        )


def _has_later(receipt: PopReceipt, message: StoredMessage) -> bool:
    of_queue = (receipt.topic, receipt.queue_id) == (message.topic, message.queue_id)
    return of_queue and max(receipt.waiting | receipt.acknowledged) > message.queue_offset


def _reviver(facts: NoMessageFacts) -> str:
    return REVIVER_PROGRESS if facts.is_live else REVIVER


def _received(
    facts: NoMessageFacts, group: ConsumerGroupFacts, copy: MessageCopy, receipt: PopReceipt
) -> Cause:
    received = f"{group.name} received it by POP {time_text(receipt.popped_ms)}"
    evidence = (place_of(copy), _record(receipt))
    if copy.message.queue_offset in receipt.acknowledged:
        return proven(
            f"{received} and acknowledged it: it was consumed",
            *evidence,
            next=("the log of the consumer shows the result",),
        )
    if receipt.returns_ms > facts.now_ms:
        left = duration_text(receipt.returns_ms - facts.now_ms)
        return proven(
            f"{received} and has not acknowledged it: other clients do not see it until"
            f" {time_text(receipt.returns_ms)}, in {left}",
            *evidence,
            next=("wait, or see the log of the consumer that has received it",),
        )
    if receipt.handled:
        return proven(
            f"{received} and did not acknowledge it until {time_text(receipt.returns_ms)}. The"
            " broker has returned it to the group since, or given it up after too many attempts,"
            " and that copy was not found here",
            *evidence,
            next=(
                CONSUMER,
                f"rmqpy why no-message {facts.target} -t {copy.message.topic} -g {group.name}",
            ),
        )
    return proven(
        f"{received} and did not acknowledge it. Its time was over"
        f" {time_text(receipt.returns_ms)}, but it has not returned to the group yet",
        *evidence,
        next=(CONSUMER, _reviver(facts)),
    )


def _record(receipt: PopReceipt) -> str:
    count = len(receipt.waiting) + len(receipt.acknowledged)
    return (
        f"record of POP: {count_text(count, 'message')} of {receipt.topic} queue"
        f" {receipt.queue_id}, {len(receipt.acknowledged)} acknowledged"
    )


# -- a topic


def _of_topic(
    facts: NoMessageFacts, group: ConsumerGroupFacts, topic: TopicFacts
) -> Iterator[Cause]:
    names = (topic.name, *pop_retry_topics(topic.name, group.name))
    open_receipts = [
        each
        for each in facts.pop.receipts
        if each.topic in names and each.waiting and not each.handled
    ]
    invisible = [each for each in open_receipts if each.returns_ms > facts.now_ms]
    due = [each for each in open_receipts if each.returns_ms <= facts.now_ms]
    if invisible:
        yield proven(
            f"{_count(invisible)} were received by POP and are not acknowledged: other clients do"
            f" not see them until {time_text(min(each.returns_ms for each in invisible))} or later",
            *_places(invisible),
            next=("wait, or see the logs of the consumers that have received them",),
        )
    if due:
        yield proven(
            f"{_count(due)} were received by POP and not acknowledged in time, and have not"
            " returned to the group yet",
            *_places(due),
            next=("see the log of the consumer", _reviver(facts)),
        )
    waiting = [(name, each) for name, each in group.pop_retries if each.lag > 0]
    if waiting:
        count = sum(each.lag for _, each in waiting)
        yield proven(
            f"{count_text(count, 'message')} in {', '.join({name: None for name, _ in waiting})}:"
            " received by POP, not acknowledged, and returned to the group",
            next=("see the log of the consumer", *_start(group)),
        )


def _start(group: ConsumerGroupFacts) -> tuple[str, ...]:
    if group.members is not None and group.members.clients:
        return ()
    return ("start the consumers of the group",)


def _count(receipts: list[PopReceipt]) -> str:
    return count_text(sum(len(each.waiting) for each in receipts), "message")


def _places(receipts: list[PopReceipt]) -> Iterator[str]:
    counts: Counter[tuple[str, int]] = Counter()
    for each in receipts:
        counts[each.topic, each.queue_id] += len(each.waiting)
    for (topic, queue_id), count in sorted(counts.items()):
        yield f"{topic} queue {queue_id}: {count_text(count, 'message')}"
