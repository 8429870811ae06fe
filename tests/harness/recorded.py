"""Frames and configuration files recorded from Java."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import define

from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command

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


@define(slots=True, frozen=True)
class RecordedReplication:
    """A recorded frame of classic replication, ``ms`` milliseconds after its connection began."""

    source: str
    to: str
    ms: int
    frame: bytes


def recorded_replication() -> list[RecordedReplication]:
    lines = (GOLDEN / "wire" / "ha.jsonl").read_text().splitlines()
    return [
        RecordedReplication(line["from"], line["to"], line["ms"], bytes.fromhex(line["frame"]))
        for line in map(json.loads, lines)
    ]


@define(slots=True, frozen=True)
class RecordedDLedger:
    """A recorded DLedger frame; ``code`` of a response is that of its request."""

    to: str
    type: str
    code: int
    frame: bytes

    @property
    def command(self) -> RemotingCommand:
        return decode_command(memoryview(self.frame)[4:])


def recorded_dledger() -> list[RecordedDLedger]:
    lines = (GOLDEN / "wire" / "dledger.jsonl").read_text().splitlines()
    return [
        RecordedDLedger(line["to"], line["type"], line["code"], bytes.fromhex(line["frame"]))
        for line in map(json.loads, lines)
    ]
