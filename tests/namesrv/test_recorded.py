"""Every recorded request of Java brokers, clients and mqadmin, against the recorded Java answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.namesrv import NameServerHarness

from rmqpy.remoting.bodies import TopicConfig
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
NOT_RECORDED = {
    "plain": [(46_000, ("Normal",)), (174_000, LATER_TOPICS)],
    "admin": [(29_300, ("AdminT",))],
    "binary": [(13_700, ("Normal",)), (54_000, LATER_TOPICS), (56_900, ("AdminT",))],
}
"""Registrations that the recorder left out: at what time the master told of which topics."""

KV_BEFORE = {"binary": b'{"configTable":{"ORDER_TOPIC_CONFIG":{"AdminT":"golden:3"}}}'}
"""What earlier runs had left in kvConfig.json."""


def decoded(frame):
    (command,) = FrameDecoder().receive(frame)
    return command


def comparable(body):
    """Parsed, with the lists that are sets in Java sorted."""
    if not body:
        return None
    value = loads(body)
    if isinstance(value, dict) and "topicList" in value:
        value["topicList"] = sorted(value["topicList"])
    return value


def header_keys(frame):
    """Names in a JSON header; binary headers have all fields always."""
    if frame[4] != 0:
        return None
    length = int.from_bytes(frame[5:8], "big")
    return set(json.loads(frame[8 : 8 + length]))


def check_answer(code, ours, java):
    """``code`` is that of the request."""
    mine, theirs = decoded(ours), decoded(java)
    assert (mine.code, mine.remark) == (theirs.code, theirs.remark), code
    assert mine.ext_fields == theirs.ext_fields, code
    assert (mine.opaque, mine.flag, mine.version) == (theirs.opaque, 1, 407)
    assert (mine.language, mine.serialize_type) == (theirs.language, theirs.serialize_type)
    assert header_keys(ours) == header_keys(java), code
    assert comparable(mine.body) == comparable(theirs.body), code
    if code != 206:  # lists of topics have no order; all else is the same to the byte
        assert mine.body == theirs.body, code


class Replay:
    """Feeds the recorded requests to a name server at their recorded times."""

    def __init__(self, world, missing):
        self.world = world
        self.missing = list(missing)
        self.master = None
        self.channels = {}
        self.answers = {}
        self.ms = 0

    def request(self, row, frame, command):
        if row["ms"] > self.ms:
            self.world.scheduler.advance(row["ms"] - self.ms)
            self.ms = row["ms"]
        channel = self.channels.setdefault(
            row["connection"], MemoryChannel(("127.0.0.1", 40_000 + len(self.channels)))
        )
        if command.code == 103 and command.ext_fields["brokerId"] == "0":
            self.master = (channel, command.ext_fields["brokerAddr"])
        while self.missing and self.missing[0][0] <= self.ms:
            self.tell_missing(self.missing.pop(0)[1])
        before = len(channel.written)
        self.world.server.handle(channel, [command])
        self.world.server.turn_ended()
        self.world.scheduler.run_until_idle()
        written = channel.written[before:]
        assert len(written) == (0 if row["type"] == "oneway" else 1), row
        if written:
            self.answers[row["connection"], command.opaque] = (command.code, written[0])

    def tell_missing(self, topics):
        channel, address = self.master
        channel.take()
        topics = [TopicConfig(each, 4, 4) for each in topics]
        answer = self.world.register(
            address, *topics, channel=channel, counter=self.ms, name="golden", cluster="JavaMQ"
        )
        assert answer.code == 0


@pytest.mark.parametrize(("name", "count"), [("plain", 9), ("admin", 20), ("binary", 21)])
def test_the_answers_are_those_of_java(make_world: type[NameServerHarness], name, count) -> None:
    files = MemoryFiles()
    if name in KV_BEFORE:
        files.replace_bytes("/ns/kvConfig.json", KV_BEFORE[name])
    world = make_world(files=files)
    replay = Replay(world, NOT_RECORDED[name])
    compared = 0
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        frame = bytes.fromhex(row["frame"])
        command = decoded(frame)
        if row["type"] == "response":
            code, ours = replay.answers.pop((row["connection"], command.opaque))
            check_answer(code, ours, frame)
            compared += 1
        else:
            replay.request(row, frame, command)
    assert compared == count
    assert replay.missing == []
    assert world.server.counts.failures == world.server.counts.refused == 0


def test_the_settings_are_printed_under_javas_names(world: NameServerHarness) -> None:
    body = world.ask(319).body.decode()
    lines = dict(line.split("=", 1) for line in body.splitlines())
    assert body.endswith("\n")
    # what mqadmin getNamesrvConfig showed of a Java name server, its paths and port aside
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
    assert lines["kvConfigPath"] == "/ns/kvConfig.json"
