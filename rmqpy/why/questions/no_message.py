"""Why a group has not received a message, or receives nothing: the path of a message, step by step.

A message must be stored, delivered to its topic (after a delay or a transaction), readable through
the consume queue, in a queue that consumers read, and selected by the group's subscription; and the
group's offset must lead to it. Each step has a function here that knows what can go wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.model.names import dlq_topic
from rmqpy.model.text import time_text
from rmqpy.why.answer import Answer, ranked
from rmqpy.why.questions.message_facts import (
    NoMessageFacts,
    place_of,
)
from rmqpy.why.questions.no_message_delivery import delivery_causes
from rmqpy.why.questions.no_message_group import group_causes

__all__ = ["explain_no_message"]

QUESTION = "why no-message"


def explain_no_message(facts: NoMessageFacts) -> Answer:
    """Return why the message, or any message of the topic, was not received by the group."""
    causes = [*delivery_causes(facts), *group_causes(facts)]
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


# -- facts


def _facts(facts: NoMessageFacts) -> Iterator[tuple[str, str]]:
    if facts.wanted is not None:
        sent = facts.wanted.sent_ms
        created = f", created {time_text(sent)}" if sent >= 0 else ""
        yield "id", f"{facts.wanted.text} ({facts.wanted.kind.value}{created})"
    for copy in facts.where.current_copies if facts.where is not None else ():
        yield copy.kind.value, place_of(copy) + (f"; {copy.state}" if copy.state else "")
    if facts.topic is not None:
        config = facts.topic.config
        if config is None:
            yield "topic", f"{facts.topic.name}: unknown to the broker"
        else:
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
            "members, tags, subscriptions, and queue locks: "
            + (
                "the broker did not answer"
                if facts.is_live
                else "only a running broker knows them; give its address (HOST:PORT) instead"
            )
        )
    yield from facts.pop.not_examined
    if facts.access is not None and facts.access.fault:
        yield f"accounts of access control: {facts.access.fault}"
    if facts.topic is None and facts.wanted is None:
        yield "the topic: name it with --topic"
    if facts.topic is not None and not facts.topic.known:
        yield "the topic's configuration: no readable table"
    if facts.group is not None:
        yield "offsets in other brokers of the topic, and those that clients keep (broadcasting)"
