"""The property string of a message: ``name \\x01 value`` pairs joined by ``\\x02``, UTF-8.

4.9.7 does not write a trailing ``\\x02``, older versions do. A pair counts only if its first
``\\x01`` is neither its first nor its last byte, so empty names and values are dropped on reading.
Of equal names the last one counts.

5.x can keep a checksum over the complete record (enabledAppendPropCRC). It is the last 20 bytes of
PROPERTIES, and so of the record: ``__CRC32#`` 0x01, ten digits, 0x02. The digits are the decimal
CRC-32 (31 bits) of all bytes before these 20, least significant digit first. 4.9 does not write it
and reads it as a normal property. Unlike the CRC of the body, it detects every flipped bit of a
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqpy.codec.hashes import crc32, java_text

NAME_VALUE_SEPARATOR: Final = b"\x01"
PROPERTY_SEPARATOR: Final = b"\x02"

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_MESSAGE_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL: Final = "TTL"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_BUYER_ID: Final = "BUYER_ID"
PROPERTY_TRANSFER_FLAG: Final = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG: Final = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG: Final = "MQ2_FLAG"
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_SWITCH: Final = "TRACE_ON"

PROPERTY_CRC: Final = b"__CRC32#"
_CRC_DIGITS: Final = 10
PROPERTY_CRC_SIZE: Final = 20
_CRC_HEAD: Final = PROPERTY_CRC + NAME_VALUE_SEPARATOR
_CRC_NEARLY_ALL: Final = 17
"""The number of bytes, of 20, that match only if the record once had a checksum."""

assert len(_CRC_HEAD) + _CRC_DIGITS + 1 == PROPERTY_CRC_SIZE

Buffer = bytes | bytearray | memoryview


def decode_properties(raw: bytes) -> dict[str, str]:
    """Return the pairs of a property string, in the order of first appearance."""
    found: dict[str, str] = {}
    for piece in java_text(raw).split("\x02"):
        name, separator, value = piece.partition("\x01")
        if name and separator and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property string of ``properties``, in their order, without a trailing separator.

    Raises ValueError for a name or value that would not be read back unchanged.
    """
    pieces = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name or "\x02" in value:
            raise ValueError(
                f"property {name!r}={value!r}: a name must not be empty nor contain \\x01 "
                "or \\x02, a value must not contain \\x02"
            )
        pieces.append(f"{name}\x01{value}")
    return "\x02".join(pieces).encode("utf-8", "replace")


def locate_property(raw: bytes, key: bytes) -> tuple[int, int]:
    """Return the position of a property's value as (start, end); (0, 0) if there is none."""
    head = key + NAME_VALUE_SEPARATOR
    position = len(raw)
    while (position := raw.rfind(head, 0, position)) >= 0:
        start = position + len(head)
        if position == 0 or raw[position - 1] == 2:
            end = raw.find(PROPERTY_SEPARATOR, start)
            end = len(raw) if end < 0 else end
            if end > start:
                return start, end
        position += len(head) - 1  # rfind's end is exclusive: allow any earlier start
    return 0, 0


def is_whole(raw: bytes) -> bool:
    """Return whether ``raw`` was written completely as a property string.

    It is then UTF-8 without the zeros at its end that an interrupted write leaves. (Zeros elsewhere
    are legal, though unusual.) This distinguishes a record from a torn one, whose length fields and
    body CRC may still match.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return not raw.endswith(b"\0")


def well_formed(raw: bytes) -> bool:
    """Return whether ``raw`` is complete and every pair has a name, as brokers write them."""
    pieces = raw.removesuffix(PROPERTY_SEPARATOR).split(PROPERTY_SEPARATOR) if raw else []
    return is_whole(raw) and all(piece.find(NAME_VALUE_SEPARATOR) > 0 for piece in pieces)


def reserve_property_crc(properties: bytes) -> bytes:
    """Return ``properties`` with space for the checksum at the end, and without an older one."""
    if _CRC_HEAD in properties:
        pieces = properties.split(PROPERTY_SEPARATOR)
        properties = PROPERTY_SEPARATOR.join(p for p in pieces if not p.startswith(_CRC_HEAD))
    if properties and not properties.endswith(PROPERTY_SEPARATOR):
        properties += PROPERTY_SEPARATOR
    return properties + _CRC_HEAD + b"0" * _CRC_DIGITS + PROPERTY_SEPARATOR


def write_property_crc(record: bytearray) -> None:
    """Write the checksum of a record whose fields are final, if the record has space for it."""
    if record[-PROPERTY_CRC_SIZE : -PROPERTY_CRC_SIZE + len(_CRC_HEAD)] == _CRC_HEAD:
        record[-PROPERTY_CRC_SIZE:] = _property_crc(record)


def verify_property_crc(record: Buffer) -> bool:
    """Return whether the record matches its checksum; a record without one always does."""
    tail = bytes(record[-PROPERTY_CRC_SIZE:])
    expected = _property_crc(record)
    if tail == expected:
        return True
    if tail.startswith(_CRC_HEAD):
        return False
    return sum(a == b for a, b in zip(tail, expected, strict=False)) < _CRC_NEARLY_ALL


def _property_crc(record: Buffer) -> bytes:
    digits = f"{crc32(record[:-PROPERTY_CRC_SIZE]):0{_CRC_DIGITS}d}".encode()[::-1]
    return _CRC_HEAD + digits + PROPERTY_SEPARATOR
