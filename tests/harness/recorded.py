"""Frames and configuration files recorded from Java."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import define

GOLDEN = Path(__file__).parent.parent / "golden"


@define(slots=True, frozen=True)
class Recorded:
    """A recorded frame; ``request_code`` is the code of the request, also for an answer."""

    source: str
    type: str
    request_code: int
    frame: bytes


def recorded_frames() -> list[Recorded]:
    lines = (GOLDEN / "wire" / "frames.jsonl").read_text().splitlines()
    return [
        Recorded(line["from"], line["type"], line["code"], bytes.fromhex(line["frame"]))
        for line in map(json.loads, lines)
    ]
