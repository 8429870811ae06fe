"""The options of a stream, with a reader that is called as Spark calls it.

The brokers are real; no JVM is needed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import LiveCluster, bodies

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import connect_when_ready

pytest.importorskip("pyspark", reason="pyspark is not installed; pip install 'rmqpy[spark]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'rmqpy[spark]'")

pytestmark = pytest.mark.spark

BROKER = "broker-a"
PATIENCE_MS = 400

Offsets = dict[str, dict[str, dict[str, int]]]
"""Offsets by topic, broker, and queue, as in a checkpoint."""


class Stream:
    """A stream reader, with the steps of Spark's engine."""

    def __init__(
        self, live: LiveCluster, columns: tuple[str, ...] = ("body",), **options: object
    ) -> None:
        from rmqpy.pipeline.datasource.source import RocketMqSource

        given = {"nameServer": live.namesrv.address, "brokerTimeoutMs": str(PATIENCE_MS)}
        given |= {name: str(value) for name, value in options.items()}
        source = RocketMqSource(given)
        schema = source.schema()
        schema.fields = [field for field in schema.fields if field.name in columns]
        schema.names = [field.name for field in schema.fields]
        self.reader: Any = source.streamReader(schema)
        self.at: Offsets | None = None

    def start(self) -> Offsets:
        """Return the offsets of the start, through JSON as in a checkpoint."""
        self.at = through_json(self.reader.initialOffset())
        return self.at

    def latest(self) -> Offsets:
        return through_json(self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit()))

    def batch(self) -> list[bytes]:
        """Return the bodies of the next batch."""
        values = self.values()
        assert all(isinstance(value, bytes) for value in values)
        return values

    def values(self) -> list[Any]:
        """Return the next batch, read twice as after the death of a driver that planned it."""
        if self.at is None:
            self.start()
        end = self.latest()
        found, again = self._read(end), self._read(end)
        assert found == again
        self.at = end
        return found

    def _read(self, end: Offsets) -> list[Any]:
        parts = self.reader.partitions(self.at, end)
        batches = [batch for part in parts for batch in self.reader.read(part)]
        return sorted(value for batch in batches for value in batch.column(0).to_pylist())


def through_json(offsets: Offsets) -> Offsets:
    copy: Offsets = json.loads(json.dumps(offsets))
    return copy


@pytest.fixture
def stream(live: LiveCluster) -> Callable[..., Stream]:
    """Return a function that creates a stream with the given options."""
    return partial(Stream, live)


@pytest.fixture
def own_live(live_form: type[LiveCluster], tmp_path: Path) -> Iterator[LiveCluster]:
    """Return a cluster whose files a test may delete."""
    cluster = live_form("rmqpy", tmp_path / "live")
    yield cluster
    cluster.close()


def delete(live: LiveCluster, topic: str) -> None:
    """Delete a topic on the broker and the name server."""
    for server, code in (
        (live.broker, RequestCode.DELETE_TOPIC_IN_BROKER),
        (live.namesrv, RequestCode.DELETE_TOPIC_IN_NAMESRV),
    ):
        with connect_when_ready(server.address) as connection:
            request = RemotingCommand(code=code, ext_fields={"topic": topic})
            assert connection.call(request).code == ResponseCode.SUCCESS


# ------------------------------------------------------------------------------ the start


def test_a_stream_starts_at_the_given_offset_or_time(
    live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 5))
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    time.sleep(0.01)
    live.send(topic, bodies(5, 5))
    three = json.dumps({topic: {BROKER: {"0": 3}}})
    starts: list[tuple[dict[str, object], int]] = [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "latest"}, 10),
        ({}, 10),
        ({"startingOffsets": three}, 3),
        ({"startingOffsets": json.dumps({topic: {BROKER: {"0": -1}}})}, 10),
        ({"startingOffsets": json.dumps({topic: {BROKER: {"0": -2}}})}, 0),
        ({"startingTimestamp": between_ms}, 5),
        ({"startingTimestamp": 0}, 0),
        ({"startingTimestamp": int(time.time() * 1000) + 60_000}, 10),
    ]
    for options, at in starts:
        made = stream(topic=topic, **options)
        assert made.start() == {topic: {BROKER: {"0": at}}}, options
        assert made.batch() == bodies(at, 10 - at), options


def test_a_batch_has_at_most_maxOffsetsPerTrigger_messages(
    live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    topic = live.topic(queues=3)
    live.send(topic, bodies(0, 31))
    made = stream(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    batches = [made.batch() for _ in range(6)]
    assert [len(batch) for batch in batches] == [7, 7, 7, 7, 3, 0]
    assert sorted(body for batch in batches for body in batch) == bodies(0, 31)


def test_an_idle_reader_waits_before_the_next_request(
    live: LiveCluster, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.pipeline.datasource.stream import IDLE_SECONDS

    topic = live.topic()
    live.send(topic, bodies(0, 3))
    made = stream(topic=topic, startingOffsets="earliest")
    assert len(made.batch()) == 3
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    made.latest()
    made.latest()
    assert slept[0] == 0.0 and 0.0 < slept[-1] <= IDLE_SECONDS


def test_available_now_stops_at_the_end_of_its_start(
    live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    topic = live.topic()
    live.send(topic, bodies(0, 20))
    made = stream(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    made.start()
    made.reader.prepareForTriggerAvailableNow()
    live.send(topic, bodies(20, 20))
    batches = [made.batch() for _ in range(4)]
    assert sorted(body for batch in batches for body in batch) == bodies(0, 20)
    assert made.latest() == made.at


# ------------------------------------------------------------------------------ topics


def test_a_pattern_reads_new_topics(live: LiveCluster, stream: Callable[..., Stream]) -> None:
    stem = live.topic(queues=1)
    first, second, other = (f"{stem}-{name}" for name in ("orders", "refunds", "log"))
    live.topic(queues=1, name=first)
    live.topic(queues=1, name=other)
    live.send(first, bodies(0, 3))
    live.send(other, bodies(900, 3))
    made = stream(topicPattern=f"{stem}-(orders|refunds)", startingOffsets="earliest")
    assert made.batch() == bodies(0, 3)
    live.topic(queues=2, name=second)
    live.send(second, bodies(3, 4))
    live.send(first, bodies(7, 1))
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < 5 and time.monotonic() < deadline:
        found += made.batch()
    assert sorted(found) == bodies(3, 5)
    assert set(made.at or {}) == {first, second}
    everything = stream(topicPattern=".*").start()
    assert {stem, first, second, other} <= everything.keys()
    assert not any(name.startswith(("%", "RMQ_SYS", "TBW", "SCHEDULE")) for name in everything)


def test_a_deleted_topic_of_a_pattern_keeps_its_offsets(
    live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    stem = live.topic(queues=1)
    for name in ("one", "two"):
        live.topic(queues=1, name=f"{stem}-{name}")
        live.send(f"{stem}-{name}", bodies(0, 2))
    made = stream(topicPattern=f"{stem}-.*", startingOffsets="earliest")
    assert len(made.batch()) == 4
    delete(live, f"{stem}-one")
    live.send(f"{stem}-two", bodies(2, 2))
    time.sleep(1.1)  # until the list of topics expires
    assert made.batch() == bodies(2, 2)
    assert made.at == {f"{stem}-one": {BROKER: {"0": 2}}, f"{stem}-two": {BROKER: {"0": 4}}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option topic"),
        ({"topic": "a", "topicPattern": "b"}, "either topic or topicPattern"),
        ({"topicPattern": "("}, "topicPattern is '\\('"),
        ({"topic": "a", "propertiesFormat": "xml"}, "expected map or string"),
        ({"topic": "a", "maxOffsetsPerTrigger": "-1"}, "expected a whole number of at least 0"),
        ({"topic": "a", "failOnDataLoss": "perhaps"}, "expected true or false"),
    ],
)
def test_invalid_options_are_refused(
    options: dict[str, str], message: str, live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    with pytest.raises(ConfigError, match=message):
        stream(**options)


# ------------------------------------------------------------------------------ lost messages


def test_deleted_messages_fail_or_are_skipped(
    own_live: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = own_live.topic(queues=1)
    own_live.send(topic, [b"%06d" % number + b"x" * 2000 for number in range(100)])
    fails = Stream(own_live, topic=topic, startingOffsets="earliest")
    continues = Stream(own_live, topic=topic, startingOffsets="earliest", failOnDataLoss="false")
    fails.start()
    continues.start()
    own_live.broker.stop()
    logs = sorted((own_live.store / "commitlog").iterdir())
    assert len(logs) >= 3
    logs[0].unlink()
    own_live.broker.start()
    # The same client connects to the broker again.
    with pytest.raises(
        RmqError, match=rf"{topic}, {BROKER}, queue 0: some of the messages 0 to \d+ are missing"
    ):
        fails.batch()
    with caplog.at_level(logging.WARNING):
        found = continues.batch()
    first = int(found[0][:6])
    assert 0 < first < 100 and [int(body[:6]) for body in found] == list(range(first, 100))
    assert (
        f"{topic}, {BROKER}, queue 0: some of the messages 0 to {first - 1} are missing"
        in caplog.text
    )


def test_a_recreated_topic_fails_or_is_read_from_its_start(
    live: LiveCluster, stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    topic = live.topic(queues=1)
    live.send(topic, bodies(0, 9))
    fails = stream(topic=topic, startingOffsets="earliest")
    now = stream(topic=topic, startingOffsets="earliest", failOnDataLoss="false", group="now")
    continues = stream(topic=topic, startingOffsets="earliest", failOnDataLoss="false")
    for made in (fails, now, continues):
        assert made.batch() == bodies(0, 9)
    delete(live, topic)
    live.topic(queues=1, name=topic)
    live.send(topic, bodies(100, 4))
    deadline = time.monotonic() + 20
    with pytest.raises(
        RmqError, match=f"{topic}, {BROKER}, queue 0: the queue ends at 4, before 9"
    ):
        while time.monotonic() < deadline:
            assert fails.batch() == []
    with caplog.at_level(logging.WARNING):
        found: list[bytes] = []
        while not found and time.monotonic() < deadline:
            found = continues.batch()
        assert found == bodies(100, 4) and "read again from its first message" in caplog.text
        live.send(topic, bodies(104, 2))
        assert continues.batch() == bodies(104, 2)
        now.reader.prepareForTriggerAvailableNow()
        assert now.batch() == bodies(100, 6)


def test_properties_are_a_map_or_a_json_string(
    live: LiveCluster, stream: Callable[..., Stream]
) -> None:
    topic = live.topic(queues=1)
    live.send(topic, [b"1"], tags="grün")
    options = {"topic": topic, "startingOffsets": "earliest", "columns": ("properties",)}
    (text,) = stream(propertiesFormat="string", **options).values()
    assert (json.loads(text)["TAGS"], json.loads(text)["KEYS"]) == ("grün", "1")
    (pairs,) = stream(**options).values()
    assert dict(pairs) == json.loads(text)
