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
all       t, c, q, pt  topic, group, queue, and time of the receipt, which belong to the key
========  ===========  =========================================================================

Source: PopReviveService, PopCheckPoint, AckMsg, BatchAckMsg of 5.3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field

from rmqpy.codec.properties import PROPERTY_TAGS
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.fastjson import FastjsonDecodeError, loads
from rmqpy.store.unread.raw_log import RawLog

REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT_TAG: Final = "ck"
ACK_TAGS: Final = ("ack", "bAck")

_Key = tuple[str, str, int, int, int]
"""Topic, group, queue id, first queue offset, time of the receipt."""


@define(slots=True)
class PopRecords:
    """Checkpoints and acknowledgements, matched by :meth:`waiting`."""

    unread: int = 0
    _offsets: dict[_Key, set[int]] = field(factory=dict, init=False)
    _acknowledged: dict[_Key, set[int]] = field(factory=dict, init=False)

    def add(self, message: StoredMessage | None) -> None:
        """Take one record; one that cannot be read counts as a message that waits."""
        try:
            if message is None:
                raise ValueError("no message")
            tag = message.properties.get(PROPERTY_TAGS)
            body: dict[str, Any] = json.loads(message.body)
            key = _key(body)
            if tag == CHECKPOINT_TAG:
                self._offsets.setdefault(key, set()).update(_offsets(body))
            elif tag in ACK_TAGS:
                acknowledged = body.get("aol") or [body.get("ao", body.get("ackOffset"))]
                self._acknowledged.setdefault(key, set()).update(map(int, acknowledged))
        except (ValueError, LookupError, TypeError, AttributeError):
            self.unread += 1

    def waiting(self) -> dict[str, int]:
        """Return the number of messages that were received and not acknowledged, by group."""
        groups: dict[str, int] = {}
        for key, offsets in self._offsets.items():
            rest = len(offsets - self._acknowledged.get(key, set()))
            if rest:
                groups[key[1]] = groups.get(key[1], 0) + rest
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


def _offsets(body: dict[str, Any]) -> list[int]:
    """Return the queue offsets of a checkpoint that were not acknowledged when it was written."""
    start, bits = int(body["so"]), int(body.get("bm", 0))
    distances = body.get("d") or range(int(body["n"]))
    return [start + int(each) for number, each in enumerate(distances) if not bits >> number & 1]


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
