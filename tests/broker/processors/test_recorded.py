"""Recorded conversations with a Java broker, replayed to compare our responses with Java's.

The comparison covers codes, names of ext fields, the structure of bodies, and all values except
those that depend on the time or on frames that were not recorded (``HISTORY``: the recording has
only the first frames of each kind).
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import HeartbeatData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import ObjectKey, loads
from rmqpy.remoting.frame import decode_command
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel

CONVERSATIONS = Path(__file__).parents[2] / "golden" / "conversations"

NOT_RECORDED = {12, 26, 28, 36, 204, 222, 315, 317, 321, 328}
"""Requests whose responses have texts, or concern messages, groups, or ends of connections, that
are not recorded.
"""

PORTS = {"clients": 32911, "clients-binary": 12911, "tools": 32911}

HISTORY = {
    "brokerOffset",
    "consumerOffset",
    "consumeTps",
    "groupList",
    "lastTimestamp",
    "lastUpdateTimestamp",
    "maxOffset",
    "nextBeginOffset",
    "offset",
    "timestamp",
}
"""Values that depend on what was sent and read before, or on the time of the start."""

UNKNOWN_TOPICS = {"Retry", "Order", "Keyed", "Tx", "Delay"}
"""The topics whose sends were not all recorded, so that reads find another state."""

READING = {11, 14, 29, 30, 31, 32, 202}


@define
class Answered:
    number: int
    request: RemotingCommand
    java: RemotingCommand
    ours: RemotingCommand | None


@define
class Replay:
    """One conversation, replayed to one of our brokers."""

    harness: BrokerHarness
    channels: dict[int, MemoryChannel] = field(factory=dict)
    requests: dict[tuple[int, int], RemotingCommand] = field(factory=dict)
    answers: dict[tuple[int, int], RemotingCommand] = field(factory=dict)
    groups: set[str] = field(factory=set)
    notices: Counter[tuple[int, str]] = field(factory=Counter)
    java_notices: Counter[tuple[int, str]] = field(factory=Counter)
    answered: list[Answered] = field(factory=list)

    def run(self, rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows):
            self.harness.scheduler.advance(max(0, row["t"] - self.harness.scheduler.now_ms()))
            connection = row["conn"]
            channel = self.channels.setdefault(connection, MemoryChannel(("127.0.0.1", 50_000)))
            command = decode_command(memoryview(bytes.fromhex(row["frame"]))[4:])
            if row["dir"] == "c2s" and not command.is_response:
                self.requests[connection, command.opaque] = command
                if command.code == 34:
                    heartbeat = HeartbeatData.decode(command.body)
                    self.groups.update(data.group_name for data in heartbeat.consumer_data_set)
                self.harness.deliver(command, channel=channel)
            self.collect()
            if row["dir"] == "s2c":
                self.compare(number, connection, command)

    def collect(self) -> None:
        for connection, channel in self.channels.items():
            for command in channel.take():
                if command.is_response:
                    self.answers[connection, command.opaque] = command
                else:
                    self.notices[connection, command.ext_fields["consumerGroup"]] += 1

    def compare(self, number: int, connection: int, java: RemotingCommand) -> None:
        if not java.is_response:
            if java.code == 40:
                self.java_notices[connection, java.ext_fields["consumerGroup"]] += 1
            return
        request = self.requests.get((connection, java.opaque))
        if request is not None:
            ours = self.answers.pop((connection, java.opaque), None)
            self.answered.append(Answered(number, request, java, ours))

    def depends_on_history(self, answer: Answered) -> bool:
        """Return whether the response depends on messages or heartbeats that were not recorded."""
        fields, code = answer.request.ext_fields, answer.request.code
        if code in (11, 38) and fields["consumerGroup"] not in self.groups:
            return True
        return code in READING and fields.get("topic") in UNKNOWN_TOPICS


@pytest.fixture(params=["clients", "clients-binary", "tools"])
def replay(request: pytest.FixtureRequest, build: BuildBroker) -> Replay:
    text = lzma.decompress((CONVERSATIONS / f"{request.param}.jsonl.xz").read_bytes())
    rows = [json.loads(line) for line in text.splitlines()]
    harness = build(
        scheduler=ManualScheduler(start_ms=rows[0]["t"]),
        broker_name="golden",
        broker_cluster_name="JavaMQ",
        listen_port=PORTS[request.param],
        default_topic_queue_nums=4,
        host="127.0.0.1",
        namesrv_addr=None,
    )
    replayed = Replay(harness)
    replayed.run(rows)
    return replayed


def test_our_answers_match_javas(replay: Replay) -> None:
    differences = []
    compared: Counter[int] = Counter()
    for answer in replay.answered:
        code = answer.request.code
        if code in NOT_RECORDED or replay.depends_on_history(answer):
            continue
        compared[code] += 1
        differences += [f"{answer.number} ({code}): {text}" for text in difference(answer)]
    assert not differences, "\n".join(differences)
    assert sum(compared.values()) > 20
    assert {14, 17, 29, 30, 31, 34, 35, 310} <= set(compared)


@pytest.mark.slow
def test_members_are_notified_where_java_notified_them(replay: Replay) -> None:
    by_java = {key for key in replay.java_notices if key[1] in replay.groups}
    assert by_java <= set(replay.notices)


def difference(answer: Answered) -> list[str]:
    java, ours = answer.java, answer.ours
    if ours is None:
        return ["no answer"]
    found = []
    java_code = 0 if java.code == 11 else java.code
    if ours.code != java_code:
        found.append(f"code {ours.code} {ours.remark}, Java {java.code} {java.remark}")
        return found
    if ours.serialize_type != java.serialize_type or ours.version != java.version:
        found.append(f"form {ours.serialize_type} {ours.version}")
    if ours.ext_fields.keys() != java.ext_fields.keys():
        found.append(f"ext fields {sorted(ours.ext_fields)}, Java {sorted(java.ext_fields)}")
    for name, text in java.ext_fields.items():
        mine = ours.ext_fields.get(name)
        if name == "msgId" and "," in text:
            if steps(str(mine))[1:] != steps(text)[1:]:
                found.append(f"msgId {mine}, Java {text}")
        elif name not in HISTORY and mine != text:
            found.append(f"{name} {mine}, Java {text}")
    if answer.request.code == 11:
        found += different_messages(ours.body, java.body)
    elif bool(ours.body) != bool(java.body):
        found.append(f"body {ours.body[:80]!r}, Java {java.body[:80]!r}")
    elif java.body:
        found += different_values("body", loads(ours.body), loads(java.body))
    return found


def steps(message_ids: str) -> list[int]:
    """Return the distances between the physical offsets of a batch's messages."""
    offsets = [int(part[16:], 16) for part in message_ids.split(",")]
    return [after - before for before, after in pairwise(offsets)]


def different_messages(ours: bytes, java: bytes) -> list[str]:
    """Compare each of our messages with Java's at the same position."""
    found, position = [], 0
    while position < len(ours):
        mine, theirs = decode_message(ours, position), decode_message(java, position)
        for name in (
            "size",
            "topic",
            "queue_id",
            "queue_offset",
            "flag",
            "sys_flag",
            "body",
            "body_crc",
            "raw_properties",
            "born_timestamp_ms",
            "store_host",
            "reconsume_times",
        ):
            if getattr(mine, name) != getattr(theirs, name):
                found.append(f"{name} {getattr(mine, name)!r}, Java {getattr(theirs, name)!r}")
        position += mine.size
    return found


def different_values(path: str, ours: Any, java: Any) -> list[str]:
    if type(ours) is not type(java) and not isinstance(ours, int | float):
        return [f"{path}: {type(ours).__name__}, Java {type(java).__name__}"]
    if isinstance(java, list):
        if len(ours) != len(java) and path.rpartition(".")[2] not in HISTORY:
            return [f"{path}: {len(ours)} items, Java {len(java)}"]
        return [
            text
            for number, (mine, theirs) in enumerate(zip(ours, java, strict=False))
            for text in different_values(f"{path}[{number}]", mine, theirs)
        ]
    if isinstance(java, dict):
        found = []
        if keys(ours) != keys(java) and not path.endswith(("offsetTable", "data")):
            found.append(f"{path}: members {keys(ours)}, Java {keys(java)}")
        for key in ours.keys() & java.keys():
            found += different_values(f"{path}.{key}", ours[key], java[key])
        return found
    if ours != java and path.rpartition(".")[2].partition("[")[0] not in HISTORY:
        return [f"{path}: {ours!r}, Java {java!r}"]
    return []


def keys(value: dict[Any, Any]) -> list[str]:
    return sorted(str(key.as_dict()) if isinstance(key, ObjectKey) else key for key in value)
