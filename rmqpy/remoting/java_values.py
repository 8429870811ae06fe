"""Numbers as Java's parse and toString methods treat them, and the order of ``java.util.HashMap``.

Java writes ext fields in the order of a HashMap with String keys. Readers ignore the order; keeping
it makes rmqpy's frames equal to recorded ones, byte for byte.

==========  ===============================================================
hash        ``String.hashCode``: 31 * h + UTF-16 unit, wrapped to 32 bits
spread      h ^ (h >>> 16)
bucket      spread & (capacity - 1)
capacity    16, doubled whenever the size passes 0.75 * capacity
in a bucket order of insertion (a split on growth preserves it)
==========  ===============================================================

A bucket of more than 7 keys, which Java converts to a tree, still iterates in order of insertion
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isinf, isnan
from typing import Final

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_DIGITS_MAX: Final = 40
_SHORT_DIGITS: Final = 10
"""A number with fewer digits fits both ranges."""

DEFAULT_CAPACITY = 16
_CACHED_KEYS_MAX = 64
_CACHED_CHARS_MAX = 1024


def parse_decimal(text: str, maximum: int) -> int:
    """Return the result of Java's ``parseInt`` or ``parseLong``: an optional sign and digits, from
    -maximum-1 to maximum. Raises ValueError.
    """
    if len(text) < _SHORT_DIGITS and text.isdecimal():
        return int(text)
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise ValueError(text[:64])
    return check_range(int(text), maximum)


def check_range(value: int, maximum: int) -> int:
    """Return ``value``. Raises ValueError if it is not between -maximum-1 and maximum."""
    if not -maximum - 1 <= value <= maximum:
        raise ValueError(str(value)[:64])
    return value


def java_double(value: float) -> str:
    """Return ``Double.toString(value)``, with the fewest digits that read back as ``value``."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, exponent = _scientific(value)
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def java_hash_order(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """Return ``keys``, which are distinct and in order of insertion, in the order of a HashMap."""
    listed = list(keys)
    while len(listed) * 4 > capacity * 3:
        capacity *= 2
    mask = capacity - 1
    return sorted(listed, key=lambda key: _spread(key) & mask)


def hashmap_ordered(fields: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Return the items of ``fields`` in HashMap order. The order of recurring keys is cached."""
    if len(fields) < 2:
        return fields.items()
    keys = tuple(fields)
    if len(keys) > _CACHED_KEYS_MAX or sum(map(len, keys)) > _CACHED_CHARS_MAX:
        return [(key, fields[key]) for key in java_hash_order(keys)]
    order = order_of_known_keys(keys)
    return zip(order, map(fields.__getitem__, order), strict=True)


def _scientific(value: float) -> tuple[str, str]:
    for digits in range(17):
        text = f"{value:.{digits}e}"
        if float(text) == value:
            break
    mantissa, exponent = text.split("e")
    return mantissa, exponent


@lru_cache(maxsize=1024)
def order_of_known_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``keys`` in the order of a HashMap. Remembers the result: for names that the program
    chooses, not for those that a client does.
    """
    return tuple(java_hash_order(keys))


def _spread(text: str) -> int:
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(raw[::2], raw[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value ^ value >> 16
