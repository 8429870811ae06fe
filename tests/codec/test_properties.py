"""Tests of the property string: decoding as in Java, encoding, and the check of its end."""

from __future__ import annotations

import pytest

from rmqpy.codec import properties


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"TAGS\x01TagA", {"TAGS": "TagA"}),
        (b"TAGS\x01TagA\x02", {"TAGS": "TagA"}),
        (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
        (b"a\x011\x02a\x012", {"a": "2"}),
        (b"a\x01\x02b\x012", {"b": "2"}),
        (b"\x011\x02b\x012", {"b": "2"}),
        (b"a\x01x\x01y", {"a": "x\x01y"}),
        (b"a\x01\x01", {"a": "\x01"}),
        (b"\x02\x02a\x01\xc3\xa9\x02", {"a": "é"}),
        (b"noseparator", {}),
        (b"a\x01\xff", {"a": "\ufffd"}),
    ],
)
def test_properties_are_decoded_as_in_java(raw: bytes, expected: dict[str, str]) -> None:
    assert properties.decode_properties(raw) == expected


def test_no_trailing_separator_is_encoded() -> None:
    assert properties.encode_properties({"KEYS": "a b", "TAGS": "é"}) == (
        b"KEYS\x01a b\x02TAGS\x01\xc3\xa9"
    )
    assert properties.encode_properties({}) == b""


@pytest.mark.parametrize("pair", [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "v\x02w")])
def test_properties_that_would_be_decoded_differently_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        properties.encode_properties(dict([pair]))


@pytest.mark.parametrize(
    ("raw", "is_whole"),
    [
        (b"", True),
        (b"a\x01b", True),
        (b"a\x01b\x02", True),
        (b"a\x01\x00b", True),
        (b"a\x01\x00", False),
        (b"\x00\x00\x00", False),
        (b"a\x01\xc3", False),
    ],
)
def test_truncated_properties_are_not_whole(raw: bytes, is_whole: bool) -> None:
    assert properties.is_whole(raw) is is_whole
