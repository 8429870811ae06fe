"""startMonitoring: look at every group once a minute, and say what is wrong."""

from __future__ import annotations

import asyncio
from typing import Final

from rmqpy.admin.command import Call, Command, option
from rmqpy.admin.commands.groups import consumer_suspicions
from rmqpy.admin.outcome import Outcome
from rmqpy.model.errors import RmqError
from rmqpy.model.names import group_of_retry_topic, is_retry_topic

ROUND_SECONDS: Final = 60
_NOTIFY: Final = "[MONITOR]  [NOTIFY] "


async def start_monitoring(call: Call) -> Outcome:
    """Until it is interrupted; ``-r`` bounds the rounds."""
    rounds, done = call.given.number("rounds", 0), 0
    while True:
        call.show("[MONITOR] beginRound")
        findings = await _round(call)
        for line in findings:
            call.show(line)
        call.show("[MONITOR] endRound")
        done += 1
        if done == rounds:
            return Outcome(findings, "", says_no=bool(findings))
        await asyncio.sleep(call.given.number("interval", ROUND_SECONDS))


async def _round(call: Call) -> list[str]:
    findings = []
    for topic in await call.admin.topics():
        if is_retry_topic(topic):
            group = group_of_retry_topic(topic)
            try:
                lines = await consumer_suspicions(call, group)
            except RmqError as fault:
                lines = [f"not examined: {fault}"]
            findings += [f"{_NOTIFY}consumerGroup: {group}, {line}" for line in lines]
    return findings


COMMANDS = (
    Command(
        name="startMonitoring",
        help="watch all groups, round after round",
        run=start_monitoring,
        options=(
            option("i", "interval", "seconds between rounds, default 60 (ours)"),
            option("r", "rounds", "so many rounds (ours; mqadmin goes on for ever)"),
        ),
    ),
)
