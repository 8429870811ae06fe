"""The recorded requests of Java brokers, clients and mqadmin, and the recorded answers of Java."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import pytest
from harness.namesrv import KV_PATH, NameServerHarness

from rmqpy.remoting.bodies import TopicConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import loads
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

DATA = Path(__file__).parent / "data"

LATER_TOPICS = (
    "%RETRY%CID_tag",
    "%RETRY%CID_order",
    "%RETRY%CID_lite",
    "%RETRY%CID_bc",
    "%RETRY%CID_push",
    "%DLQ%CID_retry",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
NOT_RECORDED: dict[str, list[tuple[int, tuple[str, ...]]]] = {
    "plain": [(46_000, ("Normal",)), (174_000, LATER_TOPICS)],
    "admin": [(29_300, ("AdminT",))],
    "binary": [(13_700, ("Normal",)), (54_000, LATER_TOPICS), (56_900, ("AdminT",))],
}
"""The registrations that were not recorded: the time in ms, and the topics of the master."""

KV_BEFORE = {"binary": b'{"configTable":{"ORDER_TOPIC_CONFIG":{"AdminT":"golden:3"}}}'}
"""The content of kvConfig.json before a recording."""


class Row(TypedDict):
    """A line of a recording."""

    connection: str
    type: str
    ms: int
    frame: str


def decoded(frame: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().receive(frame)
    return command


def comparable(body: bytes) -> object:
    """Return the parsed body, with the lists that are sets in Java sorted."""
    if not body:
        return None
    value = loads(body)
    if isinstance(value, dict) and "topicList" in value:
        return value | {"topicList": sorted(value["topicList"])}
    return value


def header_keys(frame: bytes) -> set[str] | None:
    """Return the names in a JSON header; None for a binary header, which always has all fields."""
    if frame[4] != 0:
        return None
    length = int.from_bytes(frame[5:8], "big")
    return set(json.loads(frame[8 : 8 + length]))


def check_answer(code: int, ours: bytes, java: bytes) -> None:
    """Check our answer to a request with ``code`` against Java's."""
    answer, expected = decoded(ours), decoded(java)
    assert (answer.code, answer.remark) == (expected.code, expected.remark), code
    assert answer.ext_fields == expected.ext_fields, code
    assert (answer.opaque, answer.flag, answer.version) == (expected.opaque, 1, 407)
    assert (answer.language, answer.serialize_type) == (expected.language, expected.serialize_type)
    assert header_keys(ours) == header_keys(java), code
    assert comparable(answer.body) == comparable(expected.body), code
    if code != 206:  # Lists of topics have no order; all other bodies are equal to the byte.
        assert answer.body == expected.body, code


class Replay:
    """Recorded requests, sent to a name server at their recorded times."""

    def __init__(
        self, world: NameServerHarness, missing: Sequence[tuple[int, tuple[str, ...]]]
    ) -> None:
        self.world = world
        self.missing = list(missing)
        self.master: tuple[MemoryChannel, str] | None = None
        self.channels: dict[str, MemoryChannel] = {}
        self.answers: dict[tuple[str, int], tuple[int, bytes]] = {}
        """The code of the request and our answer, by connection and opaque."""
        self.ms = 0

    def request(self, row: Row, command: RemotingCommand) -> None:
        if row["ms"] > self.ms:
            self.world.scheduler.advance(row["ms"] - self.ms)
            self.ms = row["ms"]
        channel = self.channels.setdefault(
            row["connection"], MemoryChannel(("127.0.0.1", 40_000 + len(self.channels)))
        )
        if command.code == 103 and command.ext_fields["brokerId"] == "0":
            self.master = (channel, command.ext_fields["brokerAddr"])
        while self.missing and self.missing[0][0] <= self.ms:
            self.register_missing(self.missing.pop(0)[1])
        before = len(channel.written)
        self.world.server.handle(channel, [command])
        self.world.server.turn_ended()
        self.world.scheduler.run_until_idle()
        written = channel.written[before:]
        assert len(written) == (0 if row["type"] == "oneway" else 1), row
        if written:
            self.answers[row["connection"], command.opaque] = (command.code, written[0])

    def register_missing(self, names: tuple[str, ...]) -> None:
        assert self.master is not None
        channel, address = self.master
        channel.take()
        topics = [TopicConfig(name, 4, 4) for name in names]
        answer = self.world.register(
            address, *topics, channel=channel, counter=self.ms, name="golden", cluster="JavaMQ"
        )
        assert answer.code == 0


@pytest.mark.parametrize(("name", "count"), [("plain", 9), ("admin", 20), ("binary", 21)])
def test_the_answers_are_those_of_java(name: str, count: int) -> None:
    files = MemoryFiles()
    if name in KV_BEFORE:
        files.replace_bytes(KV_PATH, KV_BEFORE[name])
    world = NameServerHarness(files=files)
    replay = Replay(world, NOT_RECORDED[name])
    compared = 0
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        row: Row = json.loads(line)
        frame = bytes.fromhex(row["frame"])
        command = decoded(frame)
        if row["type"] == "response":
            code, ours = replay.answers.pop((row["connection"], command.opaque))
            check_answer(code, ours, frame)
            compared += 1
        else:
            replay.request(row, command)
    assert compared == count
    assert replay.missing == []
    assert world.server.counts.failures == world.server.counts.refused == 0


def test_the_settings_are_printed_under_javas_names(world: NameServerHarness) -> None:
    body = world.request(319).body.decode()
    lines = dict(line.split("=", 1) for line in body.splitlines())
    assert body.endswith("\n")
    # The output of mqadmin getNamesrvConfig for a Java name server, without its paths and port.
    recorded = {
        "serverSocketBacklog": "1024",
        "writeBufferHighWaterMark": "0",
        "serverWorkerThreads": "8",
        "serverSelectorThreads": "3",
        "serverChannelMaxIdleTimeSeconds": "120",
        "serverSocketRcvBufSize": "0",
        "serverAsyncSemaphoreValue": "64",
        "clusterTest": "false",
        "orderMessageEnable": "false",
        "productEnvName": "center",
    }
    assert recorded.items() <= lines.items()
    assert lines["kvConfigPath"] == KV_PATH
