"""The status line of a switch or a leave of a running group: one a second, until it has ended or is
ready and postponed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from rmqpy.admin.command import CommandContext, UsageError
from rmqpy.broker.replication.switch_protocol import Phase
from rmqpy.model.errors import RmqError
from rmqpy.model.text import format_bytes, format_duration

POLL_S: Final = 0.05
INTERVAL_S: Final = 1.0
CONTROLS: Final = {
    "status": "status",
    "abort": "cancel",
    "resume": "resume",
    "postpone": "postpone",
}
"""The requests about a change in progress by their options."""

Status = Mapping[str, Any]
Ask = Callable[[str, str], Awaitable[Status]]
"""Asks the broker at an address for its status with a step."""


def control_of(call: CommandContext) -> str | None:
    """Return the step that an option asks for; None to check or to begin a change."""
    given = [name for name in CONTROLS if call.args.has(name)]
    if call.args.has("apply"):
        given = [name for name in given if name != "postpone"]
    if len(given) > 1 or (given and call.args.has("apply")):
        raise UsageError(f"found --{' --'.join(given)}, expected one of them, without --apply")
    return CONTROLS[given[0]] if given else None


def rate_of(call: CommandContext) -> int | None:
    """Return the bytes per second that ``--rate`` gives in MiB, 0 for no limit; None without it."""
    if not call.args.has("rate"):
        return None
    rate = call.args.text("rate")
    if not rate.isdecimal():
        raise UsageError(f"--rate {rate}: expected MiB per second, or 0 for no limit")
    return int(rate) << 20


def rehearsed_ms(call: CommandContext, group: str) -> int | None:
    """Return when the rehearsal in the directory of ``--rehearsed`` ended; None without it. Raises
    UsageError unless it is one of this group that ended in ready.
    """
    folder = call.args.optional("rehearsed")
    if folder is None:
        return None
    path = Path(folder) / "report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        name, ready, at_ms = report["brokerName"], report["ready"], int(report["verified_ms"])
    except OSError as error:
        raise UsageError(
            f"--rehearsed {folder}: found no report ({path.name}: {error.strerror}), expected the"
            " --dir of rmqpy rehearse"
        ) from None
    except (ValueError, KeyError, TypeError, OverflowError):
        raise UsageError(
            f"{path}: found no report of a rehearsal, expected one; repeat rmqpy rehearse"
        ) from None
    if name != group:
        raise UsageError(f"{path}: found a rehearsal of {name}, expected one of {group}")
    if ready is not True:
        raise UsageError(
            f"{path}: found a rehearsal that ended in NOT READY, expected READY; its report has the"
            " reasons"
        )
    return at_ms


@define(slots=True)
class ChangeProgress:
    """The progress of ``change`` ("switch" or "leave"), by the brokers at ``members``, of which
    ``coordinator`` knows the phase.
    """

    call: CommandContext
    change: str
    coordinator: str
    members: Mapping[str, str]
    """The addresses of the brokers by their ids in the plan."""
    ask: Ask
    proof_ms: int | None = None
    """When the group was last rehearsed, if that is known."""
    _unread_bytes: int | None = field(default=None, init=False)

    async def follow(self, number: str) -> Status:
        """Show the line until the change ``number`` has ended, or is postponed; return the last
        status.
        """
        due_s = time.monotonic() + INTERVAL_S
        while True:
            status = await self.ask(self.coordinator, "status")
            if status[self.change] != number or has_ended(status):
                return status
            if time.monotonic() >= due_s:
                due_s += INTERVAL_S
                self.call.show(await self.line(status))
            await asyncio.sleep(POLL_S)

    async def line(self, status: Status) -> str:
        """Return the line: state, what is left to read, rate, time left, lag, age of the proof, and
        throttle.
        """
        parts = [f"{self.change}: {status['phase']}"]
        found = []
        for address in self.members.values():
            with contextlib.suppress(RmqError):  # The coordinator reports what is missing.
                found.append(await self.ask(address, "status"))
        unread = max((each.get("unread_bytes") or 0 for each in found), default=0)
        if unread:
            parts.append(f"{format_bytes(unread)} to read")
            before, self._unread_bytes = self._unread_bytes, unread
            if before is not None and before > unread:
                rate = (before - unread) / INTERVAL_S
                parts.append(f"{format_bytes(int(rate))}/s, {unread / rate:.0f} s left")
        ends = [each["end"] for each in found if "end" in each]
        if ends:
            parts.append(f"lag {format_bytes(max(ends) - min(ends))}")
        if self.proof_ms is not None:
            age_s = max(0.0, time.time() - self.proof_ms / 1000)
            parts.append(f"rehearsed {format_duration(age_s)} ago")
        if throttle := max((each.get("throttle_bytes") or 0 for each in found), default=0):
            parts.append(f"throttled to {format_bytes(throttle)}/s")
        if status.get("postponed"):
            parts.append("postponed")
        if waits_for := status.get("waits_for"):
            parts.append(f"waits for {', '.join(waits_for)}")
        return ", ".join(parts)


def has_ended(status: Status) -> bool:
    """Return whether a change waits for an operator, or for nobody."""
    if status["phase"] == Phase.READY.value:
        return True
    ended = (Phase.COMMITTED.value, Phase.COMPLETE.value, Phase.ABORTED.value)
    return status["phase"] in ended and status["pause_ms"] is not None
