"""Commands that move the offsets of groups (:mod:`rmqpy.admin.group_offsets`)."""

from __future__ import annotations

from datetime import datetime

from rmqpy.admin.command import TOPIC, Command, CommandContext, UsageError, option
from rmqpy.admin.group_offsets import (
    NOW,
    OffsetReset,
    consume_stats,
    move_offline,
    planned_moves,
    reset_online,
)
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool
from rmqpy.model.ids import MASTER_ID

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


async def reset_offset_by_time(call: CommandContext) -> CommandResult:
    args = call.args
    text = args.text("timestamp")
    reset = OffsetReset(
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
    outcome, _ = await _reset(call, OffsetReset(args.text("group"), args.text("topic"), NOW, force))
    return outcome


async def _reset(call: CommandContext, reset: OffsetReset) -> tuple[CommandResult, bool]:
    """Return (new offsets, whether the group was online)."""
    moved = await reset_online(call.admin, reset)
    if moved is not None:
        rows = [
            [queue.broker_name, queue.queue_id, offset] for queue, offset in sorted(moved.items())
        ]
        return CommandResult(moved, _ONLINE.text(rows)), True
    moves = await planned_moves(call.admin, reset)
    await move_offline(call.admin, reset, moves)
    rows = [
        [
            move.queue.broker_name,
            move.queue.queue_id,
            move.end,
            move.consumed,
            move.target,
            move.result,
        ]
        for move in moves
    ]
    data = [{"queue": each.queue, "from": each.consumed, "to": each.result} for each in moves]
    return CommandResult(data, _OFFLINE.text(rows)), False


async def clone_group_offset(call: CommandContext) -> CommandResult:
    args, admin = call.args, call.admin
    source, target, topic = args.text("srcGroup"), args.text("destGroup"), args.text("topic")
    route = await admin.route(topic)
    masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
    cloned = {}
    for queue, offset in sorted((await consume_stats(admin, source)).offset_table.items()):
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
