"""The command startMonitoring: check every group once a minute, and report suspicions."""

from __future__ import annotations

import asyncio
from typing import Final

from rmqpy.admin.command import Command, CommandContext, option
from rmqpy.admin.commands.clients import any_broker, connections, differ, suspicions
from rmqpy.admin.commands.groups import behind_of
from rmqpy.admin.group_offsets import consume_stats
from rmqpy.admin.output import CommandResult
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.model.names import group_of_retry_topic, is_retry_topic

ROUND_SECONDS: Final = 60
_NOTIFY: Final = "[MONITOR]  [NOTIFY] "


async def start_monitoring(call: CommandContext) -> CommandResult:
    """Monitor until interrupted; ``-r`` limits the rounds."""
    rounds, done = call.args.number("rounds", 0), 0
    while True:
        call.show("[MONITOR] beginRound")
        findings = await _round(call)
        for line in findings:
            call.show(line)
        call.show("[MONITOR] endRound")
        done += 1
        if done == rounds:
            return CommandResult(findings, "", says_no=bool(findings))
        await asyncio.sleep(call.args.number("interval", ROUND_SECONDS))


async def _round(call: CommandContext) -> list[str]:
    findings = []
    for topic in await call.admin.topics():
        if is_retry_topic(topic):
            group = group_of_retry_topic(topic)
            try:
                lines = await _suspicions_of(call, group)
            except RmqError as fault:
                lines = [f"not examined: {fault}"]
            findings += [f"{_NOTIFY}consumerGroup: {group}, {line}" for line in lines]
    return findings


async def _suspicions_of(call: CommandContext, group: str) -> list[str]:
    """Return the suspicions about a group, one line each.

    They are waiting messages, different subscriptions, and queues that are not consumed. The result
    is empty for an offline group without waiting messages.
    """
    lines = []
    try:
        lag = behind_of(await consume_stats(call.admin, group))
    except RequestRejectedError:
        lag = 0  # The group has never consumed.
    if lag > 0:
        lines.append(f"undone messages: {lag}")
    try:
        connection = await connections(call, group, None)
    except RequestRejectedError as refusal:
        if refusal.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return [*lines, "no consumer is online"] if lines else []
    address = await any_broker(call, group)
    infos = {
        client.client_id: await call.admin.running_info(address, group, client.client_id)
        for client in connection.connection_set
    }
    if differ(infos.values()):
        lines.append("different subscriptions in the same group")
    now_ms = call.admin.instance.clock.now_ms()
    for client_id, info in infos.items():
        lines += suspicions(client_id, info, now_ms)
    return lines


COMMANDS = (
    Command(
        name="startMonitoring",
        help="monitor all groups in repeated rounds",
        run=start_monitoring,
        options=(
            option("i", "interval", "seconds between rounds, default 60 (ours)"),
            option("r", "rounds", "number of rounds (ours; mqadmin never ends)"),
        ),
    ),
)
