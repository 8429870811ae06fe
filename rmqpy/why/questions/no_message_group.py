"""Why a group does not get a message that is in its queue: topic, group, filter, offset."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.admin.commands.trace import Trace
from rmqpy.broker.filter.tags import FilterSyntaxError
from rmqpy.broker.state.consumer_filters import SQL92, compile_filter
from rmqpy.codec.properties import PROPERTY_TAGS
from rmqpy.model.flags import PERM_READ
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import dlq_topic, retry_topic
from rmqpy.model.text import count_text, time_text
from rmqpy.remoting.bodies import BROADCASTING, CONSUME_FROM_FIRST_OFFSET
from rmqpy.why.answer import Cause, possible, proven
from rmqpy.why.questions.message_copies import CopyKind, MessageCopy
from rmqpy.why.questions.message_facts import (
    ConsumerGroupFacts,
    NoMessageFacts,
    TopicFacts,
    place_of,
)
from rmqpy.why.questions.no_message_members import member_causes
from rmqpy.why.questions.no_message_pop import pop_causes

__all__ = ["group_causes"]

EVERYTHING = ("*", "", None)
QUEUES_NAMED = 8


def group_causes(facts: NoMessageFacts) -> Iterator[Cause]:
    """Yield what keeps the group from the message, or from all messages of the topic."""
    yield from _topic(facts)
    yield from member_causes(facts)
    yield from _filtered(facts)
    popped = list(pop_causes(facts))
    yield from popped
    if facts.copy is None or not popped:
        yield from _offsets(facts)


# -- 4: topic


def _topic(facts: NoMessageFacts) -> Iterator[Cause]:
    topic = facts.topic
    if topic is None or not topic.known:
        return
    if topic.config is None:
        yield proven(
            f"the broker does not have the topic {topic.name}: clients get no route to it"
            f"{topic.hint}",
            "config/topics.json",
            next=(f"rmqpy admin updateTopic -b BROKER -t {topic.name} creates it",),
        )
        return
    permission = int(topic.config.get("perm", PERM_READ))
    if not permission & PERM_READ:
        yield proven(
            f"consumers may not read the topic: its permission is {permission}",
            "config/topics.json",
            next=(f"rmqpy admin updateTopicPerm -b BROKER -t {topic.name} -p 6",),
        )
    whole = facts.settings.get("brokerPermission", "6")
    if whole.isdigit() and not int(whole) & PERM_READ:
        yield proven(
            f"consumers may not read from this broker: its permission is {whole}",
            facts.setting("brokerPermission"),
            next=("rmqpy admin updateBrokerConfig -b BROKER -k brokerPermission -v 6",),
        )
    readable = int(topic.config.get("readQueueNums", 0))
    copy = facts.copy
    hidden = [each for each in topic.queues if each.queue_id >= readable and each.end > each.first]
    if copy is not None:
        hidden = [each for each in hidden if each.queue_id == copy.message.queue_id]
    if hidden:
        listed = ", ".join(str(each.queue_id) for each in hidden[:QUEUES_NAMED])
        count = sum(each.end - each.first for each in hidden)
        yield proven(
            f"consumers do not read queue {listed}: the topic has {readable} readable queues, and"
            f" {count_text(count, 'message is', 'messages are')} in others",
            "readQueueNums in config/topics.json",
            next=(
                f"rmqpy admin updateTopic -b BROKER -t {topic.name}"
                f" -r {max(each.queue_id for each in hidden) + 1} makes them readable",
            ),
        )


# -- 6: filter


def _filtered(facts: NoMessageFacts) -> Iterator[Cause]:
    group, copy = facts.group, facts.copy
    if group is None or copy is None:
        return
    members = group.members
    if members is not None and members.clients and members.expression is not None:
        kind, expression = members.expression_type, members.expression
        wanted = _matches(copy.message, kind, expression)
        origin = "the subscription of the members that are online"
    elif group.sql is not None:
        kind, expression = SQL92, group.sql[0]
        wanted = _matches(copy.message, kind, expression)
        origin = "config/consumerFilter.json" + ("" if group.sql[1] else ", last subscription")
    else:
        return
    if wanted is False:
        tag = copy.message.properties.get(PROPERTY_TAGS)
        named = f"tag {tag}" if tag else "no tag"
        yield proven(
            f"the group's filter does not select it: {kind} {expression}",
            f"the message has {named}" if kind != SQL92 else "its properties do not match",
            origin,
            next=("change the subscription, or the tag of the message",),
        )


def _matches(message: StoredMessage, kind: str, expression: str) -> bool | None:
    """Return whether a subscription selects a message, or None if it cannot be evaluated."""
    if kind == SQL92:
        try:
            return compile_filter(kind, expression).matches(message.properties)
        except FilterSyntaxError:
            return None
    if expression in EVERYTHING:
        return True
    tags = {tag.strip() for tag in expression.split("||")}
    return "*" in tags or message.properties.get(PROPERTY_TAGS, "") in tags


# -- 7: offsets


def _offsets(facts: NoMessageFacts) -> Iterator[Cause]:
    group, topic = facts.group, facts.topic
    if group is None or topic is None:
        return
    if group.members is not None and group.members.message_model == BROADCASTING:
        return  # the clients keep the offsets
    copy = facts.copy
    queues = topic.queues
    if copy is not None:
        queues = tuple(each for each in queues if each.queue_id == copy.message.queue_id)
    elif facts.wanted is not None:
        return
    for queue in queues:
        if queue.offset is not None and queue.offset > queue.end:
            yield proven(
                f"the group's offset {queue.offset} in queue {queue.queue_id} is after the end of"
                f" the queue, {queue.end}: the queue was cut, or the offset is another broker's",
                "config/consumerOffset.json",
                next=(_reset(topic, group),),
            )
        elif queue.offset is not None and queue.offset < queue.first:
            yield proven(
                f"messages {queue.offset} to {queue.first - 1} of queue {queue.queue_id} were"
                " deleted before the group consumed them",
                f"the queue begins at {queue.first}",
                facts.setting("fileReservedTime"),
                next=(f"rmqpy why not-deleted {facts.target} explains the retention",),
            )
    if copy is not None:
        yield from _message_offset(facts, group, topic, copy)
    else:
        yield from _waiting(facts, group, topic)


def _reset(topic: TopicFacts, group: ConsumerGroupFacts) -> str:
    return (
        f"rmqpy admin resetOffsetByTime -g {group.name} -t {topic.name} -s TIME sets it to the"
        " messages stored from TIME on"
    )


def _message_offset(
    facts: NoMessageFacts, group: ConsumerGroupFacts, topic: TopicFacts, copy: MessageCopy
) -> Iterator[Cause]:
    assert facts.where is not None
    traced = [each for each in facts.where.traces if (each.kind, each.group) == ("Sub", group.name)]
    for trace in traced:
        yield _traced(trace)
    for other in facts.where.copies_of(CopyKind.DEAD):
        if other.message.topic == dlq_topic(group.name):
            yield proven(
                f"{group.name} received it and failed"
                f" {count_text(other.message.reconsume_times, 'time')}: it is"
                f" in {other.message.topic}",
                place_of(other),
                next=("see the log of the consumer, then send the message again",),
            )
            return
    again = retry_topic(group.name)
    retries = [
        each
        for each in facts.where.copies_of(CopyKind.RETRY, CopyKind.DELAYED)
        if again in (each.message.topic, each.real_topic)
    ]
    position = next((each for each in copy.groups if each.group == group.name), None)
    number = copy.message.queue_id
    if position is None:
        yield proven(
            f"{group.name} has no offset in queue {number}: nothing was committed there, or it was"
            " removed",
            "config/consumerOffset.json",
            next=(f"rmqpy admin consumerProgress -g {group.name} shows its queues",),
        )
    elif not position.has_passed:
        before = copy.message.queue_offset - position.offset
        count = f"{count_text(before, 'message')} before it" if before else "it is the next one"
        yield proven(
            f"{group.name} has not reached it: its offset in queue {number} is {position.offset},"
            f" {count}",
            "config/consumerOffset.json" if not facts.is_live else "the broker's offsets",
            next=(
                f"rmqpy admin consumerStatus -g {group.name} shows what its members wait for",
                f"rmqpy admin consumerProgress -g {group.name} shows whether the offset grows",
            ),
        )
    elif retries:
        yield _sent_back(group, retries[-1])
    elif not traced:
        start = "" if group.members is None else group.members.consume_from
        new = (
            "; a new group starts at the end of a queue"
            if start != CONSUME_FROM_FIRST_OFFSET
            else ""
        )
        yield possible(
            f"{group.name} has passed it: its offset in queue {number} is {position.offset}, after"
            f" the message. It was consumed, filtered by the client, or skipped{new}",
            "no retry, dead letter, or trace of the message was found",
            next=(
                "the log of the consumer shows whether it was consumed",
                _reset(topic, group),
            ),
        )


def _sent_back(group: ConsumerGroupFacts, last: MessageCopy) -> Cause:
    times = count_text(last.message.reconsume_times, "time")
    if any(each.has_passed for each in last.groups if each.group == group.name):
        return possible(
            f"{group.name} received it, sent it back {times}, and has passed the last retry: it"
            " consumed it in the end",
            place_of(last),
            next=("the log of the consumer shows the result",),
        )
    waits = f", {last.state}" if last.state else ""
    return proven(
        f"{group.name} received it and sent it back {times}: the retry waits{waits}",
        place_of(last),
        next=("see the log of the consumer for the failure",),
    )


def _traced(trace: Trace) -> Cause:
    when = f" at {time_text(trace.time_ms)}" if trace.time_ms else ""
    ended = "consumed it" if trace.success else "received it and failed"
    return proven(f"{trace.group} {ended}{when}: client {trace.client_host}", "RMQ_SYS_TRACE_TOPIC")


def _waiting(
    facts: NoMessageFacts, group: ConsumerGroupFacts, topic: TopicFacts
) -> Iterator[Cause]:
    unread = [each for each in topic.queues if each.offset is None and each.end > each.first]
    if unread and group.config is not None:
        listed = ", ".join(str(each.queue_id) for each in unread[:QUEUES_NAMED])
        yield proven(
            f"{group.name} has no offset in queue {listed} of {topic.name}: nothing was committed"
            " there, or it was removed",
            "config/consumerOffset.json" if not facts.is_live else "the broker's offsets",
            next=(f"rmqpy admin consumerProgress -g {group.name} -t {topic.name}",),
        )
    lagging = [each for each in topic.queues if each.offset is not None and each.lag > 0]
    if lagging:
        listed = ", ".join(f"{each.queue_id} ({each.lag})" for each in lagging[:QUEUES_NAMED])
        online = group.members is not None and bool(group.members.clients)
        yield proven(
            f"{group.name} lags by {count_text(sum(each.lag for each in lagging), 'message')}:"
            " queue (messages):"
            f" {listed}",
            "config/consumerOffset.json" if not facts.is_live else "the broker's offsets",
            next=(
                f"rmqpy admin consumerStatus -g {group.name} shows what its members wait for"
                if online
                else "start the consumers of the group, then watch rmqpy admin consumerProgress",
            ),
        )
    retries = sum(each.lag for each in group.retries)
    if retries:
        yield proven(
            f"{count_text(retries, 'message waits', 'messages wait')} in"
            f" {retry_topic(group.name)}: members sent them back",
            next=("see the log of the consumer for the failure",),
        )
