"""Properties files; properties_vectors.json has the results of java.util.Properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.config.properties_file import (
    Property,
    decode_properties_bytes,
    format_properties,
    parse_properties,
)
from rmqpy.model.errors import ConfigError


class Vector(TypedDict):
    """A text, and the properties that Java read from it."""

    text: str
    parsed: dict[str, str]


VECTORS: list[Vector] = json.loads((Path(__file__).parent / "properties_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=[repr(each["text"]) for each in VECTORS])
def test_a_text_is_parsed_as_by_java(vector: Vector) -> None:
    parsed = parse_properties(vector["text"])
    assert {item.key: item.value for item in parsed} == vector["parsed"]


def test_line_numbers_are_those_of_the_first_natural_line() -> None:
    text = "# head\r\na=1\\\r\n  2\r\n\r\n  b = 3\nb=4"
    assert parse_properties(text) == [
        Property("a", "12", 2),
        Property("b", "3", 5),
        Property("b", "4", 6),
    ]


def test_a_key_may_be_empty() -> None:
    assert parse_properties("=nokey\n:") == [Property("", "nokey", 1), Property("", "", 2)]


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\u12G4", "\n\\u+123=x", "\nb=\\u"])
def test_a_malformed_unicode_escape_is_refused_with_file_and_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf:2: .*four hexadecimal digits"):
        parse_properties(text, "broker.conf")


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_properties("a=\\uD83D\\uDE00") == [Property("a", "\U0001f600", 1)]
    assert format_properties({"a": "\U0001f600"}) == "a=\\uD83D\\uDE00\n"


def test_bytes_are_utf_8_or_latin_1() -> None:
    assert decode_properties_bytes("a=é".encode()) == "a=é"
    assert decode_properties_bytes("a=é".encode("latin-1")) == "a=é"
    assert decode_properties_bytes(b"\xef\xbb\xbfa=1") == "a=1"


def test_special_characters_are_escaped() -> None:
    written = format_properties({" a:b=c#!": " \t x = y\\z\né#", "plain": "1s 5s;a=b"})
    assert written == "\\ a\\:b\\=c#!=\\ \\t x = y\\\\z\\n\\u00E9#\nplain=1s 5s;a=b\n"


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_formatted_properties_can_be_parsed(values: dict[str, str]) -> None:
    read = parse_properties(format_properties(values))
    assert {item.key: item.value for item in read} == values
    assert [item.line for item in read] == list(range(1, len(values) + 1))
