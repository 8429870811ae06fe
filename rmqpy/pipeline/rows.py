"""Messages as Arrow batches: the columns of an export.

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
brokerName              string        as told to the export, else null
term, entryIndex        long          of the DLedger entry; null in a classic log
======================  ============  ===========================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rmqpy.audit.messages import LogMessage, host_text, plain_body
from rmqpy.codec.chosen import crc32
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.properties import PROPERTY_KEYS, PROPERTY_TAGS

if TYPE_CHECKING:
    import pyarrow

__all__ = ["message_batches", "message_schema"]

BATCH_BYTES: Final = 64 << 20
BATCH_ROWS: Final = 131_072
TIME_MS_MAX: Final = (1 << 63) // 1000 - 1
"""Further from 1970 no timestamp in microseconds goes."""


def message_schema() -> pyarrow.Schema:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    columns = {
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
    return pa.schema(list(columns.items()))


def message_batches(
    messages: Iterable[LogMessage], broker_name: str | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Batches of about 64 MiB of records; memory is bounded by one of them."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    for found in messages:
        rows.append(_row(found, broker_name))
        size += found.message.size
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    schema = message_schema()
    columns = zip(schema, zip(*rows, strict=True), strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, type=column.type) for column, values in columns], schema=schema
    )


def _row(found: LogMessage, broker_name: str | None) -> tuple[Any, ...]:
    """The values of a message in the order of the schema."""
    message = found.message
    properties = message.properties
    tags = properties.get(PROPERTY_TAGS)
    is_entry = found.index >= 0
    return (
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.size,
        message.flag,
        message.sys_flag,
        _time_us(message.born_timestamp_ms),
        host_text(message.born_host),
        _time_us(message.store_timestamp_ms),
        host_text(message.store_host),
        message.reconsume_times,
        message.prepared_transaction_offset,
        tags,
        properties.get(PROPERTY_KEYS),
        java_string_hash(tags) if tags else 0,
        message.body_crc,
        crc32(message.body) == message.body_crc,
        plain_body(message),
        list(properties.items()),
        broker_name,
        found.term if is_entry else None,
        found.index if is_entry else None,
    )


def _time_us(time_ms: int) -> int | None:
    return time_ms * 1000 if abs(time_ms) <= TIME_MS_MAX else None
