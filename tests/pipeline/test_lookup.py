"""Point lookups of ``format("rocketmq")``: what they find is what a complete read has.

Readers are called as Spark calls them; no JVM is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.audit.checks.messages import MessageWalk
from rmqpy.codec.message import offset_msg_id
from rmqpy.model.errors import ConfigError, StoreError

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
