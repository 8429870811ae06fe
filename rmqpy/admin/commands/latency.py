"""Commands that measure the time of sends."""

from __future__ import annotations

import asyncio

from rmqpy.admin.command import TOPIC, Command, CommandContext, UsageError, option
from rmqpy.admin.commands.messages import queue_text
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean
from rmqpy.remoting.bodies import MessageQueue

FILLING = b"a"

_SEND = OutputTable(
    [
        Column("#Broker Name", -32),
        Column("#QID", -4),
        Column("#Send Result", -20),
        Column("#RT", 0),
    ],
    ["  ", "  ", "    "],
)
_CLUSTER_TITLES = OutputTable(
    [
        Column("#Cluster Name", -24),
        Column("#Broker Name", -24),
        Column("#RT", -4),
        Column("#successCount", -8),
        Column("#failCount", -8),
    ]
)
_CLUSTER = OutputTable(
    [
        Column("#Cluster Name", -24),
        Column("#Broker Name", -24),
        Column("#RT", -8),
        Column("#successCount", -16),
        Column("#failCount", -16),
    ]
)


async def check_send_rt(call: CommandContext) -> CommandResult:
    args = call.args
    topic, amount = args.text("topic"), args.number("amount", 100)
    message = Message(topic=topic, body=FILLING * args.number("size", 128))
    rows, spent, data = [], [], []
    async with Producer("CHECK_RT", instance=call.admin.instance) as producer:
        queues = await producer.queues(topic)
        if not queues:
            raise UsageError(f"no broker accepts messages of {topic}")
        for number in range(amount):
            queue = queues[number % len(queues)]
            succeeded, time_ms = await _timed(call, producer, message, queue)
            rows.append([queue.broker_name, queue.queue_id, java_bool(succeeded), time_ms])
            data.append({"queue": queue, "ok": succeeded, "ms": time_ms})
            spent.append(time_ms)
    text = f"{_SEND.text(rows)}\nAvg RT: {_mean(spent)}"
    return CommandResult(data, text, says_no=not all(row["ok"] for row in data))


async def send_status(call: CommandContext) -> CommandResult:
    """Send messages to the topic with the broker's name."""
    args = call.args
    name = args.text("brokerName")
    message = Message(topic=name, body=FILLING * args.number("messageSize", 128))
    clock = call.admin.instance.clock
    data = []
    async with Producer("PID_SMSC", instance=call.admin.instance) as producer:
        await producer.send(Message(topic=name, body=FILLING * 16))
        for _ in range(args.number("count", 50)):
            start_ms = clock.monotonic_ms()
            result = await producer.send(message)
            spent_ms = clock.monotonic_ms() - start_ms
            data.append({"ms": spent_ms, "msgId": result.msg_id, "status": result.status.value})
            call.show(
                f"rt={spent_ms}ms, SendResult=SendResult [sendStatus={result.status.value},"
                f" msgId={result.msg_id}, offsetMsgId={result.offset_msg_id},"
                f" messageQueue={queue_text(result.queue)}, queueOffset={result.queue_offset}]"
            )
    return CommandResult(data, "")


async def cluster_rt(call: CommandContext) -> CommandResult:
    """Repeat rounds until interrupted; ``-r`` limits the rounds."""
    args = call.args
    amount, rounds = args.number("amount", 100), args.number("rounds", 0)
    as_log = args.boolean("print", False)
    data: list[dict[str, object]] = []
    if not as_log:
        call.show(_CLUSTER_TITLES.line([column.title for column in _CLUSTER_TITLES.columns]))
    done = 0
    async with Producer("CLUSTER_RT", instance=call.admin.instance) as producer:
        while True:
            data = []
            clusters = (await call.admin.cluster_info()).cluster_addr_table
            chosen = args.optional("cluster")
            if chosen is not None and chosen not in clusters:
                raise UsageError(f"cluster [{chosen}] not exist{did_you_mean(chosen, clusters)}")
            for cluster in [chosen] if chosen is not None else sorted(clusters):
                for broker in sorted(clusters[cluster]):
                    row = await _round(call, producer, broker, amount)
                    data.append({"cluster": cluster, "broker": broker, **row})
                    call.show(_shown(call, cluster, broker, row, as_log))
            done += 1
            if done == rounds:
                return CommandResult(data, "")
            await asyncio.sleep(args.number("interval", 10))


async def _round(
    call: CommandContext, producer: Producer, broker: str, amount: int
) -> dict[str, object]:
    message = Message(topic=broker, body=FILLING * call.args.number("size", 128))
    spent, failed = [], 0
    for _ in range(amount):
        succeeded, time_ms = await _timed(call, producer, message, None)
        failed += not succeeded
        spent.append(time_ms)
    return {"rt": _mean(spent), "ok": amount - failed, "failed": failed}


def _shown(
    call: CommandContext, cluster: str, broker: str, row: dict[str, object], as_log: bool
) -> str:
    if not as_log:
        return _CLUSTER.line([cluster, broker, row["rt"], row["ok"], row["failed"]])
    now = java_time(call.admin.instance.clock.now_ms(), millis=False)
    machine_room = call.args.optional("machineRoom") or "noname"
    return f"{now}|{machine_room}|{cluster}|{broker}|{row['rt']}"


async def _timed(
    call: CommandContext, producer: Producer, message: Message, queue: MessageQueue | None
) -> tuple[bool, int]:
    clock = call.admin.instance.clock
    start_ms = clock.monotonic_ms()
    try:
        await producer.send(message, queue)
    except RmqError:
        return False, clock.monotonic_ms() - start_ms
    return True, clock.monotonic_ms() - start_ms


def _mean(spent_ms: list[int]) -> str:
    """Return the mean without the first send, which opens connections, as Java formats it."""
    return f"{sum(spent_ms[1:]) / (len(spent_ms) - 1):.2f}" if len(spent_ms) > 1 else "NaN"


_AMOUNT = option("a", "amount", "messages, default 100")
_SIZE = option("s", "size", "bytes of a message, default 128")

COMMANDS = (
    Command(
        name="checkMsgSendRT",
        help="measure the send time of a topic",
        run=check_send_rt,
        options=(TOPIC, _AMOUNT, _SIZE),
    ),
    Command(
        name="sendMsgStatus",
        help="send to one broker",
        run=send_status,
        options=(
            option("b", "brokerName", "broker name", required=True),
            option("s", "messageSize", "bytes of a message, default 128"),
            option("c", "count", "messages, default 50"),
        ),
    ),
    Command(
        name="clusterRT",
        help="measure the send time of each broker repeatedly",
        run=cluster_rt,
        options=(
            _AMOUNT,
            _SIZE,
            option("c", "cluster", "one cluster, default all"),
            option("p", "print", "true or false: print log lines"),
            option("m", "machineRoom", "a name in these lines"),
            option("i", "interval", "seconds between rounds, default 10"),
            option("r", "rounds", "number of rounds (ours; mqadmin never ends)"),
        ),
    ),
)
