"""Lookups in a store: by queue offsets, time, key, or message id, without reading the log.

The driver finds the records through consume queue and key index
(:mod:`rmqpy.audit.checks.message_lookup`), and tasks read these records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define
from pyspark.sql.datasource import InputPartition

from rmqpy.audit.checks.message_lookup import MessageLookup, RecordPlace, place_of
from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.facts.reader import read_confirmed_end
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.log_bytes import read_frame
from rmqpy.codec import layout
from rmqpy.codec.backend import scan_records
from rmqpy.codec.message import offset_msg_id, parse_offset_msg_id
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.pipeline.arrow.message_filter import MessageFilter
from rmqpy.pipeline.arrow.rows import BATCH_BYTES, MessageColumns, ScanRows
from rmqpy.pipeline.datasource.options import Options
from rmqpy.store.files.framing import Framing

if TYPE_CHECKING:
    import pyarrow

__all__ = ["LOOKUP_OPTIONS", "Lookup", "LookupPart", "record_batches"]

LOOKUP_OPTIONS: Final = ("key", "messageId", "timestampLookup", "startingOffset", "endingOffset")
OFFSET_MAX: Final = (1 << 63) - 1
MS_MAX: Final = (1 << 63) - 1
PART_RECORDS: Final = 8192
"""The number of records that one task reads."""


class LookupPart(InputPartition):
    """Records that one task reads of the store at ``root``."""

    def __init__(self, places: tuple[RecordPlace, ...], root: str) -> None:
        super().__init__(None)
        self.places = places
        self.root = root


@define(slots=True, frozen=True, kw_only=True)
class Lookup:
    """What to look up: ``key`` of ``topic``, a message id, or the messages of a queue by their
    offsets or store times in ms.
    """

    topic: str = ""
    key: str | None = None
    message_id: str | None = None
    queue_id: int = -1
    first: int = 0
    end: int = OFFSET_MAX
    times_ms: tuple[int, int] | None = None

    @classmethod
    def of(cls, given: Options) -> Lookup | None:
        """Return the lookup that the options describe, or None.

        Raise ConfigError if they describe two, or lack the topic, the queue, or the times.
        """
        key, message_id = given.text("key", None), given.text("messageId", None)
        by_time = given.flag("timestampLookup", False)
        edges = [name for name in LOOKUP_OPTIONS[3:] if given.text(name, None) is not None]
        kinds = [name for name in LOOKUP_OPTIONS[:2] if given.text(name, None) is not None]
        kinds += ["timestampLookup"] * by_time
        if not edges and not kinds:
            return None
        if len(kinds) + bool(edges) > 1:
            raise ConfigError(f"found the options {', '.join([*kinds, *edges])}, expected one kind")
        topic = given.text("topic", "").strip()
        if message_id is None and (not topic or "," in topic):
            raise ConfigError(f"the option {[*kinds, *edges][0]} needs the option topic, one topic")
        if (edges or by_time) and given.text("queueId", None) is None:
            raise ConfigError(f"the option {[*kinds, *edges][0]} needs the option queueId")
        times_ms = given.count("startingTimestamp", 0, 0), given.count("endingTimestamp", MS_MAX, 0)
        if by_time and times_ms == (0, MS_MAX):
            raise ConfigError(
                "the option timestampLookup needs startingTimestamp or endingTimestamp"
            )
        return cls(
            topic=topic,
            key=key,
            message_id=message_id,
            queue_id=given.count("queueId", 0, least=0),
            first=given.count("startingOffset", 0, least=0),
            end=given.count("endingOffset", OFFSET_MAX, least=0),
            times_ms=times_ms if by_time else None,
        )

    def parts(self, files: FileSystem, root: str) -> Iterator[LookupPart]:
        """Yield the tasks that read the records found in the store at ``root``."""
        directory = read_directory(files, root)
        limit = read_confirmed_end(files, directory)
        found = MessageLookup(files, directory)
        if self.message_id is not None:
            offsets = self._with_id(found)
        elif self.key is not None:
            offsets = found.with_key(self.topic, self.key)
        elif self.times_ms is not None:
            offsets = found.between(self.topic, self.queue_id, *self.times_ms, limit)
        else:
            offsets = found.in_queue(self.topic, self.queue_id, self.first, self.end, limit)
        places = [
            place
            for offset in offsets
            if limit is None or offset < limit
            if (place := place_of(directory, offset)) is not None
        ]
        for first in range(0, len(places), PART_RECORDS):
            yield LookupPart(tuple(places[first : first + PART_RECORDS]), root)

    def _with_id(self, found: MessageLookup) -> list[int]:
        """Return the message with an id: of the record, or the unique one of the producer."""
        assert self.message_id is not None
        try:
            offset = int(parse_offset_msg_id(self.message_id)[1])
        except ValueError:
            offset = -1
        message = LogReader(found.files, found.directory, scattered=True).message(offset)
        if message is not None:
            own = offset_msg_id(message.store_host, message.physical_offset)
            if own.upper() == self.message_id.upper():
                return [offset]
        if not self.topic:
            raise ConfigError(
                f"found no message with the id {self.message_id} of a record; the unique id of a"
                " producer needs the option topic"
            )
        return found.with_key(self.topic, self.message_id)


def record_batches(
    files: FileSystem,
    places: Sequence[RecordPlace],
    columns: MessageColumns,
    selection: MessageFilter,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches of the selected records. Raise StoreError if one has disappeared."""
    opened: dict[str, FileSlices] = {}
    waiting: list[pyarrow.RecordBatch] = []
    size = 0
    for place in places:
        path = place.file.path
        if path not in opened:
            opened[path] = files.open_slices(path)
        dledger = place.framing is Framing.DLEDGER
        shift = layout.ENTRY_HEADER_SIZE if dledger else 0
        frame = place.offset - shift
        rest = read_frame(opened[path], frame - place.file.first_offset, dledger=dledger)
        scan = scan_records(rest, frame, dledger=dledger, check_crc=False, max_records=1)
        if not len(scan):
            raise StoreError(
                path, f"no message at {place.offset}", "the one just found", "read the store again"
            )
        rows = selection.rows(scan, len(scan))
        if rows:
            waiting.append(columns.batch(ScanRows(scan, rest, rows, shift)))
            size += scan.size[0]
        if size >= BATCH_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    import pyarrow

    (batch,) = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
