"""Messages as Arrow batches: the columns of an export, and of ``format("rocketmq")``.

======================  ============  ===========================================================
column                  type          meaning
======================  ============  ===========================================================
topic                   string
queueId                 int           -1 … where the message has no queue, as stored
queueOffset             long
physicalOffset          long          PHYSICALOFFSET
size                    int           of the record, in bytes
flag, sysFlag           int
bornTimestamp           timestamp     UTC; null where the stored time is none
bornHost                string        address:port
storeTimestamp          timestamp     as bornTimestamp
storeHost               string
reconsumeTimes          int
preparedTransaction-    long
Offset
tags, keys              string        null without
tagsCode                long          hash of tags, 0 without
bodyCrc                 int           as stored
crcOk                   boolean       whether the stored body agrees with it
body                    binary        as the producer gave it: inflated where it was zlib
properties              map           string to string
brokerName              string        as told by the caller, else null
term, entryIndex        long          of the DLedger entry; null in a classic log
======================  ============  ===========================================================

A batch is built column by column from a scan of the log, no message by itself: C copies the parts,
and only the columns asked for are built. What is rare (bytes that are no UTF-8, compressed bodies)
is done value by value.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from attrs import define

from rmqpy.audit.messages import host_text, inflated
from rmqpy.codec.chosen import gather, property_parts, record_parts
from rmqpy.codec.hashes import java_text
from rmqpy.codec.parts import Parts
from rmqpy.codec.properties import decode_properties
from rmqpy.codec.scan import Scan
from rmqpy.model.flags import COMPRESSED

if TYPE_CHECKING:
    import pyarrow

__all__ = ["COLUMNS", "MessageColumns", "ScanRows", "json_texts", "message_schema", "slices"]

COLUMNS: Final = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "tags",
    "keys",
    "tagsCode",
    "bodyCrc",
    "crcOk",
    "body",
    "properties",
    "brokerName",
    "term",
    "entryIndex",
)
NUMBERS: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "size": "size",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "tagsCode": "tags_code",
    "term": "term",
    "entryIndex": "entry_index",
}
"""Columns that are one of a scan as it is."""
BATCH_BYTES: Final = 8 << 20
"""Records of about so many bytes make a batch: what waits in Spark's queues is bounded by it."""
TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
"""Further from 1970 no timestamp in microseconds goes."""


def message_schema(columns: Sequence[str] = COLUMNS) -> pyarrow.Schema:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    types = {
        "topic": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "physicalOffset": pa.int64(),
        "size": pa.int32(),
        "flag": pa.int32(),
        "sysFlag": pa.int32(),
        "bornTimestamp": moment,
        "bornHost": pa.string(),
        "storeTimestamp": moment,
        "storeHost": pa.string(),
        "reconsumeTimes": pa.int32(),
        "preparedTransactionOffset": pa.int64(),
        "tags": pa.string(),
        "keys": pa.string(),
        "tagsCode": pa.int64(),
        "bodyCrc": pa.int32(),
        "crcOk": pa.bool_(),
        "body": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "brokerName": pa.string(),
        "term": pa.int64(),
        "entryIndex": pa.int64(),
    }
    return pa.schema([(name, types[name]) for name in columns])


def slices(sizes: Sequence[int], bytes_max: int = BATCH_BYTES) -> Iterator[tuple[int, int]]:
    """(first, end) of consecutive rows of at most ``bytes_max`` together, one at least."""
    first = total = 0
    for row, size in enumerate(sizes):
        if total and total + size > bytes_max:
            yield first, row
            first, total = row, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


class ScanRows:
    """Some rows of a scan, a column at a time. ``view`` is what was scanned; ``record_shift`` is
    the size of the header before each record.
    """

    def __init__(
        self, scan: Scan, view: memoryview, rows: Sequence[int], record_shift: int
    ) -> None:
        self.view = view
        self._scan = scan
        self._rows = rows
        self._is_whole = len(rows) == len(scan)
        self._shift = record_shift

    def __len__(self) -> int:
        return len(self._rows)

    def numbers(self, field: str) -> array[int]:
        """A column of the scan."""
        column: array[int] = getattr(self._scan, field)
        if self._is_whole:
            return column
        rows = self._rows
        if isinstance(rows, range):
            return column[rows.start : rows.stop]
        return array("q", [column[row] for row in rows])

    def part(self, rows: range) -> ScanRows:
        """Some of these rows."""
        return ScanRows(self._scan, self.view, self._rows[rows.start : rows.stop], self._shift)

    def topics(self) -> list[bytes]:
        topic = self._scan.topic
        return topic if self._is_whole else [topic[row] for row in self._rows]

    def parts(self, check_crc: bool) -> Parts:
        base = self._scan.frame_offset[0]
        shift = self._shift - base
        frames = self.numbers("frame_offset")
        return record_parts(self.view, [at + shift for at in frames], check_crc=check_crc)


@define(slots=True, frozen=True)
class MessageColumns:
    """Makes batches of those columns."""

    columns: tuple[str, ...] = COLUMNS
    broker_name: str | None = None

    def batch(self, rows: ScanRows) -> pyarrow.RecordBatch:
        import pyarrow as pa

        schema = message_schema(self.columns)
        builder = _Builder(rows, self.broker_name, "crcOk" in self.columns)
        arrays = [builder.column(field.name, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Builder:
    def __init__(self, rows: ScanRows, broker_name: str | None, check_crc: bool) -> None:
        self._rows = rows
        self._broker_name = broker_name
        self._check_crc = check_crc

    def column(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        if name in NUMBERS:
            return self._number(name, kind)
        if name.endswith("Timestamp"):
            field = "born_timestamp_ms" if name == "bornTimestamp" else "store_timestamp_ms"
            return times(self._rows.numbers(field))
        make: Callable[[], pyarrow.Array] = getattr(self, f"_{name}")
        return make()

    @cached_property
    def _parts(self) -> Parts:
        return self._rows.parts(self._check_crc)

    def _number(self, name: str, kind: pyarrow.DataType) -> pyarrow.Array:
        import pyarrow as pa

        made = longs(self._rows.numbers(NUMBERS[name]))
        if name in ("term", "entryIndex"):
            import pyarrow.compute as pc

            is_entry = pc.greater_equal(longs(self._rows.numbers("entry_index")), 0)
            return pc.if_else(is_entry, made, pa.scalar(None, pa.int64()))
        return made.cast(kind)

    def _topic(self) -> pyarrow.Array:
        return named(self._rows.topics())

    def _brokerName(self) -> pyarrow.Array:
        import pyarrow as pa

        return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self._rows))

    def _tags(self) -> pyarrow.Array:
        return self._text(self._parts.tags_position, self._parts.tags_length)

    def _keys(self) -> pyarrow.Array:
        rows = self._rows
        return self._text(rows.numbers("keys_position"), rows.numbers("keys_length"))

    def _text(self, positions: array[int], lengths: array[int]) -> pyarrow.Array:
        """Null where the length is 0."""
        import pyarrow.compute as pc

        made = texts(self._rows.view, positions, lengths)
        return pc.if_else(pc.greater(longs(lengths), 0), made, None)

    def _bodyCrc(self) -> pyarrow.Array:
        import pyarrow as pa

        return longs(self._parts.body_crc).cast(pa.int32())

    def _crcOk(self) -> pyarrow.Array:
        import pyarrow as pa

        return longs(self._parts.crc_agrees).cast(pa.bool_())

    def _bornHost(self) -> pyarrow.Array:
        return self._hosts(self._parts.born_host_position, self._parts.born_host_length)

    def _storeHost(self) -> pyarrow.Array:
        return self._hosts(self._parts.store_host_position, self._parts.store_host_length)

    def _hosts(self, positions: array[int], lengths: array[int]) -> pyarrow.Array:
        """Hosts are few: each is written once."""
        import pyarrow as pa

        packed = binaries(self._rows.view, positions, lengths).dictionary_encode()
        hosts = [host_text(_host(raw)) for raw in packed.dictionary.to_pylist()]
        return pa.array(hosts, pa.string()).take(packed.indices)

    def _body(self) -> pyarrow.Array:
        import pyarrow as pa

        parts = self._parts
        stored = binaries(self._rows.view, parts.body_position, parts.body_length)
        flags = self._rows.numbers("sys_flag")
        if not any(flag & COMPRESSED for flag in set(flags)):
            return stored
        bodies = [
            inflated(body) if flag & COMPRESSED else body
            for body, flag in zip(stored.to_pylist(), flags, strict=True)
        ]
        return pa.array(bodies, pa.binary())

    def _properties(self) -> pyarrow.Array:
        rows = self._rows
        positions, lengths = (
            rows.numbers("properties_position"),
            rows.numbers("properties_length"),
        )
        return self._split(positions, lengths) or self._one_by_one(positions, lengths)

    def _split(self, positions: array[int], lengths: array[int]) -> pyarrow.Array | None:
        import pyarrow as pa

        found = property_parts(self._rows.view, positions, lengths)
        if found is None:
            return None
        names = strict_texts(self._rows.view, found.name_position, found.name_length)
        values = strict_texts(self._rows.view, found.value_position, found.value_length)
        if names is None or values is None:
            return None
        starts = pa.Array.from_buffers(
            pa.int32(), len(found.starts), [None, pa.py_buffer(found.starts)]
        )
        return pa.MapArray.from_arrays(starts, names, values)

    def _one_by_one(self, positions: array[int], lengths: array[int]) -> pyarrow.Array:
        import pyarrow as pa

        view = self._rows.view
        pairs = [
            list(decode_properties(bytes(view[start : start + length])).items())
            for start, length in zip(positions, lengths, strict=True)
        ]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))


def json_texts(maps: pyarrow.Array) -> pyarrow.Array:
    """Maps of strings as JSON objects."""
    import pyarrow as pa

    written = [
        json.dumps(dict(pairs), ensure_ascii=False, separators=(",", ":"))
        for pairs in maps.to_pylist()
    ]
    return pa.array(written, pa.string())


def _host(raw: bytes) -> tuple[bytes, int]:
    return raw[:-4], int.from_bytes(raw[-4:], "big", signed=True)


def longs(values: array[int]) -> pyarrow.Array:
    """Without a copy."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def times(values_ms: array[int]) -> pyarrow.Array:
    """UTC; null where it is no time that a timestamp can hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = longs(values_ms)
    low, high = pa.scalar(-TIME_MS_MAX, pa.int64()), pa.scalar(TIME_MS_MAX, pa.int64())
    is_time = pc.and_(pc.greater_equal(stored, low), pc.less_equal(stored, high))
    held = pc.if_else(is_time, stored, pa.scalar(None, pa.int64()))
    return pc.multiply(held, 1000).cast(pa.timestamp("us", tz="UTC"))


def named(names: Iterable[bytes]) -> pyarrow.Array:
    """Texts of which there are few."""
    import pyarrow as pa

    encoded = pa.array(names, pa.binary()).dictionary_encode()
    written = [java_text(raw) for raw in encoded.dictionary.to_pylist()]
    return pa.array(written, pa.string()).take(encoded.indices)


def binaries(view: memoryview, positions: array[int], lengths: array[int]) -> pyarrow.Array:
    import pyarrow as pa

    return _gathered(pa.binary(), view, positions, lengths)


def texts(view: memoryview, positions: array[int], lengths: array[int]) -> pyarrow.Array:
    """As Java reads them where they are no UTF-8."""
    import pyarrow as pa

    made = strict_texts(view, positions, lengths)
    if made is not None:
        return made
    raw = binaries(view, positions, lengths).to_pylist()
    return pa.array([java_text(each) for each in raw], pa.string())


def strict_texts(
    view: memoryview, positions: array[int], lengths: array[int]
) -> pyarrow.Array | None:
    """None where one is no UTF-8."""
    import pyarrow as pa

    made = _gathered(pa.string(), view, positions, lengths)
    try:
        made.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return made


def _gathered(
    kind: pyarrow.DataType, view: memoryview, positions: array[int], lengths: array[int]
) -> pyarrow.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.cumulative_sum(longs(lengths))
    places = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    data = pa.py_buffer(gather(view, positions, lengths))
    return pa.Array.from_buffers(kind, len(lengths), [None, places.buffers()[1], data])
