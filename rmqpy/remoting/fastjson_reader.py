"""A tolerant reader of the JSON dialect that fastjson 1.2 reads and writes.

=========================  =========================================================
beyond strict JSON         becomes
=========================  =========================================================
``{0:"a"}``                the key "0"
``{{"topic":"T"}:7}``      an :class:`ObjectKey`
``{a:1}``                  the key "a"
``'text'``                 a string
``[1,2,]``  ``{"a":1,}``   the same without the last comma
``/* … */``  ``// …``      nothing
``12L`` (B, S, F, D)       the number
``undefined`` ``NaN``      None
=========================  =========================================================

Invariants: nesting is bounded by DEPTH_MAX; every error is a FastjsonDecodeError that names the
position; the last of duplicate keys wins.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from rmqpy.model.values import define

DEPTH_MAX: Final = 64
"""The maximum nesting of objects and arrays. The deepest body of the protocol has 6 levels."""

_GAP = re.compile(r"[ \t\r\n\f\b\ufeff]*")
_NUMBER = re.compile(r"(-?[0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?[LSBFD]?")
_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX = re.compile(r"[0-9a-fA-F]+")
_ESCAPES: Final = {
    '"': '"',
    "'": "'",
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "F": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{str(digit): chr(digit) for digit in range(8)},
}
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
    "NaN": None,
}
_NUMBER_CHARS_MAX: Final = 400


class FastjsonDecodeError(ValueError):
    """A text that even fastjson cannot read."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem} at character {position}")
        self.position = position


@define(slots=True, frozen=True)
class ObjectKey:
    """An object that is the key of a map: its members, sorted by name. Nested objects are
    ObjectKeys too.
    """

    members: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, members: dict[str, object]) -> ObjectKey:
        return cls(tuple(sorted((name, _frozen(value)) for name, value in members.items())))

    def as_dict(self) -> dict[str, object]:
        return dict(self.members)


class FastjsonReader:
    """A reader that makes a single pass over one text."""

    __slots__ = ("_depth", "_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def read(self) -> object:
        """Return the one value of the text."""
        value = self._value()
        self._skip_gap()
        if self._position < len(self._text):
            self._fail("text after the value")
        return value

    def _value(self) -> object:
        self._skip_gap()
        char = self._peek()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char in ('"', "'"):
            return self._string(char)
        if char == "-" or char.isdecimal():
            return self._number()
        word = self._name()
        if word not in _WORDS:
            self._position -= len(word)
            self._fail("an unknown word")
        return _WORDS[word]

    def _object(self) -> dict[object, object]:
        self._enter()
        members: dict[object, object] = {}
        while self._more("}"):
            key = self._key()
            self._skip_gap()
            if self._peek() != ":":
                self._fail("no colon after a key")
            self._position += 1
            members[key] = self._value()
            self._separator("}")
        self._leave()
        return members

    def _array(self) -> list[object]:
        self._enter()
        items: list[object] = []
        while self._more("]"):
            items.append(self._value())
            self._separator("]")
        self._leave()
        return items

    def _key(self) -> object:
        char = self._peek()
        if char in ('"', "'"):
            return self._string(char)
        if char in ("{", "["):
            start = self._position
            value = _frozen(self._value())
            if not isinstance(value, ObjectKey):
                raise FastjsonDecodeError("an array as a key", start)
            return value
        if char == "-" or char.isdecimal():
            return str(self._number())
        return self._name()

    def _string(self, quote: str) -> str:
        text = self._text
        start = self._position
        self._position += 1
        parts: list[str] = []
        while True:
            match = _PLAIN[quote].match(text, self._position)
            assert match is not None
            parts.append(match.group())
            self._position = match.end()
            if self._position >= len(text):
                raise FastjsonDecodeError("an unterminated string", start)
            self._position += 1
            if text[self._position - 1] == quote:
                return _joined(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        char = self._peek()
        self._position += 1
        if char == "u":
            return self._coded(4)
        if char == "x":
            return self._coded(2)
        if char not in _ESCAPES:
            self._position -= 1
            self._fail("an unknown escape")
        return _ESCAPES[char]

    def _coded(self, digits: int) -> str:
        code = self._text[self._position : self._position + digits]
        if len(code) != digits or _HEX.fullmatch(code) is None:
            self._fail(f"an escape without its {digits} digits")
        self._position += digits
        return chr(int(code, 16))

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._position)
        if match is None or match.end() - match.start() > _NUMBER_CHARS_MAX:
            self._fail("a bad number")
        self._position = match.end()
        whole, fraction, exponent = match.groups()
        if fraction is None and exponent is None:
            return int(whole)
        return float(f"{whole}{fraction or ''}{exponent or ''}")

    def _name(self) -> str:
        match = _NAME.match(self._text, self._position)
        if match is None:
            self._fail("neither a value nor a name")
        self._position = match.end()
        return match.group()

    def _more(self, end: str) -> bool:
        self._skip_gap()
        if self._peek() == end:
            self._position += 1
            return False
        return True

    def _separator(self, end: str) -> None:
        self._skip_gap()
        char = self._peek()
        if char == ",":
            self._position += 1
        elif char != end:
            self._fail(f"neither a comma nor {end}")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"nesting deeper than {DEPTH_MAX}")
        self._position += 1

    def _leave(self) -> None:
        self._depth -= 1

    def _skip_gap(self) -> None:
        text = self._text
        while True:
            match = _GAP.match(text, self._position)
            assert match is not None
            self._position = match.end()
            if not text.startswith("/", self._position):
                return
            start = self._position
            closing = {"//": "\n", "/*": "*/"}.get(text[start : start + 2])
            if closing is None:
                self._fail("a slash that starts no comment")
            end = text.find(closing, start + 2)
            if end < 0 and closing == "*/":
                self._fail("an unterminated comment")
            self._position = len(text) if end < 0 else end + len(closing)

    def _peek(self) -> str:
        if self._position >= len(self._text):
            self._fail("the text ends early")
        return self._text[self._position]

    def _fail(self, problem: str) -> NoReturn:
        raise FastjsonDecodeError(problem, self._position)


def _frozen(value: object) -> object:
    """Return a hashable form of ``value`` for use in a key."""
    if isinstance(value, dict):
        members: dict[str, object] = {}
        for name, member in value.items():
            if not isinstance(name, str):
                raise FastjsonDecodeError("an object key inside an object key", 0)
            members[name] = member
        return ObjectKey.of(members)
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value


def _joined(parts: list[str]) -> str:
    """Return the string of ``parts``; surrogate pairs from ``\\u`` escapes become one character."""
    text = "".join(parts)
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for part in parts for char in part):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
