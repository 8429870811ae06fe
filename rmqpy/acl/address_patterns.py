"""Patterns of remote addresses in access files and allow-lists, following the rules of Java's ACL
1.0.

=============================  ==================================================================
pattern                        matches
=============================  ==================================================================
(blank)                        nothing
``*``, ``*.*.*.*``, ``*:…:*``  everything (the last with eight asterisks)
``a,b,c``                      each of these addresses
``192.168.0.{1,2,3}``          the set of last parts; IPv6 too
``192.168.*.*``                this prefix, then anything: asterisks at the end only
``192.168.0.1-10``             a range, in the last part or in the one before asterisks; IPv6 too
``192.168.0.1``                this address
=============================  ==================================================================

An IPv6 address is compared in its full form, eight groups of four digits, and an IPv4 address
inside IPv6 (``::ffff:``) as IPv4. Any other pattern is rejected when it is read, because an unclear
pattern must neither allow nor deny access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeAlias

from attrs import field

from rmqpy.model.values import define

_ALL: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_PARTS_V4: Final = 4
PEERS_KEPT: Final = 4096
"""The number of addresses whose parts are cached."""

_PARTS_V6: Final = 8
_PART_MAX_V4: Final = 0xFF
_PART_MAX_V6: Final = 0xFFFF

_Parts: TypeAlias = tuple[int, ...]
_Ranges: TypeAlias = tuple[tuple[int, int], ...]


@define(frozen=True)
class AddressPattern:
    """A parsed pattern. ``text`` is its original form."""

    text: str
    _matches: Callable[[_Parts], bool] = field(eq=False, repr=False)

    def matches(self, address: str) -> bool:
        """Return whether ``address`` matches. A text that is not an IP address never does."""
        parts = _address(address)
        return parts is not None and self._matches(parts)


def parse_pattern(text: str) -> AddressPattern:
    """Parse a pattern. Raises ValueError with the reason if it is invalid."""
    pattern = text.strip()
    if not pattern:
        return AddressPattern(text, lambda _: False)
    if pattern in _ALL:
        return AddressPattern(text, lambda _: True)
    if pattern.endswith("}"):
        return AddressPattern(text, _one_of(_expanded(pattern)))
    if "," in pattern:
        return AddressPattern(text, _one_of(part for part in pattern.split(",") if part.strip()))
    if "*" in pattern or "-" in pattern:
        return AddressPattern(text, _in_ranges(_ranges(pattern)))
    return AddressPattern(text, _one_of([pattern]))


def parse_patterns(texts: Iterable[str]) -> tuple[AddressPattern, ...]:
    """Parse all patterns of a list. Raises ValueError."""
    return tuple(parse_pattern(text) for text in texts)


def any_matches(patterns: Iterable[AddressPattern], address: str) -> bool:
    """Return whether one of ``patterns`` matches ``address``."""
    return any(pattern.matches(address) for pattern in patterns)


@lru_cache(maxsize=PEERS_KEPT)
def _address(text: str) -> _Parts | None:
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is None:
            packed = parsed.packed
            return tuple(packed[i] << 8 | packed[i + 1] for i in range(0, len(packed), 2))
        parsed = parsed.ipv4_mapped
    return tuple(parsed.packed)


def _one_of(texts: Iterable[str]) -> Callable[[_Parts], bool]:
    addresses = set()
    for text in texts:
        parts = _address(text.strip())
        if parts is None:
            raise ValueError(f"{text.strip()!r} is not an IP address")
        addresses.add(parts)
    return lambda parts: parts in addresses


def _expanded(pattern: str) -> list[str]:
    """Return the addresses that ``begin.{a,b}`` matches."""
    separator = ":" if ":" in pattern else "."
    begin, _, last = pattern.rpartition(separator)
    if not last.startswith("{") or "{" in begin or not begin:
        raise ValueError(f"{pattern!r}: the set {{…}} must be the last part")
    return [f"{begin}{separator}{part.strip()}" for part in last[1:-1].split(",")]


def _ranges(pattern: str) -> _Ranges:
    """Return the range of each part of the address. An asterisk is the full range."""
    v6 = ":" in pattern
    count, largest, base = (_PARTS_V6, _PART_MAX_V6, 16) if v6 else (_PARTS_V4, _PART_MAX_V4, 10)
    texts = pattern.split(":" if v6 else ".")
    if v6 and "" in texts:  # "::" represents the missing groups, which are zero
        gap = texts.index("")
        rest = [text for text in texts if text]
        texts = rest[:gap] + ["0"] * (count - len(rest)) + rest[gap:]
    if len(texts) != count:
        raise ValueError(f"{pattern!r} has {len(texts)} parts, expected {count}")
    ranges = [_range(pattern, text.strip(), largest, base) for text in texts]
    open_from = next((i for i, text in enumerate(texts) if not _is_number(text, base)), count)
    for text in texts[open_from + 1 :]:
        if text.strip() != "*":
            raise ValueError(f"{pattern!r}: only asterisks may follow a range or an asterisk")
    return tuple(ranges)


def _range(pattern: str, text: str, largest: int, base: int) -> tuple[int, int]:
    if text == "*":
        return 0, largest
    low, minus, high = text.partition("-")
    try:
        first = int(low, base)
        last = int(high, base) if minus else first
    except ValueError:
        raise ValueError(f"{pattern!r}: {text!r} is not a number, a range, or *") from None
    if not 0 <= first <= last <= largest:
        raise ValueError(f"{pattern!r}: {text!r} is not a range within 0 … {largest}")
    return first, last


def _is_number(text: str, base: int) -> bool:
    try:
        int(text, base)
    except ValueError:
        return False
    return True


def _in_ranges(ranges: _Ranges) -> Callable[[_Parts], bool]:
    def matches(parts: _Parts) -> bool:
        return len(parts) == len(ranges) and all(
            low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True)
        )

    return matches
