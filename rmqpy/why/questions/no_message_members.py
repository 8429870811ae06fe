"""Why a group does not get a message that is in its queue: the group and its online members."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.model.text import count_text, time_text
from rmqpy.remoting.bodies import BROADCASTING
from rmqpy.why.answer import Cause, proven
from rmqpy.why.questions.message_facts import ConsumerGroupFacts, NoMessageFacts
from rmqpy.why.questions.no_message_access import access_causes

__all__ = ["member_causes"]

LOCK_LIFE = "a broker gives a queue to another client 60 s after the last lock of its holder"


def member_causes(facts: NoMessageFacts) -> Iterator[Cause]:
    """Yield what the group or its members do not do: exist, be online, subscribe, lock queues."""
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
    if members is None or not members.clients:
        yield from access_causes(facts, group)
    if members is None:
        return
    if not members.clients:
        yield proven(
            f"no member of {group.name} is online at this broker",
            next=(
                "start a consumer; its log says whether it finds the name servers",
                *(
                    ("clients of a 5.x proxy are not listed at the broker",)
                    if facts.pop.receipts
                    else ()
                ),
            ),
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
            f"{count_text(len(members.clients), 'client is', 'clients are')} online",
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
    yield from _not_locked(facts, group)


def _not_locked(facts: NoMessageFacts, group: ConsumerGroupFacts) -> Iterator[Cause]:
    """Yield the queues with waiting messages that an orderly client has and has not locked."""
    if facts.topic is None or group.members is None:
        return
    waiting = {each.queue_id for each in facts.topic.queues if each.lag > 0}
    if facts.copy is not None:
        waiting &= {facts.copy.message.queue_id}
    for queue_id in sorted(waiting):
        locks = [each for each in group.members.locks if each.queue_id == queue_id]
        if not locks or any(each.is_locked for each in locks):
            continue
        yield proven(
            f"queue {queue_id} is consumed in order, and no member of {group.name} has its lock",
            *(
                f"{each.client}: locked=false, last lock"
                f" {time_text(each.last_lock_ms) if each.last_lock_ms > 0 else 'never'}"
                for each in locks
            ),
            LOCK_LIFE,
            next=(
                "wait 60 s if a member has died; otherwise look for a member that has stopped"
                " without unlocking, or a second group of the same name",
                f"rmqpy admin consumerStatus -g {group.name} shows the queues of each member",
            ),
        )
