"""The checksum over a complete record that 5.x keeps in its properties (enabledAppendPropCRC).

The last 20 bytes of PROPERTIES, which are the last of the record: ``__CRC32#`` 0x01, ten digits,
0x02. The digits are the decimal CRC-32 (31 bits) of all bytes before them, the least
significant digit first. 4.9 writes records without it, and reads it as a normal property.

It closes the gap left by the body's own CRC: every flipped bit of a record is detected.
"""

from __future__ import annotations

from typing import Final

from rmqpy.codec.hashes import crc32
from rmqpy.codec.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

PROPERTY_CRC: Final = b"__CRC32#"
DIGITS: Final = 10
SIZE: Final = 20
_HEAD: Final = PROPERTY_CRC + NAME_VALUE_SEPARATOR
_NEARLY_ALL: Final = 17
"""The number of matching bytes of 20 that is no accident: the record once had a checksum."""

assert len(_HEAD) + DIGITS + 1 == SIZE

Buffer = bytes | bytearray | memoryview


def reserve(properties: bytes) -> bytes:
    """Return a property string with room for the checksum at its end, and no older one inside."""
    if _HEAD in properties:
        pieces = properties.split(PROPERTY_SEPARATOR)
        properties = PROPERTY_SEPARATOR.join(p for p in pieces if not p.startswith(_HEAD))
    if properties and not properties.endswith(PROPERTY_SEPARATOR):
        properties += PROPERTY_SEPARATOR
    return properties + _HEAD + b"0" * DIGITS + PROPERTY_SEPARATOR


def write(record: bytearray) -> None:
    """Write the checksum of a record whose fields are final; a record without room is unchanged."""
    if record[-SIZE : -SIZE + len(_HEAD)] == _HEAD:
        record[-SIZE:] = _checksum(record)


def verify(record: Buffer) -> bool:
    """Return whether the record matches its checksum; a record without one always does."""
    tail = bytes(record[-SIZE:])
    expected = _checksum(record)
    if tail == expected:
        return True
    if tail.startswith(_HEAD):
        return False
    return sum(a == b for a, b in zip(tail, expected, strict=False)) < _NEARLY_ALL


def _checksum(record: Buffer) -> bytes:
    digits = f"{crc32(record[:-SIZE]):0{DIGITS}d}".encode()[::-1]
    return _HEAD + digits + PROPERTY_SEPARATOR
