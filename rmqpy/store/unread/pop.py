"""Which POP messages of a store were received and may not be acknowledged.

The broker writes a checkpoint for each receipt to the topic ``rmq_sys_REVIVE_LOG_<cluster>``, with
the delivery time at which the messages return to their group, and a record for each
acknowledgement. The reviver matches them. It commits the queue offset *of the last checkpoint* that
it has handled, so a store in which POP was ever used has records behind that offset: only matching
them shows what waits.

========  ===========  =========================================================================
tag       body (JSON)  content
========  ===========  =========================================================================
ck        so, n, d     the first queue offset, how many, and their distances from it, if given
ck        bm           bits of those that were acknowledged before it was written
ack       ao           the queue offset that is acknowledged
bAck      aol          a list of them
ck        it           how long the messages are invisible to other clients, in milliseconds
all       t, c, q, pt  topic, group, queue, and time of the receipt, which belong to the key
========  ===========  =========================================================================

With ``popConsumerKVServiceInit`` a RocksDB, ``kvStore``, has a record for each message until it is
acknowledged or has returned.

Source: PopReviveService, PopCheckPoint, AckMsg, BatchAckMsg, PopConsumerRecord of 5.3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from attrs import field

from rmqpy.codec.properties import PROPERTY_TAGS
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.model.values import define
from rmqpy.remoting.fastjson import FastjsonDecodeError, loads
from rmqpy.store.unread.raw_log import RawLog
from rmqpy.store.unread.rocksdb_reader import read_rocksdb

REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT_TAG: Final = "ck"
ACK_TAGS: Final = ("ack", "bAck")

ROCKSDB_FAMILY: Final = "popState"

_Key = tuple[str, str, int, int, int]
"""Topic, group, queue id, first queue offset, time of the receipt."""


@define(slots=True, frozen=True, kw_only=True)
class PopReceipt:
    """Messages of a queue that a client received at once. Those in ``waiting`` are invisible until
    ``returns_ms``, and then return to their group. ``handled``: the reviver has done that.
    """

    topic: str
    group: str
    queue_id: int
    popped_ms: int
    returns_ms: int
    waiting: frozenset[int]
    acknowledged: frozenset[int] = frozenset()
    handled: bool = False

    def has(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether the client received this message."""
        at = queue_offset in self.waiting or queue_offset in self.acknowledged
        return at and (self.topic, self.queue_id) == (topic, queue_id)


@define(slots=True)
class PopRecords:
    """Checkpoints and acknowledgements, matched by :meth:`receipts`."""

    unread: int = 0
    _offsets: dict[_Key, set[int]] = field(factory=dict, init=False)
    _acknowledged: dict[_Key, set[int]] = field(factory=dict, init=False)
    _returns_ms: dict[_Key, int] = field(factory=dict, init=False)
    _handled: set[_Key] = field(factory=set, init=False)

    def add(self, message: StoredMessage | None, *, handled: bool = False) -> None:
        """Take one record; one that cannot be read counts as a message that waits. ``handled``: the
        reviver has passed it.
        """
        try:
            if message is None:
                raise ValueError("no message")
            tag = message.properties.get(PROPERTY_TAGS)
            body: dict[str, Any] = json.loads(message.body)
            key = _key(body)
            if tag == CHECKPOINT_TAG:
                received, acknowledged = _offsets(body)
                self._offsets.setdefault(key, set()).update(received)
                self._acknowledged.setdefault(key, set()).update(acknowledged)
                self._returns_ms[key] = key[-1] + int(body.get("it", 0))
                if handled:
                    self._handled.add(key)
            elif tag in ACK_TAGS:
                offsets = body.get("aol") or [body.get("ao", body.get("ackOffset"))]
                self._acknowledged.setdefault(key, set()).update(map(int, offsets))
        except (ValueError, LookupError, TypeError, AttributeError):
            self.unread += 1

    def receipts(self) -> Iterator[PopReceipt]:
        """Yield what each checkpoint says, with the acknowledgements of its messages."""
        for key, offsets in self._offsets.items():
            topic, group, queue_id, _, popped_ms = key
            acknowledged = offsets & self._acknowledged[key]
            yield PopReceipt(
                topic=topic,
                group=group,
                queue_id=queue_id,
                popped_ms=popped_ms,
                returns_ms=self._returns_ms[key],
                waiting=frozenset(offsets - acknowledged),
                acknowledged=frozenset(acknowledged),
                handled=key in self._handled,
            )

    def waiting(self) -> dict[str, int]:
        """Return the number of messages that were received and not acknowledged, by group."""
        groups: dict[str, int] = {}
        for each in self.receipts():
            if each.waiting:
                groups[each.group] = groups.get(each.group, 0) + len(each.waiting)
        return groups


def read_pop_records(log: RawLog, waiting_in_wheel: Iterable[StoredMessage]) -> PopRecords:
    """Return the records of POP that the reviver has not handled: those in the wheel, and those in
    the queues of the revive topic from the committed checkpoint on.
    """
    records = PopRecords()
    for message in waiting_in_wheel:
        records.add(message)
    table = _committed(log.files, f"{log.paths.config}/consumerOffset.json")
    for topic in log.topics(REVIVE_TOPIC_PREFIX):
        handled = table.get(f"{topic}@{REVIVE_GROUP}", {})
        for name in log.files.list_dir(f"{log.paths.consume_queue}/{topic}"):
            if name.isascii() and name.isdigit():
                first = handled.get(int(name), -1) + 1
                for found in log.messages(topic, int(name), first):
                    records.add(found)
    return records


def _key(body: dict[str, Any]) -> _Key:
    return (
        str(_value(body, "t", "topic")),
        str(_value(body, "c", "consumerGroup")),
        int(_value(body, "q", "queueId")),
        int(_value(body, "so", "startOffset")),
        int(_value(body, "pt", "popTime")),
    )


def _value(body: dict[str, Any], name: str, earlier: str) -> Any:
    return body[name] if name in body else body[earlier]


def _offsets(body: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the queue offsets of a checkpoint, and those that were acknowledged before it."""
    start, bits = int(body["so"]), int(body.get("bm", 0))
    offsets = [start + int(each) for each in body.get("d") or range(int(body["n"]))]
    return offsets, [each for number, each in enumerate(offsets) if bits >> number & 1]


def read_rocks_receipts(folder: str) -> Iterator[PopReceipt]:
    """Yield a receipt for each message in ``kvStore``. Raise StoreError if it cannot be read."""
    for _, value in read_rocksdb(folder, ROCKSDB_FAMILY):
        try:
            record: dict[str, Any] = json.loads(value)
            popped_ms = int(record["popTime"])
            yield PopReceipt(
                topic=str(record["topicId"]),
                group=str(record["groupId"]),
                queue_id=int(record["queueId"]),
                popped_ms=popped_ms,
                returns_ms=popped_ms + int(record["invisibleTime"]),
                waiting=frozenset((int(record["offset"]),)),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(
                folder,
                f"the record {value[:80]!r}",
                "a record of POP as JSON",
                "read it with the version of RocketMQ that wrote it",
            ) from error


def _committed(files: FileSystem, path: str) -> dict[str, dict[int, int]]:
    """Return the offsets in a table of consumer offsets; what cannot be read counts as none."""
    try:
        content: Any = loads(files.read_bytes(path))
        return {
            str(name): {int(queue): int(offset) for queue, offset in queues.items()}
            for name, queues in content["offsetTable"].items()
        }
    except (OSError, FastjsonDecodeError, LookupError, TypeError, ValueError, AttributeError):
        return {}
