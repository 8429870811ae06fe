"""Point lookups of ``format("rocketmq")``: what they find is what a complete read has.

Readers are called as Spark calls them; no JVM is needed.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.store import StoreRig

from rmqpy.audit.checks.messages import MessageWalk
from rmqpy.codec import layout
from rmqpy.codec.message import offset_msg_id
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.store.files.disk import OsFileSystem

pytest.importorskip("pyspark", reason="pyspark is not installed; pip install 'rmqpy[spark]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'rmqpy[spark]'")

pytestmark = pytest.mark.spark

StoreOf = Callable[[str], Path]
NODES = ("A-classic-clean-v497", "A-classic-clean-v533", "C-upgraded-v497/n0", "D-dledger-v497/n0")


def rows(store: Path, **options: object) -> list[dict[str, Any]]:
    from rmqpy.pipeline.datasource.source import RocketMqSource

    source = RocketMqSource({"path": str(store)} | {k: str(v) for k, v in options.items()})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("node", NODES)
def test_s11_a_queue_offset_leads_to_its_message(
    node: str, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(node)
    every = rows(store)
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in every:
        queues.setdefault((row["topic"], row["queueId"]), []).append(row)

    def walked(*_given: object) -> None:
        raise AssertionError("the log was walked")

    monkeypatch.setattr(MessageWalk, "scans", walked)
    monkeypatch.setattr(MessageWalk, "skip", walked)
    for (topic, queue_id), found in list(queues.items())[:12]:
        where = {"topic": topic, "queueId": queue_id}
        assert rows(store, **where, startingOffset=0) == found
        middle = found[len(found) // 2]["queueOffset"]
        one = rows(store, **where, startingOffset=middle, endingOffset=middle + 1)
        assert one == [row for row in found if row["queueOffset"] == middle]
        assert not rows(store, **where, startingOffset=1 << 40)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("index", ["whole", "lost"])
def test_s11_a_key_and_an_id_lead_to_their_messages(
    node: str, index: str, store_of: StoreOf, tmp_path: Path
) -> None:
    store = store_of(node)
    if index == "lost":
        store = tmp_path / "store"
        shutil.copytree(store_of(node), store)
        shutil.rmtree(store / "index")
    every = [row for row in rows(store) if row["keys"]]
    assert every
    for row in every[:: max(len(every) // 10, 1)]:
        topic, key = row["topic"], row["keys"].split(" ")[0]
        found = rows(store, topic=topic, key=key)
        assert found == [
            each for each in every if each["topic"] == topic and key in each["keys"].split(" ")
        ]
        unique = dict(row["properties"])["UNIQ_KEY"]
        assert row in rows(store, topic=topic, messageId=unique)
        host, _, port = row["storeHost"].rpartition(":")
        packed = bytes(map(int, host.split(".")))
        offset_id = offset_msg_id((packed, int(port)), row["physicalOffset"])
        assert rows(store, messageId=offset_id) == [row]
        assert not rows(store, topic=topic, key="no such key")


def test_s11_a_queue_that_does_not_lead_to_its_messages_is_an_error(
    copy_of: StoreOf,
) -> None:
    store = copy_of(NODES[0])
    row = rows(store)[0]
    where = {"topic": row["topic"], "queueId": row["queueId"], "startingOffset": 0}
    folder = store / "consumequeue" / row["topic"] / str(row["queueId"])
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match="does not lead to its message"):
        rows(store, **where)
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="no consume queue"):
        rows(store, **where)


@pytest.mark.parametrize("node", NODES)
def test_s11_a_time_leads_to_the_messages_of_a_queue(
    node: str, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(node)
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows(store):
        queues.setdefault((row["topic"], row["queueId"]), []).append(row)

    def walked(*_given: object) -> None:
        raise AssertionError("the log was walked")

    monkeypatch.setattr(MessageWalk, "scans", walked)
    monkeypatch.setattr(MessageWalk, "skip", walked)
    tried = 0
    for (topic, queue_id), found in sorted(queues.items())[:12]:
        where = {"topic": topic, "queueId": queue_id, "timestampLookup": "true"}
        times = [round(row["storeTimestamp"].timestamp() * 1000) for row in found]
        assert times == sorted(times)
        edges = sorted({times[0] - 1, times[0], times[len(times) // 2], times[-1], times[-1] + 1})
        for first in edges:
            for end in edges:
                expected = [
                    row for row, time in zip(found, times, strict=True) if first <= time < end
                ]
                span = {"startingTimestamp": first, "endingTimestamp": end}
                assert rows(store, **where, **span) == expected
                tried += bool(expected)
        assert rows(store, **where, startingTimestamp=times[0]) == found
        assert rows(store, **where, endingTimestamp=times[-1] + 1) == found
    assert tried > 20


def test_s11_a_clock_that_was_set_back_is_noticed(tmp_path: Path) -> None:
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    opened = rig.open()
    for number in range(64):
        rig.put(opened, number)
    opened.shutdown()
    row = rows(tmp_path / "store")[-1]
    where = {"topic": row["topic"], "queueId": row["queueId"], "timestampLookup": "true"}
    last = round(row["storeTimestamp"].timestamp() * 1000)
    assert rows(tmp_path / "store", **where, startingTimestamp=last)
    logs = sorted((tmp_path / "store" / "commitlog").iterdir())
    log = max(each for each in logs if int(each.name) <= row["physicalOffset"])
    at = row["physicalOffset"] - int(log.name) + layout.STORE_TIMESTAMP_POSITION
    data = bytearray(log.read_bytes())
    data[at : at + 8] = struct.pack(">q", last - 86_400_000)
    log.write_bytes(data)
    with pytest.raises(StoreError, match="the clock of a broker was set back"):
        rows(tmp_path / "store", **where, startingTimestamp=last - 1, endingTimestamp=last + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestampLookup": "true", "topic": "a", "startingTimestamp": 1}, "needs the option q"),
        ({"timestampLookup": "true", "queueId": 0, "startingTimestamp": 1}, "needs the option top"),
        ({"timestampLookup": "true", "queueId": 0, "topic": "a"}, "needs startingTimestamp or"),
        ({"timestampLookup": "true", "key": "k", "topic": "a"}, "expected one kind"),
        ({"timestampLookup": "yes"}, "expected true or false"),
        ({"key": "k"}, "key needs the option topic"),
        ({"key": "k", "topic": "a,b"}, "one topic"),
        ({"startingOffset": 1, "topic": "a"}, "needs the option queueId"),
        ({"key": "k", "messageId": "m", "topic": "a"}, "expected one kind"),
        ({"messageId": "m"}, "needs the option topic"),
        ({"startingOffset": -1, "topic": "a", "queueId": 0}, "whole number"),
    ],
)
def test_wrong_lookups_are_refused(
    options: dict[str, object], message: str, store_of: StoreOf
) -> None:
    with pytest.raises(ConfigError, match=message):
        rows(store_of(NODES[0]), **options)
