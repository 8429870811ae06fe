"""Collect what the clients of a group have received by POP (:mod:`rmqpy.store.unread.pop`).

The records are read through the consume queues, so a directory and a running broker of 5.x are
examined in the same way. A record waits in the timer topic before it is in a revive topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.codec.properties import PROPERTY_REAL_TOPIC
from rmqpy.model.errors import StoreError
from rmqpy.model.message import StoredMessage
from rmqpy.store.unread.pop import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, PopReceipt, PopRecords
from rmqpy.store.unread.timers import TIMER_TOPIC
from rmqpy.why.questions.message_facts import PopFacts
from rmqpy.why.sources.interface import MessageSource

__all__ = ["pop_facts"]

RECORDS_MAX = 20_000
LIVE_RECORDS_MAX = 500
"""The largest number of records that are read of a queue, the newest ones; a running broker is sent
two requests for each.
"""
KV_SETTING = "popConsumerKVServiceInit"


def pop_facts(source: MessageSource, group: str) -> PopFacts:
    """Return what the clients of ``group`` have received by POP."""
    reading = _Reading(source)
    revive = [topic for topic in sorted(source.topics() or {}) if _is_revive(topic)]
    for topic in revive:
        reading.revive(topic)
    if revive:
        reading.timers()
    receipts = [*reading.records.receipts(), *reading.in_rocksdb()]
    mine = sorted(
        (each for each in receipts if each.group == group), key=lambda each: each.popped_ms
    )
    return PopFacts(receipts=tuple(mine), not_examined=tuple(reading.not_examined))


def _is_revive(topic: str) -> bool:
    return topic.startswith(REVIVE_TOPIC_PREFIX)


class _Reading:
    """The records of one source."""

    def __init__(self, source: MessageSource) -> None:
        self.source = source
        self.records = PopRecords()
        self.not_examined: list[str] = []
        self._max = LIVE_RECORDS_MAX if source.is_live else RECORDS_MAX

    def revive(self, topic: str) -> None:
        """Read the queues of a revive topic. The reviver has handled those up to its offset."""
        config = (self.source.topics() or {}).get(topic, {})
        offsets = (self.source.consumer_offsets() or {}).get((topic, REVIVE_GROUP), {})
        for queue_id in range(int(config.get("readQueueNums", 0))):
            handled = offsets.get(queue_id, -1)
            for offset, message in self._messages(topic, queue_id):
                self.records.add(message, handled=offset <= handled)

    def timers(self) -> None:
        """Read the records in the timer topic."""
        for _, message in self._messages(TIMER_TOPIC, 0):
            topic = message.properties.get(PROPERTY_REAL_TOPIC, "") if message is not None else ""
            if _is_revive(topic):
                self.records.add(message)

    def in_rocksdb(self) -> Iterator[PopReceipt]:
        try:
            found = self.source.pop_records_in_rocksdb()
        except StoreError as error:
            self.not_examined.append(f"records of POP in RocksDB: {error}")
            return
        if found is not None:
            yield from found
        elif self.source.settings()[0].get(KV_SETTING) == "true":
            self.not_examined.append(
                f"records of POP in RocksDB ({KV_SETTING}=true): only the directory of a stopped"
                " broker shows them, with rmqpy[rocksdb]"
            )

    def _messages(self, topic: str, queue_id: int) -> Iterator[tuple[int, StoredMessage | None]]:
        first, end = self.source.bounds(topic, queue_id) or (0, 0)
        if end - first > self._max:
            self.not_examined.append(
                f"records of POP in {topic} queue {queue_id} before offset {end - self._max}"
            )
            first = end - self._max
        for offset in range(first, end):
            unit = self.source.unit(topic, queue_id, offset)
            if unit is not None:
                yield offset, self.source.message(unit.physical_offset)
