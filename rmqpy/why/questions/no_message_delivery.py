"""Why a message is not where consumers read it: not stored, not delivered, or not readable."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.codec.properties import PROPERTY_PRODUCER_GROUP
from rmqpy.model.text import count_text, time_text
from rmqpy.why.answer import Cause, duration_text, possible, proven
from rmqpy.why.message_id import IdKind, MessageId
from rmqpy.why.questions.message_copies import CopyKind, MessageCopy
from rmqpy.why.questions.message_facts import (
    NoMessageFacts,
    place_of,
)
from rmqpy.why.sources.interface import StoreRange

__all__ = ["delivery_causes"]

CLOCK_SLACK_MS = 60_000
"""The difference that is allowed between the clocks of a producer and of a broker."""


def delivery_causes(facts: NoMessageFacts) -> Iterator[Cause]:
    """Yield what happened to the message before consumers could read it."""
    yield from _not_stored(facts)
    yield from _not_delivered(facts)
    yield from _not_readable(facts)


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
            place_of(copy),
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
        place_of(last),
        f"producer group {producers}, checked {count_text(checks, 'time')}",
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
            f"it is delayed: due at {time_text(copy.due_ms)}, in {left}", place_of(copy), level
        )
    make = possible if copy.delivered is None else proven
    return make(
        f"it is delayed and was due at {time_text(copy.due_ms)}, but was not delivered: deliveries"
        f" of level {copy.level} have not reached offset {copy.message.queue_offset}",
        place_of(copy),
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
            place_of(copy),
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
            place_of(copy),
            next=(
                "a start rebuilds missing units from the log; if it does not, rmqpy store fsck DIR"
                " shows the damage",
            ),
        )
