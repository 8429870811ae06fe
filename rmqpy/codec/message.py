"""Message records: encoding (version 1), patching, and decoding (versions 1 and 2). Also BLANK,
batch bodies, and offset message ids.

The table of fields is in :mod:`rmqpy.codec.layout`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.hashes import crc32, java_text
from rmqpy.codec.properties import decode_properties, encode_properties
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.message import Host, OutgoingMessage, StoredMessage
from rmqpy.model.values import define

__all__ = [
    "BatchItem",
    "InvalidRecordError",
    "batch_records",
    "decode_intact",
    "decode_message",
    "encode_batch_body",
    "encode_batch_item",
    "encode_blank",
    "encode_message",
    "encode_stored",
    "offset_msg_id",
    "parse_offset_msg_id",
    "record_properties",
    "record_size",
    "set_offsets",
    "topic_and_properties",
]

Buffer = bytes | bytearray | memoryview

HEADS: Final = {
    born | store: struct.Struct(
        f">iIiiiqqiq{'16s' if born else '4s'}iq{'16s' if store else '4s'}iiqi"
    )
    for born in (0, BORN_HOST_V6)
    for store in (0, STORE_HOST_V6)
}
"""The structs of fields 1 to 15, by the IPv6 bits of SYSFLAG."""

_INT: Final = struct.Struct(">i")
_MAGIC_AND_FLAGS: Final = struct.Struct(">4xI28xi")
_LONG: Final = struct.Struct(">q")
_TWO_LONGS: Final = struct.Struct(">qq")
_BLANK: Final = struct.Struct(">iI")
_BATCH_HEAD: Final = struct.Struct(">iiiii")


@define(slots=True, frozen=True)
class BatchItem:
    """One message of a batch body (request 320)."""

    flag: int
    body: bytes | memoryview
    properties: bytes


def encode_message(draft: OutgoingMessage) -> bytearray:
    """Return the version 1 record of ``draft``, with offsets and store timestamp left 0."""
    topic, body, properties = draft.topic, draft.body, draft.properties
    check_limits(draft)
    body_bytes = len(body)
    sys_flag = draft.sys_flag
    record = bytearray(
        HEADS[sys_flag & layout.HOSTS_V6].pack(
            record_size(draft),
            layout.MESSAGE_MAGIC_V1,
            crc32(body) if body_bytes else 0,
            draft.queue_id,
            draft.flag,
            0,
            0,
            sys_flag,
            draft.born_timestamp_ms,
            *draft.born_host,
            0,
            *draft.store_host,
            draft.reconsume_times,
            draft.prepared_transaction_offset,
            body_bytes,
        )
    )
    record += body
    record.append(len(topic))
    record += topic
    record += len(properties).to_bytes(2)
    record += properties
    return record


def record_size(draft: OutgoingMessage) -> int:
    """Return TOTALSIZE of the version 1 record of ``draft``."""
    head = HEADS[draft.sys_flag & layout.HOSTS_V6].size
    return head + len(draft.body) + 1 + len(draft.topic) + 2 + len(draft.properties)


def encode_stored(message: StoredMessage) -> bytes:
    """Encode a changed stored message as a version 1 record, with the offsets and times of
    ``message`` and the property string of ``message.properties``.
    """
    draft = OutgoingMessage(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        body=message.body,
        properties=encode_properties(message.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
    record = encode_message(draft)
    set_offsets(
        record, 0, message.queue_offset, message.physical_offset, message.store_timestamp_ms
    )
    return bytes(record)


def set_offsets(
    record: bytearray | memoryview,
    position: int,
    queue_offset: int | None,
    physical_offset: int,
    store_timestamp_ms: int,
) -> None:
    """Write the fields that the log assigns into the record at ``position``. A ``queue_offset`` of
    None leaves that field unchanged.
    """
    if queue_offset is None:
        _LONG.pack_into(record, position + layout.PHYSICAL_OFFSET_POSITION, physical_offset)
    else:
        place = position + layout.QUEUE_OFFSET_POSITION
        _TWO_LONGS.pack_into(record, place, queue_offset, physical_offset)
    (sys_flag,) = _INT.unpack_from(record, position + layout.SYS_FLAG_POSITION)
    place = position + layout.STORE_TIMESTAMP_POSITIONS[sys_flag & layout.HOSTS_V6]
    _LONG.pack_into(record, place, store_timestamp_ms)


def decode_message(view: Buffer, position: int = 0) -> StoredMessage:
    """Return the record that begins at ``position``.

    Raises InvalidRecordError if the bytes are not a record. The CRC is not checked.
    """
    data = memoryview(view)
    rest = len(data) - position
    if rest < layout.RECORD_SIZE_MIN:
        raise InvalidRecordError(
            position, "TOTALSIZE", f"beyond the {rest} bytes left", "a complete record"
        )
    size, magic = _BLANK.unpack_from(data, position)
    if magic not in layout.TOPIC_LENGTH_SIZES:
        raise InvalidRecordError(position, "MAGICCODE", f"{magic:#x}", layout.MAGICS_TEXT)
    if not layout.RECORD_SIZE_MIN <= size <= rest:
        raise InvalidRecordError(position, "TOTALSIZE", size, f"{layout.RECORD_SIZE_MIN}..{rest}")
    return _decode(bytes(data[position : position + size]), position)


def check_record(view: Buffer, offset: int) -> None:
    """Raise InvalidRecordError unless ``view`` is exactly one complete record.

    Its lengths must add up and the CRC of its body must match. ``offset`` appears in the error
    message only.
    """
    length = len(view)
    if length < layout.RECORD_SIZE_MIN:
        raise InvalidRecordError(
            offset, "record", f"{length} bytes", f"at least {layout.RECORD_SIZE_MIN}"
        )
    size, magic = _BLANK.unpack_from(view, 0)
    if magic not in layout.TOPIC_LENGTH_SIZES or size != length:
        found = f"size {size}, magic {magic:#x}"
        raise InvalidRecordError(offset, "record", found, f"size {length} and a message's magic")
    (sys_flag,) = _INT.unpack_from(view, layout.SYS_FLAG_POSITION)
    start = layout.BODY_POSITIONS[sys_flag & layout.HOSTS_V6]
    if length < start:
        raise InvalidRecordError(
            offset, "SYSFLAG", f"{sys_flag:#x}", f"hosts that fit {length} bytes"
        )
    (body_length,) = _INT.unpack_from(view, start - 4)
    if not 0 <= body_length <= length - start:
        raise InvalidRecordError(offset, "BODYLENGTH", body_length, f"0..{length - start}")
    (expected,) = _INT.unpack_from(view, layout.BODY_CRC_POSITION)
    with memoryview(view) as data, data[start : start + body_length] as body:
        found_crc = crc32(body) & layout.CRC_MASK
    if body_length and found_crc != expected:
        raise InvalidRecordError(offset, "BODYCRC", found_crc, expected)
    # An empty body has no CRC: a body length corrupted to 0 is detected by the fields after it.
    version = layout.TOPIC_LENGTH_SIZES[magic]
    topic = start + body_length + version
    topic_length = int.from_bytes(view[topic - version : topic], signed=True)
    properties = topic + topic_length + 2
    end = properties + int.from_bytes(view[properties - 2 : properties], signed=True)
    if topic_length < 0 or properties > length or end != length:
        raise InvalidRecordError(
            offset, "PROPERTIESLENGTH", f"an end at {end}", f"the end at {length}"
        )


def decode_intact(record: Buffer, offset: int) -> StoredMessage:
    """Return the message in ``record``, whose body matches its CRC: to be copied into another
    record, whose CRC is computed again. Raises InvalidRecordError with ``offset``.
    """
    check_record(record, offset)
    return decode_message(record)


def record_properties(record: Buffer) -> dict[str, str]:
    """Return the properties of ``record`` without decoding the other fields.

    Raises InvalidRecordError if the lengths are inconsistent.
    """
    data = memoryview(record)
    if len(data) < layout.RECORD_SIZE_MIN:
        raise InvalidRecordError(0, "TOTALSIZE", len(data), f"at least {layout.RECORD_SIZE_MIN}")
    (magic,) = _INT.unpack_from(data, layout.MAGIC_POSITION)
    (sys_flag,) = _INT.unpack_from(data, layout.SYS_FLAG_POSITION)
    head = HEADS[sys_flag & layout.HOSTS_V6].size
    version = layout.TOPIC_LENGTH_SIZES.get(magic & 0xFFFFFFFF, 1)
    topic_start = head + int.from_bytes(data[head - 4 : head], signed=True) + version
    topic_length = int.from_bytes(data[topic_start - version : topic_start])
    start = topic_start + topic_length + 2
    end = start + int.from_bytes(data[start - 2 : start])
    if not head < topic_start <= start <= end <= len(data):
        raise InvalidRecordError(
            0, "PROPERTIESLENGTH", end - start, f"to end within {len(data)} bytes"
        )
    return decode_properties(bytes(data[start:end]))


def topic_and_properties(record: bytes) -> tuple[str, dict[str, str]]:
    """Return the topic and the properties of a valid record, which takes a quarter of the time of
    decoding it.
    """
    magic, sys_flag = _MAGIC_AND_FLAGS.unpack_from(record)
    body = layout.BODY_POSITIONS[sys_flag & layout.HOSTS_V6]
    (body_length,) = _INT.unpack_from(record, body - 4)
    length = body + body_length
    start = length + layout.TOPIC_LENGTH_SIZES[magic]
    end = start + int.from_bytes(record[length:start])
    return java_text(record[start:end]), decode_properties(record[end + 2 :])


def encode_blank(rest: int) -> bytes:
    """Return the 8 bytes that close a file with ``rest`` bytes left. The bytes after them have no
    meaning.
    """
    assert rest >= layout.BLANK_SIZE, f"no space for a BLANK: {rest} bytes left"
    return _BLANK.pack(rest, layout.BLANK_MAGIC)


def batch_records(body: Buffer) -> list[BatchItem]:
    """Split the body of a SEND_BATCH_MESSAGE request. Raises InvalidRecordError if the lengths do
    not add up.
    """
    data = memoryview(body)
    items = []
    position = 0
    while position < len(data):
        item, position = _batch_item(data, position)
        items.append(item)
    return items


def encode_batch_body(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a producer's SEND_BATCH_MESSAGE request."""
    return b"".join(encode_batch_item(item.flag, item.body, item.properties) for item in items)


def encode_batch_item(flag: int, body: bytes | memoryview, properties: bytes) -> bytes:
    """Return one message of such a body."""
    length = len(properties)
    head = batch_item_head(flag, len(body), length)
    return b"".join((head, body, length.to_bytes(2), properties))


def batch_item_head(flag: int, body_bytes: int, properties_bytes: int) -> bytes:
    """Return what precedes the body in one message of such a body."""
    assert properties_bytes <= layout.PROPERTIES_BYTES_MAX, "properties too long"
    size = layout.BATCH_ITEM_SIZE_MIN + body_bytes + properties_bytes
    return _BATCH_HEAD.pack(size, 0, 0, flag, body_bytes)


def offset_msg_id(host: Host, physical_offset: int) -> str:
    """Return Java's offsetMsgId: store host and physical offset in 32 or 56 hex digits."""
    address, port = host
    return f"{address.hex()}{port:08x}{physical_offset:016x}".upper()


def parse_offset_msg_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Return store host and physical offset of an offsetMsgId; raise ValueError with the reason."""
    if len(text) not in (32, 56):
        raise ValueError(f"message id {text!r} has {len(text)} characters, expected 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) * 2 != len(text):
        raise ValueError(f"message id {text!r} is not hexadecimal")
    (port,) = _INT.unpack_from(raw, len(raw) - 12)
    (offset,) = _LONG.unpack_from(raw, len(raw) - 8)
    return (raw[:-12], port), PhysicalOffset(offset)


def check_limits(draft: OutgoingMessage) -> None:
    """Assert the limits that the store has checked. A record beyond them would be unreadable."""
    sys_flag = draft.sys_flag
    assert (
        len(draft.topic) <= layout.TOPIC_BYTES_MAX
        and len(draft.properties) <= layout.PROPERTIES_BYTES_MAX
        and len(draft.born_host[0]) == (16 if sys_flag & BORN_HOST_V6 else 4)
        and len(draft.store_host[0]) == (16 if sys_flag & STORE_HOST_V6 else 4)
    ), (
        f"topic of {len(draft.topic)} bytes, properties of {len(draft.properties)}, sysFlag "
        f"{sys_flag:#x}, born host {draft.born_host}, store host {draft.store_host}"
    )


def _decode(record: bytes, offset: int) -> StoredMessage:
    (sys_flag,) = _INT.unpack_from(record, layout.SYS_FLAG_POSITION)
    head = HEADS[sys_flag & layout.HOSTS_V6]
    if head.size > len(record):
        raise InvalidRecordError(offset, "TOTALSIZE", len(record), f"at least {head.size}")
    fields = head.unpack_from(record)
    version = layout.TOPIC_LENGTH_SIZES[fields[1]]
    body_end = head.size + fields[-1]
    topic_start = body_end + version
    if fields[-1] < 0 or topic_start > len(record):
        raise InvalidRecordError(offset, "BODYLENGTH", fields[-1], f"to fit in {len(record)} bytes")
    topic_end = topic_start + int.from_bytes(record[body_end:topic_start], signed=True)
    properties_start = topic_end + 2
    if topic_end < topic_start or properties_start > len(record):
        raise InvalidRecordError(
            offset, "TOPICLENGTH", topic_end - topic_start, "to fit in the record"
        )
    length = int.from_bytes(record[topic_end:properties_start], signed=True)
    if length != len(record) - properties_start:
        raise InvalidRecordError(offset, "PROPERTIESLENGTH", length, len(record) - properties_start)
    raw_properties = record[properties_start:]
    return StoredMessage(
        size=fields[0],
        version=version,
        body_crc=fields[2],
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=QueueOffset(fields[5]),
        physical_offset=PhysicalOffset(fields[6]),
        sys_flag=sys_flag,
        born_timestamp_ms=fields[8],
        born_host=(fields[9], fields[10]),
        store_timestamp_ms=fields[11],
        store_host=(fields[12], fields[13]),
        reconsume_times=fields[14],
        prepared_transaction_offset=fields[15],
        body=record[head.size : body_end],
        topic=java_text(record[topic_start:topic_end]),
        properties=decode_properties(raw_properties),
        raw_properties=raw_properties,
    )


def _batch_item(data: memoryview, position: int) -> tuple[BatchItem, int]:
    rest = len(data) - position
    if rest < layout.BATCH_ITEM_SIZE_MIN:
        raise InvalidRecordError(
            position, "batch item", f"{rest} bytes", layout.BATCH_ITEM_SIZE_MIN
        )
    size, _, _, flag, body_bytes = _BATCH_HEAD.unpack_from(data, position)
    if not layout.BATCH_ITEM_SIZE_MIN <= size <= rest:
        raise InvalidRecordError(
            position, "total size", size, f"{layout.BATCH_ITEM_SIZE_MIN}..{rest}"
        )
    if not 0 <= body_bytes <= size - layout.BATCH_ITEM_SIZE_MIN:
        expected = f"0..{size - layout.BATCH_ITEM_SIZE_MIN}"
        raise InvalidRecordError(position, "body length", body_bytes, expected)
    start = position + layout.BATCH_HEADER_SIZE
    properties_start = start + body_bytes + 2
    length = int.from_bytes(data[properties_start - 2 : properties_start], signed=True)
    if length != position + size - properties_start:
        expected = position + size - properties_start
        raise InvalidRecordError(position, "properties length", length, expected)
    end = position + size
    item = BatchItem(flag, data[start : start + body_bytes], bytes(data[properties_start:end]))
    return item, end
