"""Dispatch of what the hot path in Python has appended: a step of ``store.dispatch``.

For each message that it appends the feed leaves a row here, with the unit of its consume queue
ready. A step takes rows as long as they follow the cursor without a gap; records of others in
between are scanned and dispatched by the store. Rows are a short cut and nothing more: whatever is
lost here is found in the log.
"""

from __future__ import annotations

from typing import Final

from rmqpy.broker.fastpath.hot_shapes import SendLine
from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import Scan
from rmqpy.codec.units import QUEUE_UNIT, IndexEntry, index_key_hash
from rmqpy.store.commitlog.interface import ScanRange
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.index.index_file import KeyIndex
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import ConsumeQueueTable, QueueName
from rmqpy.store.results import Arrival

ROWS_MAX: Final = 16384
"""When nobody takes them, rows are dropped."""

Row = tuple[int, int, SendLine, int, int, bytes, bytes, int]
"""Physical offset, size, line, queue offset, tags code, unique key, keys, store time (ms)."""


class HotRows:
    """A ``store.dispatch.Accelerator``."""

    def __init__(self, queues: ConsumeQueueTable, index: KeyIndex | None) -> None:
        self._queues = queues
        self._index = index
        self._watched: set[QueueName] = set()
        self.waiting: list[Row] = []

    def drop_if_many(self) -> None:
        if len(self.waiting) > ROWS_MAX:
            self.waiting.clear()

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> tuple[int, int] | None:
        taken = self._following(piece.offset, piece.offset + len(piece.view))
        if not taken:
            return None
        runs: dict[QueueName, list[Row]] = {}
        for row in taken:
            runs.setdefault(row[2].queue_name, []).append(row)
        queues = {name: self._queues.of(*name) for name in runs}
        if not all(_continues(queues[name], run) for name, run in runs.items()):
            return None
        for name, run in runs.items():
            last = run[-1]
            units = b"".join([QUEUE_UNIT.pack(row[0], row[1], row[4]) for row in run])
            queues[name].put_run(run[0][3], units, last[0] + last[1])
        if self._index is not None:
            self._put_keys(self._index, taken)
        if listener is not None and not self._watched.isdisjoint(runs):
            for row in taken:
                if row[2].queue_name in self._watched:
                    listener(Arrival(*row[2].queue_name, row[3], row[4], row[0], row[7]))
        last = taken[-1]
        return last[0] + last[1], last[7]

    def register_queues(self, scan: Scan) -> None:
        """Nothing: a row says all that is needed."""

    def watch(self, topic: str, queue_id: int, wanted: bool) -> None:
        """Somebody waits for a message in this queue, or nobody does any more."""
        (self._watched.add if wanted else self._watched.discard)((topic, queue_id))

    def _following(self, start: int, end: int) -> list[Row]:
        """The rows of the log from ``start`` on, without a gap, within ``end``; they are gone."""
        rows = self.waiting
        first = 0
        while first < len(rows) and rows[first][0] < start:
            first += 1
        count = first
        while count < len(rows) and rows[count][0] == start and start < end:
            start += rows[count][1]
            count += 1
        taken = rows[first:count]
        del rows[:count]
        return taken

    @staticmethod
    def _put_keys(index: KeyIndex, rows: list[Row]) -> None:
        entries: list[IndexEntry] = []
        for offset, _, line, _, _, unique_key, keys, stored_ms in rows:
            if unique_key:
                entries.append((line.key_hash(unique_key), offset, stored_ms))
            if keys:
                topic = line.queue_name[0]
                entries += [
                    (index_key_hash(topic, word), offset, stored_ms)
                    for word in java_text(keys).split(" ")
                    if word
                ]
        if entries:
            index.put_run(entries)


def _continues(queue: ConsumeQueue, run: list[Row]) -> bool:
    first = run[0]
    return queue.continues(first[3], first[0]) and run[-1][3] - first[3] == len(run) - 1
