"""Why a group has not received a message, or receives nothing: the path of a message, step by step.

A message must be stored, delivered to its topic (after a delay or a transaction), readable through
the consume queue, in a queue that consumers read, and selected by the group's subscription; and the
group's offset must lead to it. Each step has a function here that knows what can go wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define

from rmqpy.admin.commands.trace import Trace
from rmqpy.broker.filter.tags import FilterSyntaxError
from rmqpy.broker.state.consumer_filters import SQL92, compile_filter
from rmqpy.codec.properties import PROPERTY_PRODUCER_GROUP, PROPERTY_TAGS
from rmqpy.model.flags import PERM_READ
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import dlq_topic, retry_topic
from rmqpy.remoting.bodies import BROADCASTING, CONSUME_FROM_FIRST_OFFSET
from rmqpy.why.answer import Answer, Cause, duration_text, possible, proven, ranked, time_text
from rmqpy.why.message_id import IdKind, MessageId
from rmqpy.why.source import ClientGroup, StoreRange
from rmqpy.why.where import CopyKind, MessageCopy, WhereResult

__all__ = ["GroupFacts", "NoMessageFacts", "QueueFacts", "TopicFacts", "explain_no_message"]

QUESTION = "why no-message"
EVERYTHING = ("*", "", None)
CLOCK_SLACK_MS = 60_000
"""The difference that is allowed between the clocks of a producer and of a broker."""
QUEUES_NAMED = 8


@define(slots=True, frozen=True, kw_only=True)
class QueueFacts:
    """The bounds of a queue, and the offset of the group (None without one)."""

    queue_id: int
    first: int
    end: int
    offset: int | None = None

    @property
    def lag(self) -> int:
        return self.end - max(self.first, self.offset or 0)


@define(slots=True, frozen=True, kw_only=True)
class TopicFacts:
    """A topic. ``config`` has the fields of topics.json, or is None if the topic is not in it.

    ``known`` is False if the table could not be read. ``hint`` names a similar topic.
    """

    name: str
    known: bool
    config: Mapping[str, Any] | None
    queues: tuple[QueueFacts, ...] = ()
    hint: str = ""


@define(slots=True, frozen=True, kw_only=True)
class GroupFacts:
    """A consumer group, as :class:`TopicFacts`. ``members`` is None if they are not known.

    ``sql`` is the SQL92 expression in consumerFilter.json, and whether it is in use.
    ``retries`` are the queues of the group's retry topic; ``dead_count`` is the number of messages
    in its dead letter topic.
    """

    name: str
    known: bool
    config: Mapping[str, Any] | None
    hint: str = ""
    members: ClientGroup | None = None
    sql: tuple[str, bool] | None = None
    retries: tuple[QueueFacts, ...] = ()
    dead_count: int = 0


@define(slots=True, frozen=True, kw_only=True)
class NoMessageFacts:
    """All facts. ``wanted`` and ``where`` are None if the question names no message."""

    subject: str
    is_live: bool
    target: str
    now_ms: int
    settings: Mapping[str, str]
    settings_from: str
    range: StoreRange | None
    topic: TopicFacts | None = None
    group: GroupFacts | None = None
    wanted: MessageId | None = None
    where: WhereResult | None = None

    @property
    def copy(self) -> MessageCopy | None:
        """The copy that consumers of the topic read, if there is one."""
        if self.where is None:
            return None
        copies = self.where.copies_of(CopyKind.TOPIC)
        return copies[-1] if copies else None

    def setting(self, key: str) -> str:
        return f"{key}={self.settings.get(key, '?')} ({self.settings_from})"


def explain_no_message(facts: NoMessageFacts) -> Answer:
    """Return why the message, or any message of the topic, was not received by the group."""
    causes = [
        *_not_stored(facts),
        *_not_delivered(facts),
        *_not_readable(facts),
        *_topic(facts),
        *_group(facts),
        *_filtered(facts),
        *_offsets(facts),
    ]
    return Answer(
        question=QUESTION,
        subject=facts.subject,
        facts=tuple(_facts(facts)),
        causes=ranked(causes),
        nothing=_nothing(facts),
        not_examined=tuple(_not_examined(facts)),
    )


def _nothing(facts: NoMessageFacts) -> str:
    if facts.group is None:
        return (
            "the message is in its queue, and consumers can read it; name the group with --group to"
            " see whether the group has"
            if facts.wanted is not None
            else "name a message, or the group with --group"
        )
    if facts.wanted is None:
        return f"{facts.group.name} has passed every message of the topic: nothing waits for it"
    return "nothing here prevents the group from receiving the message"


# -- 1: stored


def _not_stored(facts: NoMessageFacts) -> Iterator[Cause]:
    wanted, where = facts.wanted, facts.where
    if wanted is None or where is None or where.copies:
        return
    kept = facts.range
    elsewhere = (
        f"rmqpy where {wanted.text} -n NAMESRV searches all brokers",
        "the producer's log: without SEND_OK the message may never have been stored",
    )
    if kept is None:
        yield proven("the store has no messages at all", next=elsewhere)
        return
    if wanted.kind is IdKind.OFFSET:
        yield _offset_not_stored(facts, wanted, kept, elsewhere)
    elif 0 <= wanted.sent_ms < kept.first_ms - CLOCK_SLACK_MS:
        yield proven(
            f"it was deleted: the id was created at {time_text(wanted.sent_ms)}, and the oldest"
            f" message here was stored at {time_text(kept.first_ms)}",
            facts.setting("fileReservedTime"),
            f"the log begins at offset {kept.begin}",
            next=(f"rmqpy why not-deleted {facts.target} explains the retention",),
        )
    elif where.incomplete:
        yield possible(
            "the key index does not have it: it is not stored here, or it was not indexed",
            *(f"searched: {each}" for each in where.searched),
            facts.setting("messageIndexEnable"),
            next=elsewhere,
        )
    else:
        yield proven(
            "this store does not have it",
            *(f"searched: {each}" for each in where.searched),
            next=elsewhere,
        )


def _offset_not_stored(
    facts: NoMessageFacts, wanted: MessageId, kept: StoreRange, elsewhere: tuple[str, ...]
) -> Cause:
    offset = wanted.physical_offset
    span = f"the log has the offsets {kept.begin} to {kept.end}"
    if offset < kept.begin:
        return proven(
            f"it was deleted: its offset {offset} is before the first offset of the log,"
            f" {kept.begin}",
            facts.setting("fileReservedTime"),
            next=(f"rmqpy why not-deleted {facts.target} explains the retention",),
        )
    if offset >= kept.end:
        return proven(
            f"this store never had it, or has lost it: its offset {offset} is after the end of the"
            f" log, {kept.end}",
            span,
            next=("look on the other members of the group: this one may lag", *elsewhere),
        )
    return proven(
        f"no message starts at offset {offset}: the id belongs to another broker",
        span,
        next=elsewhere,
    )


# -- 2: delivered to its topic


def _not_delivered(facts: NoMessageFacts) -> Iterator[Cause]:
    where = facts.where
    if where is None or facts.copy is not None:
        return
    for copy in where.copies_of(CopyKind.GIVEN_UP):
        yield proven(
            "the transaction was given up: the producer did not commit it in"
            f" {facts.settings.get('transactionCheckMax', '15')} checks",
            _at(copy),
            facts.setting("transactionCheckMax"),
            next=("let the producer's checkLocalTransaction answer, then send it again",),
        )
        return
    halves = where.copies_of(CopyKind.HALF)
    if halves:
        yield _half(facts, halves)
    for copy in where.copies_of(CopyKind.DELAYED):
        if copy.delivered is not True:
            yield _delayed(facts, copy)


def _half(facts: NoMessageFacts, halves: list[MessageCopy]) -> Cause:
    last = halves[-1]
    producers = last.message.properties.get(PROPERTY_PRODUCER_GROUP, "?")
    checks = len(halves) - 1
    evidence = (
        _at(last),
        f"producer group {producers}, checked {checks} times",
        facts.setting("transactionTimeOut"),
        facts.setting("transactionCheckMax"),
    )
    if last.resolved:
        return proven(
            "the producer rolled the transaction back: an op message names the half message, and no"
            f" message was written to {last.real_topic}",
            *evidence,
            next=("if that is not expected, see the log of the producer",),
        )
    next_steps = (
        f"rmqpy admin producerConnection -g {producers} -t {last.real_topic}: is the producer"
        " online, so that it can be asked?",
    )
    if last.resolved is None:
        return possible(
            "the transaction was not committed: it is pending or rolled back",
            *evidence,
            next=next_steps,
        )
    return proven(
        "the transaction is pending: the producer has neither committed it nor rolled it back",
        *evidence,
        next=next_steps,
    )


def _delayed(facts: NoMessageFacts, copy: MessageCopy) -> Cause:
    level = f"delay level {copy.level}, {facts.setting('messageDelayLevel')}"
    if copy.due_ms > facts.now_ms:
        left = duration_text(copy.due_ms - facts.now_ms)
        return proven(
            f"it is delayed: due at {time_text(copy.due_ms)}, in {left}", _at(copy), level
        )
    make = possible if copy.delivered is None else proven
    return make(
        f"it is delayed and was due at {time_text(copy.due_ms)}, but was not delivered: deliveries"
        f" of level {copy.level} have not reached offset {copy.message.queue_offset}",
        _at(copy),
        "config/delayOffset.json has the offsets of the levels",
        next=(
            "only a running master delivers: start it, or see why it is not the master",
            "a full disk stops deliveries: rmqpy admin brokerStatus shows storeRefusesPuts",
        ),
    )


# -- 3: readable


def _not_readable(facts: NoMessageFacts) -> Iterator[Cause]:
    copy = facts.copy
    if copy is None:
        return
    if copy.place.committed is False:
        yield proven(
            f"entry {copy.place.index} of term {copy.place.term} is not known to be committed, and"
            " members only serve committed entries",
            _at(copy),
            "committedIndex in the checkpoint of the member is smaller",
            next=(
                "start a quorum of the group: it commits the entry, or replaces it",
                f"rmqpy why election {facts.target}",
            ),
        )
    elif copy.unit_fault:
        message = copy.message
        yield proven(
            "it is in the log, but its consume queue does not lead to it:"
            f" {message.topic} queue {message.queue_id} offset {message.queue_offset}:"
            f" {copy.unit_fault}",
            _at(copy),
            next=(
                "a start rebuilds missing units from the log; if it does not, rmqpy store fsck DIR"
                " shows the damage",
            ),
        )


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
            f" {count} messages are in others",
            "readQueueNums in config/topics.json",
            next=(
                f"rmqpy admin updateTopic -b BROKER -t {topic.name}"
                f" -r {max(each.queue_id for each in hidden) + 1} makes them readable",
            ),
        )


# -- 5: group


def _group(facts: NoMessageFacts) -> Iterator[Cause]:
    group = facts.group
    if group is None:
        return
    if group.known and group.config is None:
        if facts.settings.get("autoCreateSubscriptionGroup", "true") == "false":
            yield proven(
                f"the broker does not know the group {group.name}, and refuses its"
                f" pulls{group.hint}",
                facts.setting("autoCreateSubscriptionGroup"),
                next=(f"rmqpy admin updateSubGroup -b BROKER -g {group.name} creates it",),
            )
        else:
            yield proven(
                f"no member of {group.name} has ever connected to this broker{group.hint}",
                "the group is not in config/subscriptionGroup.json",
                facts.setting("autoCreateSubscriptionGroup"),
                next=("check the group's name and its name servers in the consumer",),
            )
    elif group.config is not None and not group.config.get("consumeEnable", True):
        yield proven(
            f"consumption of {group.name} is switched off",
            "consumeEnable=false in config/subscriptionGroup.json",
            next=(f"rmqpy admin updateSubGroup -b BROKER -g {group.name} -s true",),
        )
    members = group.members
    if members is None:
        return
    if not members.clients:
        yield proven(
            f"no member of {group.name} is online at this broker",
            next=("start a consumer; its log says whether it finds the name servers",),
        )
        return
    if members.message_model == BROADCASTING:
        config = group.config or {}
        if not config.get("consumeBroadcastEnable", True):
            yield proven(
                f"{group.name} consumes in broadcasting mode, which is switched off for it",
                "consumeBroadcastEnable=false in config/subscriptionGroup.json",
                next=(f"rmqpy admin updateSubGroup -b BROKER -g {group.name} -d true",),
            )
    if members.expression is None and facts.topic is not None:
        yield proven(
            f"the members of {group.name} have not subscribed to {facts.topic.name}",
            f"{len(members.clients)} clients are online",
            next=(f"rmqpy admin consumerConnection -g {group.name} shows what they subscribed to",),
        )
    different = {expression for _, expression in members.subscriptions}
    if len(different) > 1:
        yield proven(
            f"the members of {group.name} have different subscriptions: the broker keeps the one"
            " that came last, and messages for the others are skipped",
            *(f"{client}: {expression}" for client, expression in members.subscriptions),
            next=("give all members of the group the same topics and expressions",),
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


def _reset(topic: TopicFacts, group: GroupFacts) -> str:
    return (
        f"rmqpy admin resetOffsetByTime -g {group.name} -t {topic.name} -s TIME sets it to the"
        " messages stored from TIME on"
    )


def _message_offset(
    facts: NoMessageFacts, group: GroupFacts, topic: TopicFacts, copy: MessageCopy
) -> Iterator[Cause]:
    assert facts.where is not None
    traced = [each for each in facts.where.traces if (each.kind, each.group) == ("Sub", group.name)]
    for trace in traced:
        yield _traced(trace)
    for other in facts.where.copies_of(CopyKind.DEAD):
        if other.message.topic == dlq_topic(group.name):
            yield proven(
                f"{group.name} received it and failed {other.message.reconsume_times} times: it is"
                f" in {other.message.topic}",
                _at(other),
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
            f"{group.name} has no offset in queue {number}: it has never committed one there",
            "config/consumerOffset.json",
            next=(f"rmqpy admin consumerProgress -g {group.name} shows its queues",),
        )
    elif not position.has_passed:
        before = copy.message.queue_offset - position.offset
        count = f"{before} messages before it" if before else "it is the next one"
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


def _sent_back(group: GroupFacts, last: MessageCopy) -> Cause:
    times = f"{last.message.reconsume_times} times"
    if any(each.has_passed for each in last.groups if each.group == group.name):
        return possible(
            f"{group.name} received it, sent it back {times}, and has passed the last retry: it"
            " consumed it in the end",
            _at(last),
            next=("the log of the consumer shows the result",),
        )
    waits = f", {last.state}" if last.state else ""
    return proven(
        f"{group.name} received it and sent it back {times}: the retry waits{waits}",
        _at(last),
        next=("see the log of the consumer for the failure",),
    )


def _traced(trace: Trace) -> Cause:
    when = f" at {time_text(trace.time_ms)}" if trace.time_ms else ""
    ended = "consumed it" if trace.success else "received it and failed"
    return proven(f"{trace.group} {ended}{when}: client {trace.client_host}", "RMQ_SYS_TRACE_TOPIC")


def _waiting(facts: NoMessageFacts, group: GroupFacts, topic: TopicFacts) -> Iterator[Cause]:
    unread = [each for each in topic.queues if each.offset is None and each.end > each.first]
    if unread and group.config is not None:
        listed = ", ".join(str(each.queue_id) for each in unread[:QUEUES_NAMED])
        yield proven(
            f"{group.name} has no offset in queue {listed} of {topic.name}: it has never committed"
            " one there",
            "config/consumerOffset.json" if not facts.is_live else "the broker's offsets",
            next=(f"rmqpy admin consumerProgress -g {group.name} -t {topic.name}",),
        )
    lagging = [each for each in topic.queues if each.offset is not None and each.lag > 0]
    if lagging:
        listed = ", ".join(f"{each.queue_id} ({each.lag})" for each in lagging[:QUEUES_NAMED])
        online = group.members is not None and bool(group.members.clients)
        yield proven(
            f"{group.name} lags by {sum(each.lag for each in lagging)} messages: queue (messages):"
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
            f"{retries} messages wait in {retry_topic(group.name)}: members sent them back",
            next=("see the log of the consumer for the failure",),
        )


# -- facts


def _facts(facts: NoMessageFacts) -> Iterator[tuple[str, str]]:
    if facts.wanted is not None:
        sent = facts.wanted.sent_ms
        created = f", created {time_text(sent)}" if sent >= 0 else ""
        yield "id", f"{facts.wanted.text} ({facts.wanted.kind.value}{created})"
    for copy in facts.where.current_copies if facts.where is not None else ():
        yield copy.kind.value, _at(copy) + (f"; {copy.state}" if copy.state else "")
    if facts.topic is not None:
        config = facts.topic.config or {}
        queues = f"{config.get('readQueueNums', '?')} readable queues"
        yield "topic", f"{facts.topic.name}: {queues}, permission {config.get('perm', '?')}"
    group = facts.group
    if group is None or facts.topic is None:
        return
    members = group.members
    if members is not None and members.clients:
        text = f"{len(members.clients)} online, {members.message_model}"
        yield "members", f"{text}, {members.expression_type} {members.expression}"
    for queue in facts.topic.queues:
        offset = "no offset" if queue.offset is None else f"offset {queue.offset}"
        yield f"queue {queue.queue_id}", f"{queue.first} to {queue.end}, {offset}, lag {queue.lag}"
    if group.dead_count:
        yield "dead letters", f"{group.dead_count} in {dlq_topic(group.name)}"


def _not_examined(facts: NoMessageFacts) -> Iterator[str]:
    yield from facts.where.incomplete if facts.where is not None else ()
    if facts.group is not None and facts.group.members is None:
        yield (
            "members, tags, and subscriptions: "
            + (
                "the broker did not answer"
                if facts.is_live
                else "only a running broker knows them; give its address (HOST:PORT) instead"
            )
        )
    if facts.topic is None and facts.wanted is None:
        yield "the topic: name it with --topic"
    if facts.topic is not None and not facts.topic.known:
        yield "the topic's configuration: no readable table"
    if facts.group is not None:
        yield "offsets in other brokers of the topic, and those that clients keep (broadcasting)"


def _at(copy: MessageCopy) -> str:
    message, place = copy.message, copy.place
    where = f", {place.file} byte {place.position}" if place.position >= 0 else ""
    return (
        f"{message.topic} queue {message.queue_id} offset {message.queue_offset}, physical offset"
        f" {message.physical_offset}{where}"
    )
