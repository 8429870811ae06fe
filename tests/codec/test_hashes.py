"""Tests of Java's String.hashCode, its UTF-8 decoding, and the masked CRC."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, hashes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_the_hash_is_that_of_java(text: str, value: int) -> None:
    assert hashes.java_string_hash(text) == value
    assert hashes.java_hash_of_bytes(text.encode()) == value


@given(st.text(max_size=300) | st.text(alphabet="aZ#\u00ff", min_size=120, max_size=700))
def test_the_hash_is_the_weighted_sum_of_utf_16_units(text: str) -> None:
    expected = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        expected = (expected * 31 + (high << 8 | low)) & 0xFFFFFFFF
    assert hashes.java_string_hash(text) & 0xFFFFFFFF == expected


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xc3\xa9", "\u00e9"),
        (b"\xff", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_malformed_utf8_is_replaced_as_in_java(raw: bytes, text: str) -> None:
    assert hashes.java_text(raw) == text


@given(st.binary(max_size=2000))
def test_the_crc_is_masked_to_31_bits(data: bytes) -> None:
    expected = zlib.crc32(data) & 0x7FFFFFFF
    assert hashes.crc32(data) == backend.crc32(data) == expected
    assert backend.crc32(memoryview(data)) == expected


def test_the_crc_of_known_texts() -> None:
    assert hashes.crc32(b"hello") == 0x3610A686
    assert hashes.crc32(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
