"""JSON in the form of Java's fastjson 1.2: bodies and the files under config/.

Strict JSON is read by the standard library, everything else by
:mod:`rmqpy.remoting.fastjson_reader`. Keys of maps are ``str`` (a bare ``0`` becomes "0") or
:class:`ObjectKey`.

The Python type of a key or value decides how it is written:

============  ==================  ===========================================
Python        normal              strict (what Java calls BrowserCompatible)
============  ==================  ===========================================
str key       ``"a":``            the same
int key       ``0:``              ``"0":``
ObjectKey     ``{"topic":…}:``    ``"{\\"topic\\":…}":``
maps          order of the dict   sorted by key
============  ==================  ===========================================

``pretty`` is the form of the config files: indented with tabs, one line per member, except that
bare and object keys stay on the line of their brace. A list has one line per item, a tuple (a Java
set or array) is written on a single line.

String literals escape the quote, the backslash, ``\\b \\t \\n \\f \\r``, and as ``\\uXXXX`` in
upper case the other control characters up to U+001F, U+007F to U+009F, U+2028 and U+2029.
Everything else is written as it is. The strict form also escapes the slash and everything outside
ASCII.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from rmqpy.remoting.fastjson_reader import DEPTH_MAX, FastjsonDecodeError, FastjsonReader, ObjectKey
from rmqpy.remoting.java_values import java_double

__all__ = [
    "DEPTH_MAX",
    "FastjsonDecodeError",
    "ObjectKey",
    "dumps",
    "dumps_member",
    "dumps_with_rows",
    "escape",
    "find_special",
    "loads",
    "quote",
]

CONTAINERS_MAX: Final = 1_000_000
"""The maximum number of objects and arrays in a text. An empty one takes 30 times its size in
memory.
"""

TOLERANT_REQUEST_MAX: Final = 64 * 1024
"""The maximum length, in characters, of a client's text that is not strict JSON. The tolerant
reader takes up to a second per MiB, during which all other requests wait.
"""

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
find_special: Final = _SPECIAL.search
"""Return a match if a text has a character that :func:`quote` escapes, otherwise None."""
_find_other = re.compile('["\\\\\x00\x03-\x1f\x7f-\x9f\u2028\u2029]').search
"""The same, except for the separators of properties, which nearly every message has."""
_SPECIAL_STRICT = re.compile('["/\\\\\x00-\x1f]|[^\x00-\x7e]')

Parts: TypeAlias = list[str]


def loads(data: bytes | bytearray | memoryview | str, tolerant_max: int | None = None) -> object:
    """Return the value of ``data``. Malformed UTF-8 is replaced, as in Java.

    A text of more than ``tolerant_max`` characters must be strict JSON. Raises FastjsonDecodeError.
    """
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    containers = text.count("[") + text.count("{")
    if containers > CONTAINERS_MAX:
        raise FastjsonDecodeError(f"more than {CONTAINERS_MAX} objects and arrays", 0)
    try:
        value: object = _STRICT.decode(text)
    except (ValueError, RecursionError):
        if tolerant_max is not None and len(text) > tolerant_max:
            problem = f"{len(text)} characters, more than {tolerant_max}, and not strict JSON"
            raise FastjsonDecodeError(problem, 0) from None
        return FastjsonReader(text).read()
    if containers > DEPTH_MAX:
        _check_depth(value)
    return value


def dumps(value: object, *, pretty: bool = False, strict: bool = False) -> bytes:
    """Encode ``value`` (dict, list, tuple, str, int, float, bool, None, ObjectKey) as UTF-8."""
    parts: Parts = []
    _Writer(parts, pretty, strict).write(value, 0)
    return "".join(parts).encode("utf-8", "replace")


def dumps_member(name: str, value: object, depth: int) -> bytes:
    """Return a member of an object in the ``pretty`` form, from the start of its line on. ``depth``
    is the number of objects that contain it.
    """
    parts: Parts = []
    _Writer(parts, True, False).write({name: value}, depth - 1)
    # Without the braces of the object around it, and the line of the closing one.
    return "".join(parts[1:-2]).encode("utf-8", "replace")


def dumps_with_rows(
    value: Mapping[str, object], rows: Sequence[bytes], *, pretty: bool = False
) -> list[bytes]:
    """Encode ``value`` in parts. ``rows`` are the members of its last value, an empty object."""
    text = dumps(value, pretty=pretty)
    if not rows:
        return [text]
    end = b"}\n}" if pretty else b"}}"
    assert text.endswith(b"{" + end), text
    return [text.removesuffix(end), *rows, b"\n\t" + end if pretty else end]


def quote(text: str) -> str:
    """Return ``text`` as a JSON string literal."""
    return f'"{text}"' if find_special(text) is None else f'"{escape(text)}"'


def escape(text: str) -> str:
    """Return ``text`` as it is written inside a JSON string literal."""
    if _find_other(text) is None:
        return text.replace("\x01", "\\u0001").replace("\x02", "\\u0002")
    return _SPECIAL.sub(_escape, text)


def quote_strict(text: str) -> str:
    """Return ``text`` as a JSON string literal in ASCII."""
    return f'"{_SPECIAL_STRICT.sub(_escape_strict, text)}"'


class _Writer:
    __slots__ = ("_parts", "_pretty", "_quote", "_strict")

    def __init__(self, parts: Parts, pretty: bool, strict: bool) -> None:
        self._parts = parts
        self._pretty = pretty
        self._strict = strict
        self._quote: Callable[[str], str] = quote_strict if strict else quote

    def write(self, value: object, depth: int) -> None:
        """Append ``value``, with its closing brace indented by ``depth`` tabs."""
        if isinstance(value, str):
            self._parts.append(self._quote(value))
        elif value is None:
            self._parts.append("null")
        elif isinstance(value, bool):
            self._parts.append("true" if value else "false")
        elif isinstance(value, int):
            self._parts.append(str(value))
        elif isinstance(value, float):
            self._parts.append(_double(value))
        elif isinstance(value, ObjectKey):
            self._map(value.as_dict(), depth)
        elif isinstance(value, Mapping):
            self._map(value, depth)
        elif isinstance(value, list | tuple):
            self._items(value, depth, self._pretty and isinstance(value, list))
        else:
            raise TypeError(f"no JSON form: {type(value).__name__}")

    def _map(self, value: Mapping[Any, object], depth: int) -> None:
        items: Iterable[tuple[Any, object]] = value.items()
        if self._strict:
            items = sorted(items, key=lambda item: str(item[0]) if _is_mixed(value) else item[0])
        self._parts.append("{")
        comma = ""
        for key, member in items:
            self._parts.append(comma)
            comma = ","
            self._key(key, depth + 1)
            self._parts.append(":")
            self.write(member, depth + 1)
        if self._pretty and value:
            self._line(depth)
        self._parts.append("}")

    def _key(self, key: object, depth: int) -> None:
        if isinstance(key, str):
            if self._pretty:
                self._line(depth)
            self._parts.append(self._quote(key))
        elif self._strict:
            text = str(key) if isinstance(key, int) else dumps(key, strict=True).decode()
            self._parts.append(self._quote(text))
        else:
            self.write(key, depth)

    def _items(self, value: list[object] | tuple[object, ...], depth: int, lines: bool) -> None:
        self._parts.append("[")
        comma = ""
        for item in value:
            self._parts.append(comma)
            comma = ","
            if lines:
                self._line(depth + 1)
            self.write(item, depth + 1)
        if lines and value:
            self._line(depth)
        self._parts.append("]")

    def _line(self, depth: int) -> None:
        self._parts.append("\n" + "\t" * depth)


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


def _is_mixed(value: Mapping[Any, object]) -> bool:
    return len({type(key) for key in value}) > 1


def _double(value: float) -> str:
    text = java_double(value)
    return text if text[-1].isdecimal() else "null"


def _check_depth(value: object) -> None:
    level = [value]
    depth = 0
    while level:
        inner: list[object] = []
        for container in level:
            members: Iterable[object] = ()
            if isinstance(container, dict):
                members = container.values()
            elif isinstance(container, list):
                members = container
            else:
                continue
            inner += [item for item in members if isinstance(item, dict | list)]
        if any(isinstance(container, dict | list) for container in level):
            depth += 1
        if depth > DEPTH_MAX:
            raise FastjsonDecodeError(f"nesting deeper than {DEPTH_MAX}", 0)
        level = inner


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_STRICT: Final = json.JSONDecoder(strict=False, parse_constant=_no_constant)
