"""Numbers as Java's parse and toString methods have them."""

from __future__ import annotations

from math import isinf, isnan
from typing import Final

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_DIGITS_MAX: Final = 40
_SHORT_DIGITS: Final = 10
"""Fewer digits fit any of the ranges."""


def parse_decimal(text: str, maximum: int) -> int:
    """``parseInt``/``parseLong``: sign and digits, -maximum-1 to maximum; else ValueError."""
    if len(text) < _SHORT_DIGITS and text.isdecimal():
        return int(text)
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise ValueError(text[:64])
    return check_range(int(text), maximum)


def check_range(value: int, maximum: int) -> int:
    """``value`` if it fits between -maximum-1 and maximum; else ValueError."""
    if not -maximum - 1 <= value <= maximum:
        raise ValueError(str(value)[:64])
    return value


def java_double(value: float) -> str:
    """``Double.toString``, with the shortest digits that read back as ``value``."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, exponent = _scientific(value)
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def _scientific(value: float) -> tuple[str, str]:
    for digits in range(17):
        text = f"{value:.{digits}e}"
        if float(text) == value:
            break
    mantissa, exponent = text.split("e")
    return mantissa, exponent
