"""The property string: Java's reading of it, and what counts as sound."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from rmqpy.codec import properties

TEXT = st.text(alphabet="aKEYS\x01\x02é", max_size=12)


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
def test_decode(raw: bytes, expected: dict[str, str]) -> None:
    assert properties.decode_properties(raw) == expected


def test_encode_writes_no_trailing_separator() -> None:
    assert properties.encode_properties({"KEYS": "a b", "TAGS": "é"}) == (
        b"KEYS\x01a b\x02TAGS\x01\xc3\xa9"
    )
    assert properties.encode_properties({}) == b""


@pytest.mark.parametrize("pair", [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "v\x02w")])
def test_encode_refuses_what_reads_back_differently(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="property"):
        properties.encode_properties(dict([pair]))


@pytest.mark.parametrize(
    ("raw", "whole"),
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
def test_is_whole(raw: bytes, whole: bool) -> None:
    assert properties.is_whole(raw) is whole
