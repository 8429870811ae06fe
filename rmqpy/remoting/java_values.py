"""The order of java.util.HashMap with String keys: the order of ext fields on the wire.

The order has no meaning for a reader; writing it makes our frames equal to recorded ones, byte for
byte.

==========  ===============================================================
hash        ``String.hashCode``: 31 * h + UTF-16 unit, wrapped to 32 bits
spread      h ^ (h >>> 16)
bucket      spread & (capacity - 1)
capacity    16, doubled whenever the size passes 0.75 * capacity
in a bucket order of insertion (splitting on growth keeps it)
==========  ===============================================================

Buckets of more than 7 keys, which Java turns into trees, still iterate in order of insertion here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

DEFAULT_CAPACITY = 16
_CACHED_KEYS_MAX = 64
_CACHED_CHARS_MAX = 1024


def java_hash_order(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """``keys`` (distinct, in order of insertion) in the order of a HashMap."""
    listed = list(keys)
    while len(listed) * 4 > capacity * 3:
        capacity *= 2
    mask = capacity - 1
    return sorted(listed, key=lambda key: _spread(key) & mask)


def hashmap_ordered(fields: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The items of ``fields`` in HashMap order; cheap for key sets that come again."""
    if len(fields) < 2:
        return fields.items()
    keys = tuple(fields)
    if len(keys) > _CACHED_KEYS_MAX or sum(map(len, keys)) > _CACHED_CHARS_MAX:
        return [(key, fields[key]) for key in java_hash_order(keys)]
    return [(key, fields[key]) for key in _cached_order(keys)]


@lru_cache(maxsize=1024)
def _cached_order(keys: tuple[str, ...]) -> tuple[str, ...]:
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
