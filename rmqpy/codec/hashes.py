"""Java's text decoding and String.hashCode, and the masked CRC-32 of message bodies.

Java hashes UTF-16 units, so the hash of stored bytes is always the hash of the text that Java would
decode from them.
"""

from __future__ import annotations

import re
import zlib
from array import array
from itertools import islice
from operator import mul
from sys import byteorder

from rmqpy.codec.layout import CRC_MASK

# A surrogate encoded as three bytes is one malformed sequence to Java, three to Python.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_UTF16 = "utf-16-le" if byteorder == "little" else "utf-16-be"
_CHUNK = 128


def _powers() -> tuple[int, ...]:
    """Return 31**(_CHUNK-1) … 31**0, modulo 2**32: the weights of the units of a chunk."""
    return tuple(pow(31, exponent, 1 << 32) for exponent in range(_CHUNK - 1, -1, -1))


_POWERS = _powers()
_CHUNK_POWER = pow(31, _CHUNK, 1 << 32)


def java_string_hash(text: str) -> int:
    """Return String.hashCode of ``text``, a signed 32-bit number."""
    units: bytes | array[int]
    units = text.encode() if text.isascii() else array("H", text.encode(_UTF16, "surrogatepass"))
    return _signed(_weigh(units))


def java_hash_of_bytes(raw: bytes) -> int:
    """Return String.hashCode of the text that Java decodes from UTF-8 ``raw``."""
    return _signed(_weigh(raw)) if raw.isascii() else java_string_hash(java_text(raw))


def java_text(raw: bytes) -> str:
    """Return ``new String(raw, UTF_8)``: malformed bytes become U+FFFD, grouped as in Java."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xef\xbf\xbd", raw).decode("utf-8", "replace")


def crc32(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 (IEEE) as RocketMQ stores it: with the sign bit cleared."""
    return zlib.crc32(data) & CRC_MASK


def _weigh(units: bytes | array[int]) -> int:
    length = len(units)
    if length <= _CHUNK:
        return sum(map(mul, units, islice(_POWERS, _CHUNK - length, None)))
    value = 0
    head = length % _CHUNK
    for start in range(head - _CHUNK if head else 0, length, _CHUNK):
        piece = units[max(start, 0) : start + _CHUNK]
        weights = islice(_POWERS, _CHUNK - len(piece), None)
        value = (value * _CHUNK_POWER + sum(map(mul, piece, weights))) & 0xFFFFFFFF
    return value


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
