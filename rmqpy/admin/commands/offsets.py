"""Commands that move the offsets of groups.

The clients of an online group move their offsets themselves, when the broker informs them (request
code 222). The offsets of an offline group are set on the brokers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attrs import define

from rmqpy.admin.command import TOPIC, Command, CommandContext, UsageError, option
from rmqpy.admin.commands.groups import consume_stats
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.remoting.headers import (
    ResetOffsetRequestHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)

NOW: Final = -1
"""The timestamp that means the end of the queue."""

_ONLINE = OutputTable([Column("#brokerName", -40), Column("#queueId", -40), Column("#offset", -40)])
_OFFLINE = OutputTable(
    [
        Column("#brokerName", -20),
        Column("#queueId", -20),
        Column("#brokerOffset", -20),
        Column("#consumerOffset", -20),
        Column("#timestampOffset", -20),
        Column("#rollbackOffset", -20),
    ]
)


@define(slots=True, frozen=True)
class _Reset:
    group: str
    topic: str
    timestamp_ms: int
    force: bool


async def reset_offset_by_time(call: CommandContext) -> CommandResult:
    args = call.args
    text = args.text("timestamp")
    reset = _Reset(
        args.text("group"), args.text("topic"), timestamp_of(text), args.boolean("force", True)
    )
    head = (
        f"{{}}[{reset.group}], topic[{reset.topic}], force[{java_bool(reset.force)}],"
        f" timestamp(string)[{text}], timestamp(long)[{reset.timestamp_ms}]"
    )
    outcome, online = await _reset(call, reset)
    kind = "group" if online else "consumerGroup"
    title = head.format(f"rollback consumer offset by specified {kind}")
    return CommandResult(outcome.data, f"{title}\n{outcome.text}")


async def skip_accumulated(call: CommandContext) -> CommandResult:
    args = call.args
    force = args.boolean("force", True)
    outcome, _ = await _reset(call, _Reset(args.text("group"), args.text("topic"), NOW, force))
    return outcome


async def _reset(call: CommandContext, reset: _Reset) -> tuple[CommandResult, bool]:
    """Return (new offsets, whether the group was online)."""
    header = ResetOffsetRequestHeader(
        topic=reset.topic,
        group=reset.group,
        timestamp=reset.timestamp_ms,
        is_force=reset.force,
    )
    moved: dict[MessageQueue, int] = {}
    try:
        for broker in (await call.admin.route(reset.topic)).broker_datas:
            address = broker.broker_addrs[min(broker.broker_addrs)]
            moved.update(await call.admin.reset_offset(address, header))
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return await _reset_offline(call, reset), False
    rows = [[queue.broker_name, queue.queue_id, offset] for queue, offset in sorted(moved.items())]
    return CommandResult(moved, _ONLINE.text(rows)), True


async def _reset_offline(call: CommandContext, reset: _Reset) -> CommandResult:
    try:
        known = (await consume_stats(call, reset.group, reset.topic)).offset_table
    except RmqError:
        known = {}  # The group has never consumed.
    rows, data = [], []
    for broker in (await call.admin.route(reset.topic)).broker_datas:
        address = broker.broker_addrs.get(MASTER_ID)
        if address is None:
            continue
        stats = await call.admin.topic_stats(address, reset.topic)
        for queue, positions in sorted(stats.offset_table.items()):
            consumed = known[queue].consumer_offset if queue in known else 0
            target = positions.max_offset
            if reset.timestamp_ms != NOW:
                target = await _offset_at(call, address, queue, reset.timestamp_ms)
            result = consumed
            if reset.force or queue not in known or target <= consumed:
                await call.admin.set_consumer_offset(address, reset.group, queue, target)
                result = target
            rows.append(
                [
                    queue.broker_name,
                    queue.queue_id,
                    positions.max_offset,
                    consumed,
                    target,
                    result,
                ]
            )
            data.append({"queue": queue, "from": consumed, "to": result})
    return CommandResult(data, _OFFLINE.text(rows))


async def _offset_at(
    call: CommandContext, address: str, queue: MessageQueue, timestamp_ms: int
) -> int:
    header = SearchOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    response = await call.admin.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    return SearchOffsetResponseHeader.decode(response.ext_fields).offset


async def clone_group_offset(call: CommandContext) -> CommandResult:
    args, admin = call.args, call.admin
    source, target, topic = args.text("srcGroup"), args.text("destGroup"), args.text("topic")
    route = await admin.route(topic)
    masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
    cloned = {}
    for queue, offset in sorted((await consume_stats(call, source)).offset_table.items()):
        address = masters.get(queue.broker_name)
        if address is not None and offset.consumer_offset >= 0:
            await admin.set_consumer_offset(address, target, queue, offset.consumer_offset)
            cloned[queue] = offset.consumer_offset
    text = f"clone group offset success. srcGroup[{source}], destGroup=[{target}], topic[{topic}]"
    return CommandResult(cloned, text)


def timestamp_of(text: str) -> int:
    """Return the time for ``now``, milliseconds, or ``yyyy-MM-dd#HH:mm:ss:SSS`` in local time."""
    if text == "now":
        return NOW
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f")
    except ValueError:
        raise UsageError(
            f"{text}: expected now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None
    return round(moment.timestamp() * 1000)


_GROUP = option("g", "group", "consumer group", required=True)
_FORCE = option("f", "force", "true or false: also move forwards, default true")

COMMANDS = (
    Command(
        name="resetOffsetByTime",
        help="reset a group to a time",
        run=reset_offset_by_time,
        options=(
            _GROUP,
            TOPIC,
            option("s", "timestamp", "now, ms, or yyyy-MM-dd#HH:mm:ss:SSS", required=True),
            _FORCE,
            option("c", "cplus", "the group has C++ clients", flag=True),
        ),
    ),
    Command(
        name="skipAccumulatedMessage",
        help="move a group to the end of its queues",
        run=skip_accumulated,
        options=(_GROUP, TOPIC, _FORCE),
    ),
    Command(
        name="cloneGroupOffset",
        help="copy the offsets of one group to another",
        run=clone_group_offset,
        options=(
            option("s", "srcGroup", "group whose offsets are copied", required=True),
            option("d", "destGroup", "group that receives them", required=True),
            TOPIC,
            option("o", "offline", "true or false; without effect, as in Java"),
        ),
    ),
)
