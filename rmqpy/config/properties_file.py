"""The format of Java ``.properties`` files (java.util.Properties), read with line numbers.

=============  ==================================================================================
logical line   natural lines joined where one ends in an odd number of backslashes; white space at
               the start of the joined line is dropped; a comment line is never continued
comment        first character that is not white space is ``#`` or ``!``
key            up to the first unescaped ``=``, ``:`` or white space
separator      white space, then at most one ``=`` or ``:``, then white space
value          the rest, trailing white space included
escapes        ``\\t \\n \\r \\f``, ``\\uXXXX`` (UTF-16 units), any other character: itself
=============  ==================================================================================

White space is blank, tab and form feed. Java reads files as ISO-8859-1, but many existing files are
UTF-8, so a file that is valid UTF-8 is read as such and any other as ISO-8859-1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rmqpy.model.errors import ConfigError
from rmqpy.model.values import define

_WHITE = " \t\f"
_SEPARATORS = "=:"
_NEWLINE = re.compile(r"\r\n|\n|\r")
_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_HEX = frozenset("0123456789abcdefABCDEF")
_KEY = re.compile(r"(?:\\.?|[^\\=: \t\f])*", re.DOTALL)
_PLAIN_KEY = re.compile(r"(?![#!])[!-9;<>-\[\]-~]*")
_PLAIN_VALUE = re.compile(r"(?! )[ -\[\]-~]*")
"""What is written without escapes: nearly every key and value."""


@define(frozen=True)
class Property:
    """An assignment. ``line`` is the number of its first natural line, from 1."""

    key: str
    value: str
    line: int


def decode_properties_bytes(raw: bytes) -> str:
    """Return the text of a properties file in either encoding; a byte order mark is dropped."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("iso-8859-1")


def parse_properties(text: str, source: str = "properties") -> list[Property]:
    """Return every assignment in file order, repeated keys included (in Java the last one wins).

    ``source`` names the text in the :class:`ConfigError` of a malformed ``\\uXXXX``.
    """
    found: list[Property] = []
    lines = _NEWLINE.split(text)
    number = 0
    while number < len(lines):
        first = number
        line = lines[number].lstrip(_WHITE)
        number += 1
        if not line or line[0] in "#!":
            continue
        pieces: list[str] = []
        while _is_continued(line):
            pieces.append(line[:-1])
            if number == len(lines):
                line = ""
                break
            line = lines[number].lstrip(_WHITE)
            number += 1
        pieces.append(line)
        raw_key, raw_value = _split("".join(pieces))
        where = f"{source}:{first + 1}"
        found.append(Property(_unescape(raw_key, where), _unescape(raw_value, where), first + 1))
    return found


def format_properties(values: Mapping[str, str]) -> str:
    """Return a text that :func:`parse_properties` and Java read back as ``values``."""
    return "".join(f"{_escape(key, True)}={_escape(values[key], False)}\n" for key in values)


def _is_continued(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _split(logical: str) -> tuple[str, str]:
    key = _KEY.match(logical)
    assert key is not None, "it matches an empty text, too"
    rest = logical[key.end() :].lstrip(_WHITE)
    if rest and rest[0] in _SEPARATORS:
        rest = rest[1:].lstrip(_WHITE)
    return key[0], rest


def _unescape(raw: str, where: str) -> str:
    if "\\" not in raw:
        return raw
    out: list[str] = []
    at = 0
    while at < len(raw):
        if raw[at] != "\\" or at + 1 == len(raw):
            out.append(raw[at])
            at += 1
        elif raw[at + 1] == "u":
            digits = raw[at + 2 : at + 6]
            if len(digits) != 4 or not _HEX.issuperset(digits):
                raise ConfigError(
                    f"{where}: '\\u{digits}' is not an escape; write \\u and"
                    " four hexadecimal digits, or \\\\ for a backslash"
                )
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            out.append(_SIMPLE_ESCAPES.get(raw[at + 1], raw[at + 1]))
            at += 2
    return _join_surrogates("".join(out))


def _join_surrogates(text: str) -> str:
    # Java writes characters beyond U+FFFF as two \uXXXX; an unpaired surrogate is kept.
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _escape(text: str, is_key: bool) -> str:
    if (_PLAIN_KEY if is_key else _PLAIN_VALUE).fullmatch(text):
        return text
    out: list[str] = []
    for position, char in enumerate(text):
        if char in _WRITTEN_ESCAPES:
            out.append(_WRITTEN_ESCAPES[char])
        elif char == " " and (is_key or position == 0):
            out.append("\\ ")
        elif is_key and (char in _SEPARATORS or (position == 0 and char in "#!")):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2)]
    return "".join(out)
