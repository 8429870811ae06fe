"""Select messages of a log by the fields that a scan returns, and build their batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field

from rmqpy.audit.checks.messages import MessageWalk
from rmqpy.codec.hashes import java_text
from rmqpy.codec.scan import Scan
from rmqpy.model.names import is_system_topic
from rmqpy.pipeline.arrow.rows import BATCH_BYTES, MessageColumns, ScanRows, slices

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BOUNDED", "MessageFilter", "log_batches"]

BOUNDED: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "storeTimestamp": "store_timestamp_ms",
}
"""The columns that can be bounded, with the field of the scan."""


@define(slots=True, frozen=True, kw_only=True)
class MessageFilter:
    """The criteria for messages.

    ``topics`` limits the topics, None selects all; without ``internal_topics`` system topics are
    excluded. ``bounds`` has (least, most) by column, with times in ms.
    """

    internal_topics: bool = False
    topics: frozenset[str] | None = None
    bounds: Mapping[str, tuple[int, int]] = field(factory=dict)

    def selects_topic(self, name: bytes) -> bool:
        """Return whether messages of a topic are selected."""
        topic = java_text(name)
        if self.topics is not None and topic not in self.topics:
            return False
        return self.internal_topics or not is_system_topic(topic)

    def rows(self, scan: Scan, count: int) -> Sequence[int]:
        """Return the numbers of the selected rows among the first ``count``."""
        names = set(scan.topic)
        selected = set(filter(self.selects_topic, names))
        bounds: list[tuple[array[int], int, int]] = []
        for column, (least, most) in self.bounds.items():
            values: array[int] = getattr(scan, BOUNDED[column])[:count]
            if values and (min(values) < least or max(values) > most):
                bounds.append((values, least, most))
        if selected == names and not bounds:
            return range(count)
        return [
            row
            for row in range(count)
            if scan.topic[row] in selected
            and all(least <= values[row] <= most for values, least, most in bounds)
        ]


def log_batches(
    walk: MessageWalk,
    bounds_in_file: tuple[int, int],
    columns: MessageColumns,
    selection: MessageFilter,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of the selected messages whose frames start within ``bounds_in_file``.

    The bounds are positions in the file; the second is excluded.
    """
    for scan, view, count in walk.scans(*bounds_in_file):
        rows = selection.rows(scan, count)
        if rows:
            found = ScanRows(scan, view, rows, walk.file.record_shift)
            for first, end in slices(found.numbers("size"), BATCH_BYTES):
                yield columns.batch(found.part(range(first, end)))
