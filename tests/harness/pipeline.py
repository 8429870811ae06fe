"""Shared parts of the pipeline's tests.

These are the comparison of rows with what a Java consumer received, live clusters, forged records,
and a progress sink that records its reports.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from rmqpy.model.flags import COMPRESSED

SAME_NAME = (
    *("topic", "queueId", "queueOffset", "flag", "reconsumeTimes"),
    "preparedTransactionOffset",
)

Row = dict[str, Any]
"""A row of Spark by column, or a message in a golden manifest by its JSON keys."""

QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Options of short-lived JVMs, for which optimized code does not pay off."""

FORGED_SIZE = 100


def bodies(first: int, count: int) -> list[bytes]:
    """Return ``count`` numbered bodies from number ``first`` on."""
    return [b"%06d" % number for number in range(first, first + count)]


def forged_record(offset: int) -> bytes:
    """Return a complete record of ``FORGED_SIZE`` bytes that states the physical ``offset``."""
    body = bytes(8)
    head = struct.pack(
        ">iIiiiqqiq4siq4siiqi",
        *(FORGED_SIZE, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, offset, 0, 1),
        *(b"\x7f\0\0\1", 1, 1, b"\x7f\0\0\1", 1, 0, 0, len(body)),
    )
    return head + body + b"\x01F\0\0"


def flip_bit(file: Path, position: int) -> None:
    """Flip one bit of the byte at ``position`` of a file."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@define
class RecordedProgress:
    """A progress sink that records the expected total and every report."""

    total: int = 0
    reports: list[int] = field(factory=list)

    @property
    def sum(self) -> int:
        return sum(self.reports)

    def expect(self, total: int) -> None:
        self.total += total

    def advance(self, done: int) -> None:
        self.reports.append(done)


def check_row(row: Row, found: Row) -> None:
    """Check a row of Spark against the same message as a Java consumer received it."""
    for column in SAME_NAME:
        assert row[column] == found[column], column
    assert row["sysFlag"] | COMPRESSED == found["sysFlag"] | COMPRESSED  # 5.3 clears it
    assert row["size"] == found["storeSize"]
    assert row["bornTimestamp"].timestamp() * 1000 == pytest.approx(found["bornTimestamp"])
    assert row["storeTimestamp"].timestamp() * 1000 == pytest.approx(found["storeTimestamp"])
    assert f"/{row['bornHost']}" == found["bornHost"]
    assert f"/{row['storeHost']}" == found["storeHost"]
    assert dict(row["properties"]) == found["props"]
    assert row["tags"] == found["props"].get("TAGS")
    assert row["keys"] == found["props"].get("KEYS")
    assert row["bodyCrc"] == found["bodyCRC"] and row["crcOk"] is True
    assert len(row["body"]) == found["bodyLen"]
    assert zlib.crc32(row["body"]) & 0x7FFFFFFF == found["crc"]


class LiveCluster:
    """A name server and a broker of rmqpy or Java, on which a test creates topics and sends."""

    def __init__(
        self, kind: str, root: Path, settings: dict[str, str] | None = None, wait: bool = True
    ) -> None:
        from rmqpy.testing.java import JavaHome, JavaSite
        from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
        from rmqpy.testing.processes import BrokerSpec, RmqpySite

        reason = JavaHome().missing() if kind == "java" else None
        if reason is not None:
            pytest.skip(reason)
        self._blocks = [free_port_block(1), free_port_block(BROKER_PORT_COUNT)]
        self.site = JavaSite(root / "java", JavaHome()) if kind == "java" else RmqpySite(root)
        self.namesrv = RmqpySite(root).namesrv("namesrv", self._blocks[0].first).start()
        self.spec = BrokerSpec(
            port=self._blocks[1].broker_port,
            namesrv=self.namesrv.address,
            settings=settings or {},
        )
        broker = self.site.broker("broker", self.spec)
        self.broker = broker.start() if wait else broker.launch()
        self._topics = 0

    @property
    def store(self) -> Path:
        """The storePathRootDir of the broker."""
        assert self.broker.store is not None
        return self.broker.store

    def close(self) -> None:
        self.broker.kill()
        self.namesrv.kill()

    def topic(self, queues: int = 4, name: str | None = None) -> str:
        from rmqpy.testing.blocking_connection import connect_when_ready, create_topic

        self._topics += 1
        topic = name or f"stream-{self._topics}"
        with connect_when_ready(self.broker.address) as connection:
            create_topic(connection, topic, queues)
        return topic

    def send(self, topic: str, bodies: list[bytes], tags: str | None = None) -> None:
        """Send until all messages are acknowledged.

        A message is stored twice only if an answer was lost.
        """
        import time

        from rmqpy.client import Message, SendStatus
        from rmqpy.client.blocking import BlockingProducer
        from rmqpy.model.errors import RmqError

        deadline = time.monotonic() + 60
        with BlockingProducer("sender", self.namesrv.address) as producer:
            for body in bodies:
                while True:
                    try:
                        message = Message(topic=topic, body=body, keys=body.decode(), tags=tags)
                        assert producer.send(message).status in SendStatus
                        break
                    except RmqError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.1)
