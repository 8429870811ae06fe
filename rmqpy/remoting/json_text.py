"""JSON string literals as fastjson 1.2 writes them.

Escaped are the quote, the backslash, ``\\b \\t \\n \\f \\r``, and as ``\\uXXXX`` in upper case the
other control characters up to U+001F, U+007F to U+009F, U+2028 and U+2029. Everything else stands
for itself. The strict form (Java's BrowserCompatible) also escapes the slash and everything outside
ASCII.
"""

from __future__ import annotations

import re
from typing import Final

_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_SPECIAL = re.compile('["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]')
_SPECIAL_STRICT = re.compile('["/\\\\\x00-\x1f]|[^\x00-\x7e]')


def quote(text: str) -> str:
    """``text`` between double quotes."""
    if _SPECIAL.search(text) is None:
        return f'"{text}"'
    return f'"{_SPECIAL.sub(_escape, text)}"'


def quote_strict(text: str) -> str:
    """``text`` between double quotes, in ASCII."""
    return f'"{_SPECIAL_STRICT.sub(_escape_strict, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT.get(char) or f"\\u{ord(char):04X}"


def _escape_strict(match: re.Match[str]) -> str:
    char = match.group()
    if char == "/":
        return "\\/"
    if ord(char) <= 0xFFFF:
        return _escape(match)
    beyond = ord(char) - 0x10000
    return f"\\u{0xD800 | beyond >> 10:04X}\\u{0xDC00 | beyond & 0x3FF:04X}"
