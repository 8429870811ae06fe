"""The traces of a message that Java's clients have sent (topic RMQ_SYS_TRACE_TOPIC).

A trace message has records separated by 0x02 of fields separated by 0x01:

==============  ================================================================================
Pub             time, region, group, topic, msgId, tags, keys, storeHost, bodyLength, costTime,
                msgType, offsetMsgId (since 4.4), success, clientHost (since 4.7)
SubAfter        requestId, msgId, costTime, success, keys, contextCode, time, group (since 4.7)
==============  ================================================================================

SubBefore and EndTransaction records exist as well; like mqadmin, this command does not show them.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from rmqpy.admin.command import Command, CommandContext, option
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_time
from rmqpy.client.core.message import MessageExt, host_address
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.model.names import TOOLS_GROUP

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
RECORD_SEPARATOR: Final = "\x02"
FIELD_SEPARATOR: Final = "\x01"
FOUND_MAX: Final = 64


@define(slots=True, frozen=True)
class Trace:
    """One trace record of a message."""

    kind: str
    group: str
    client_host: str
    time_ms: int
    cost_ms: int
    success: bool

    @property
    def row(self) -> list[object]:
        """The record as a row of the table."""
        return [
            self.kind,
            self.group,
            self.client_host,
            java_time(self.time_ms, millis=False),
            f"{self.cost_ms}ms",
            "success" if self.success else "failed",
        ]


async def query_trace(call: CommandContext) -> CommandResult:
    message_id = call.args.text("msgId")
    topic = call.args.optional("traceTopic") or TRACE_TOPIC
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        messages = await consumer.query_by_key(topic, message_id, FOUND_MAX)
    traces = [trace for message in messages for trace in decode_traces(message, message_id)]
    lines = []
    for trace in traces:
        if trace.kind == "Pub":
            lines += [_table("#ProducerGroup", "#SendTime").text([trace.row]), ""]
    groups = sorted({trace.group for trace in traces if trace.kind == "Sub"})
    for group in groups:
        rows = [trace.row for trace in traces if trace.kind == "Sub" and trace.group == group]
        lines += [_table("#ConsumerGroup", "#ConsumerTime").text(rows), ""]
    data = [
        {
            "kind": each.kind,
            "group": each.group,
            "clientHost": each.client_host,
            "time": each.time_ms,
            "costMs": each.cost_ms,
            "success": each.success,
        }
        for each in traces
    ]
    return CommandResult(data, "\n".join(lines), says_no=not traces)


def decode_traces(message: MessageExt, message_id: str) -> list[Trace]:
    """Return the records of ``message_id``, without unreadable ones."""
    host = host_address(message.stored.born_host).rpartition(":")[0]
    found = []
    for record in message.body.decode("utf-8", "replace").split(RECORD_SEPARATOR):
        trace = _trace(record.split(FIELD_SEPARATOR), message_id, host)
        if trace is not None:
            found.append(trace)
    return found


def _trace(fields: list[str], message_id: str, host: str) -> Trace | None:
    try:
        if fields[0] == "Pub" and fields[5] == message_id:
            success = fields[13] if len(fields) >= 14 else fields[12]
            group, time_ms, cost_ms = fields[3], int(fields[1]), int(fields[10])
            return Trace("Pub", group, host, time_ms, cost_ms, success == "true")
        if fields[0] == "SubAfter" and fields[2] == message_id:
            time_ms, group = (int(fields[7]), fields[8]) if len(fields) >= 9 else (0, "")
            return Trace("Sub", group, host, time_ms, int(fields[3]), fields[4] == "true")
    except (IndexError, ValueError):
        return None
    return None


def _table(group: str, time: str) -> OutputTable:
    titles = [("#Type", -10), (group, -20), ("#ClientHost", -20), (time, -20)]
    titles += [("#CostTimes", -10), ("#Status", -10)]
    return OutputTable([Column(title, width) for title, width in titles], [" "])


COMMANDS = (
    Command(
        name="queryMsgTraceById",
        aliases=("QueryMsgTraceById",),
        help="show which clients sent and consumed a message, from the trace topic",
        run=query_trace,
        options=(
            option("i", "msgId", "unique id", required=True),
            option("t", "traceTopic", f"default {TRACE_TOPIC}"),
        ),
    ),
)
