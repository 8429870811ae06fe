"""The status line of a switch or a leave, and the age of the proof in it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rmqpy.admin.command import CommandContext, ParsedArguments, UsageError
from rmqpy.admin.live_progress import ChangeProgress, rehearsed_ms

REPORT = {"brokerName": "broker-a", "ready": True, "verified_ms": 1000}


def call_with(folder: Path | None) -> CommandContext:
    values = {} if folder is None else {"rehearsed": str(folder)}
    admin: Any = None  # nothing is sent
    return CommandContext(admin=admin, args=ParsedArguments(values), show=lambda _line: None)


def written(folder: Path, report: object) -> Path:
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")
    return folder


def test_the_line_has_the_age_of_the_rehearsal(tmp_path: Path) -> None:
    at_ms = round(1000 * (time.time() - 2 * 3600 - 300))
    call = call_with(written(tmp_path, {**REPORT, "verified_ms": at_ms}))
    found = {"unread_bytes": 3 << 20, "throttle_bytes": 1 << 20, "end": 2048}

    async def ask(address: str, _step: str) -> dict[str, Any]:
        return {**found, "end": 1024} if address == "slave" else found

    members = {"n0": "slave", "n1": "master"}
    progress = ChangeProgress(
        *(call, "switch", "master", members, ask), rehearsed_ms(call, "broker-a")
    )
    status = {"phase": "preparing", "waits_for": ["n0"]}
    line = asyncio.run(progress.line(status))
    assert line == (
        "switch: preparing, 3.0 MiB to read, lag 1.0 KiB, rehearsed 2 h 5 min ago, throttled to"
        " 1.0 MiB/s, waits for n0"
    )


def test_without_the_option_nothing_is_known_of_a_rehearsal() -> None:
    assert rehearsed_ms(call_with(None), "broker-a") is None


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (None, "found no report .*, expected the --dir of rmqpy rehearse"),
        ([], "found no report of a rehearsal"),
        ({**REPORT, "verified_ms": "x"}, "found no report of a rehearsal"),
        ({**REPORT, "verified_ms": float("inf")}, "found no report of a rehearsal"),
        ({"brokerName": "broker-a"}, "found no report of a rehearsal"),
        ({**REPORT, "brokerName": "b"}, "found a rehearsal of b, expected one of broker-a"),
        ({**REPORT, "ready": False}, "found a rehearsal that ended in NOT READY"),
    ],
)
def test_another_report_is_refused(tmp_path: Path, report: object, words: str) -> None:
    if report is not None:
        written(tmp_path, report)
    with pytest.raises(UsageError, match=words):
        rehearsed_ms(call_with(tmp_path), "broker-a")
