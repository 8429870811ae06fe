"""Commands for figures: the rates of topics and groups, and the units of a consume queue."""

from __future__ import annotations

from rmqpy.admin.command import TOPIC, Command, CommandContext, UsageError, option
from rmqpy.admin.commands.topics import groups_of
from rmqpy.admin.group_offsets import consume_stats
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.names import is_dlq_topic, is_retry_topic
from rmqpy.remoting.bodies import BrokerStatsData, TopicRouteData
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.headers import QueryConsumeQueueRequestHeader

_LINE = "=" * 38
_STATS = OutputTable(
    [
        Column("#Topic", -64),
        Column("#Consumer Group", -64),
        Column("#Accumulation", 12),
        Column("#InTPS", 11),
        Column("#OutTPS", 11),
        Column("#InMsg24Hour", 14),
        Column("#OutMsg24Hour", 14),
    ],
    ["  ", " "],
)


async def stats_all(call: CommandContext) -> CommandResult:
    chosen, active = call.args.optional("topic"), call.args.has("activeTopic")
    rows: list[list[object]] = []
    for topic in [chosen] if chosen is not None else await call.admin.topics():
        if chosen is None and (is_retry_topic(topic) or is_dlq_topic(topic)):
            continue
        try:
            route = await call.admin.route(topic)
        except RequestRejectedError:
            if chosen is not None:
                raise
            continue  # It is the name of a cluster or broker, or was deleted since.
        rows += await _topic_rows(call, topic, route, active)
    names = ["topic", "group", "behind", "inTps", "outTps", "in24Hours", "out24Hours"]
    return CommandResult([dict(zip(names, row, strict=True)) for row in rows], _STATS.text(rows))


async def _topic_rows(
    call: CommandContext, topic: str, route: TopicRouteData, active: bool
) -> list[list[object]]:
    put_tps, put_day = await _rates(call, route, "TOPIC_PUT_NUMS", topic)
    groups = await groups_of(call, topic, route)
    if not groups:
        idle = active and not put_day
        row = [topic, "", 0, f"{put_tps:.2f}", "", put_day, "NO_CONSUMER"]
        return [] if idle else [row]
    rows: list[list[object]] = []
    for group in groups:
        got_tps, got_day = await _rates(call, route, "GROUP_GET_NUMS", f"{topic}@{group}")
        if active and not put_day and not got_day:
            continue
        try:
            table = (await consume_stats(call.admin, group, topic)).offset_table
        except RmqError:
            table = {}
        lag = sum(each.broker_offset - each.consumer_offset for each in table.values())
        rates = [f"{put_tps:.2f}", f"{got_tps:.2f}"]
        rows.append([topic, group, max(lag, 0), *rates, put_day, got_day])
    return rows


async def _rates(
    call: CommandContext, route: TopicRouteData, name: str, key: str
) -> tuple[float, int]:
    """Return (rate per second over the last minute, count of a day), summed over all masters."""
    tps, day = 0.0, 0
    for broker in route.broker_datas:
        address = broker.broker_addrs.get(MASTER_ID)
        if address is None:
            continue
        try:
            data = await call.admin.broker_stats(address, name, key)
        except RmqError:
            continue  # Nothing has been counted under this key.
        tps += data.stats_minute.tps if data.stats_minute is not None else 0.0
        day += _day_sum(data)
    return tps, day


def _day_sum(data: BrokerStatsData) -> int:
    """Return the sum of the longest span that has counted anything."""
    for item in (data.stats_day, data.stats_hour, data.stats_minute):
        if item is not None and item.sum:
            return item.sum
    return 0


async def query_consume_queue(call: CommandContext) -> CommandResult:
    args = call.args
    topic, first = args.text("topic"), args.number("index", 0)
    address = args.optional("broker")
    if not address:
        route = await call.admin.route(topic)
        address = route.broker_datas[0].broker_addrs.get(MASTER_ID)
        if address is None:
            raise UsageError(f"the first broker of {topic} has no master: choose one with -b")
    header = QueryConsumeQueueRequestHeader(
        topic=topic,
        queue_id=args.number("queue", 0),
        index=first,
        count=args.number("count", 10),
        consumer_group=args.optional("consumer"),
    )
    body = await call.admin.consume_queue(address, header)
    lines = []
    if body.subscription_data is not None:
        shown = dumps(body.subscription_data.to_json(), pretty=True).decode()
        lines += ["Subscription data: ", shown, _LINE]
    if body.filter_data is not None:
        lines += ["Filter data: ", body.filter_data, _LINE]
    lines += ["Queue data: ", f"max: {body.max_queue_index}, min: {body.min_queue_index}", _LINE]
    for number, unit in enumerate(body.queue_data or [], first):
        lines += [
            f"idx: {number}",
            f"ConsumeQueueData{{physicOffset={unit.physic_offset},"
            f" physicSize={unit.physic_size}, tagsCode={unit.tags_code},"
            f" extendDataJson='{_or_null(unit.extend_data_json)}',"
            f" bitMap='{_or_null(unit.bit_map)}', eval={java_bool(unit.eval)},"
            f" msg='{_or_null(unit.msg)}'}}",
            _LINE,
        ]
    return CommandResult(body, "\n".join(lines))


def _or_null(text: str | None) -> str:
    return "null" if text is None else text


COMMANDS = (
    Command(
        name="statsAll",
        help="show the rates of topics and of their consumers",
        run=stats_all,
        options=(
            option("a", "activeTopic", "only topics and groups with messages", flag=True),
            option("t", "topic", "one topic, default all"),
        ),
    ),
    Command(
        name="queryCq",
        help="show units of a consume queue",
        run=query_consume_queue,
        options=(
            TOPIC,
            option("q", "queue", "queue id", required=True),
            option("i", "index", "first unit", required=True),
            option("c", "count", "number of units, default 10"),
            option("b", "broker", "the broker, as host:port"),
            option("g", "consumer", "as this consumer group sees it"),
        ),
    ),
)
