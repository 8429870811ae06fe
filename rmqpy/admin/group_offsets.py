"""The offsets of a group, and their move to a time: what each queue's offset becomes, and the move.

The clients of an online group move their offsets themselves, when the broker informs them (request
code 222). The offsets of an offline group are set on the brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define

from rmqpy.admin.api import Admin
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import retry_topic
from rmqpy.remoting.bodies import ConsumeStats, MessageQueue
from rmqpy.remoting.headers import (
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)

__all__ = [
    "NOW",
    "OffsetMove",
    "OffsetReset",
    "consume_stats",
    "move_offline",
    "planned_moves",
    "reset_online",
]

NOW: Final = -1
"""The timestamp that means the end of the queue."""


@define(slots=True, frozen=True)
class OffsetReset:
    """A group, a topic, and the time in ms that its offsets move to; with ``force`` also forwards,
    past messages that it has not consumed.
    """

    group: str
    topic: str
    timestamp_ms: int
    force: bool


@define(slots=True, frozen=True, kw_only=True)
class OffsetMove:
    """One queue: its first offset and its end, the offset of the group, that of the time, and the
    one that results. ``consumed`` is 0 if the group has no offset there yet.
    """

    queue: MessageQueue
    begin: int
    end: int
    consumed: int
    target: int
    result: int

    @property
    def skipped(self) -> int:
        """The number of messages that the group will not receive."""
        return max(0, self.result - max(self.consumed, self.begin))

    @property
    def repeated(self) -> int:
        """The number of messages that the group will receive again."""
        return max(0, min(self.consumed, self.end) - self.result)


async def reset_online(admin: Admin, reset: OffsetReset) -> dict[MessageQueue, int] | None:
    """Let the brokers inform the clients of a group; return the new offsets, or None if no client
    is online.
    """
    header = ResetOffsetRequestHeader(
        topic=reset.topic,
        group=reset.group,
        timestamp=reset.timestamp_ms,
        is_force=reset.force,
    )
    moved: dict[MessageQueue, int] = {}
    try:
        for broker in (await admin.route(reset.topic)).broker_datas:
            address = broker.broker_addrs[min(broker.broker_addrs)]
            moved.update(await admin.reset_offset(address, header))
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return None
    return moved


async def planned_moves(admin: Admin, reset: OffsetReset) -> list[OffsetMove]:
    """Return what a reset does to each queue; nothing is changed."""
    try:
        known = (await consume_stats(admin, reset.group, reset.topic)).offset_table
    except RmqError:
        known = {}  # The group has never consumed.
    moves = []
    for broker in (await admin.route(reset.topic)).broker_datas:
        address = broker.broker_addrs.get(MASTER_ID)
        if address is None:
            continue
        stats = await admin.topic_stats(address, reset.topic)
        for queue, positions in sorted(stats.offset_table.items()):
            consumed = known[queue].consumer_offset if queue in known else 0
            target = positions.max_offset
            if reset.timestamp_ms != NOW:
                target = await _offset_at(admin, address, queue, reset.timestamp_ms)
            moves_there = reset.force or queue not in known or target <= consumed
            moves.append(
                OffsetMove(
                    queue=queue,
                    begin=positions.min_offset,
                    end=positions.max_offset,
                    consumed=consumed,
                    target=target,
                    result=target if moves_there else consumed,
                )
            )
    return moves


async def move_offline(admin: Admin, reset: OffsetReset, moves: Sequence[OffsetMove]) -> None:
    """Set the offsets of a group that has no client online."""
    masters = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in (await admin.route(reset.topic)).broker_datas
        if MASTER_ID in broker.broker_addrs
    }
    for move in moves:
        if move.result == move.target:
            address = masters[move.queue.broker_name]
            await admin.set_consumer_offset(address, reset.group, move.queue, move.result)


async def _offset_at(admin: Admin, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
    header = SearchOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    response = await admin.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return SearchOffsetResponseHeader.decode(response.ext_fields).offset


async def consume_stats(admin: Admin, group: str, topic: str | None = None) -> ConsumeStats:
    """Return the merged statistics of all brokers that have the group's retry topic.

    Raise RequestRejectedError if the group has no offsets.
    """
    route = await admin.route(retry_topic(group))
    merged = ConsumeStats()
    for broker in route.broker_datas:
        part = await admin.consume_stats(
            broker.broker_addrs[min(broker.broker_addrs)], group, topic
        )
        merged.offset_table.update(part.offset_table)
        merged.consume_tps += part.consume_tps
    if not merged.offset_table:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            f"Not found the consumer group consume stats, because return offset table is empty,"
            f" maybe the consumer {group} not consume any message",
        )
    return merged
