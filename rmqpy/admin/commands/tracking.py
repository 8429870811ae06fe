"""The tracks of a message: the groups that consume its topic, and whether each has consumed it."""

from __future__ import annotations

from attrs import define

from rmqpy.admin.command import CommandContext
from rmqpy.admin.commands.topics import groups_of
from rmqpy.admin.group_offsets import consume_stats
from rmqpy.client.core.message import MessageExt, host_address
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import TOOLS_GROUP, retry_topic
from rmqpy.remoting.bodies import ConsumerConnection

_PULL = "CONSUME_ACTIVELY"


@define(slots=True, frozen=True)
class Track:
    """The state of one group.

    ``kind`` is CONSUMED, CONSUMED_BUT_FILTERED, NOT_CONSUME_YET, NOT_ONLINE, PULL or UNKNOWN.
    """

    group: str
    kind: str
    fault: str | None = None

    @property
    def text(self) -> str:
        """The text of Java's MessageTrack.toString."""
        return (
            f"MessageTrack [consumerGroup={self.group}, trackType={self.kind},"
            f" exceptionDesc={self.fault if self.fault is not None else 'null'}]"
        )


async def track(call: CommandContext, message: MessageExt) -> list[Track]:
    """Return a track for each group that consumes the message's topic.

    If the groups cannot be found, show the error and return nothing.
    """
    try:
        route = await call.admin.route(message.topic)
        groups = await groups_of(call, message.topic, route)
    except RmqError as fault:
        call.show(f"consumers of {message.topic}: {fault}")
        return []
    return [await _track(call, message, group) for group in groups if group != TOOLS_GROUP]


async def _track(call: CommandContext, message: MessageExt, group: str) -> Track:
    try:
        route = await call.admin.route(retry_topic(group))
        address = next(each.broker_addrs[min(each.broker_addrs)] for each in route.broker_datas)
        connection = await call.admin.consumer_connections(address, group)
        if connection.consume_type == _PULL:
            return Track(group, "PULL")
        if not await _is_consumed(call, message, group):
            return Track(group, "NOT_CONSUME_YET")
    except RequestRejectedError as refusal:
        offline = refusal.code == ResponseCode.CONSUMER_NOT_ONLINE
        kind = "NOT_ONLINE" if offline else "UNKNOWN"
        return Track(group, kind, f"CODE:{refusal.code} DESC:{refusal.remark}")
    except RmqError as fault:
        return Track(group, "UNKNOWN", str(fault))
    filtered = _is_filtered(message, connection)
    return Track(group, "CONSUMED_BUT_FILTERED" if filtered else "CONSUMED")


async def _is_consumed(call: CommandContext, message: MessageExt, group: str) -> bool:
    brokers = (await call.admin.cluster_info()).broker_addr_table
    store = host_address(message.stored.store_host)
    for queue, offset in (await consume_stats(call.admin, group)).offset_table.items():
        if (queue.topic, queue.queue_id) != (message.topic, message.stored.queue_id):
            continue
        broker = brokers.get(queue.broker_name)
        if broker is not None and broker.broker_addrs.get(MASTER_ID) == store:
            return offset.consumer_offset > message.queue_offset
    return False


def _is_filtered(message: MessageExt, connection: ConsumerConnection) -> bool:
    subscription = connection.subscription_table.get(message.topic)
    if subscription is None or not subscription.tags_set:
        return False
    return message.tags not in subscription.tags_set and "*" not in subscription.tags_set
