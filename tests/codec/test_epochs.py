"""``epochFileCheckpoint`` of 5.x, and what Java would silently take for an empty one."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec.epochs import Epoch, decode_epochs, encode_epochs
from rmqpy.codec.errors import InvalidRecordError

WRITTEN_BY_JAVA = b"3\n2101452092\n0-0\n1-341158\n2-347858\n"
"""The file of a broker of 5.3.3 after two elections."""


def test_a_file_written_by_java_is_read_and_written_to_the_byte() -> None:
    epochs = (Epoch(0, 0), Epoch(1, 341158), Epoch(2, 347858))
    assert decode_epochs(WRITTEN_BY_JAVA) == epochs
    assert encode_epochs(epochs) == WRITTEN_BY_JAVA


STEPS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1 << 40)), max_size=20)


@given(STEPS)
def test_what_is_encoded_is_decoded(steps: list[tuple[int, int]]) -> None:
    numbers = accumulate(number for number, _ in steps)
    offsets = accumulate(length for _, length in steps)
    epochs = tuple(map(Epoch, numbers, offsets))
    assert decode_epochs(encode_epochs(epochs)) == epochs


@given(st.integers(0, len(WRITTEN_BY_JAVA) - 1), st.integers(0, 7))
def test_a_flipped_bit_never_gives_other_epochs(position: int, bit: int) -> None:
    data = bytearray(WRITTEN_BY_JAVA)
    data[position] ^= 1 << bit
    try:
        found = decode_epochs(bytes(data))
    except InvalidRecordError:
        return
    assert found == decode_epochs(WRITTEN_BY_JAVA)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1\n",
        b"x\n0\n0-0\n",
        b"2\n0\n0-0\n",
        b"1\n7\n0-0\n",
        b"1\n0\n0-\n",
        b"1\n0\n0-0-0\n",
        b"2\n0\n1-0\n1-9\n",
        b"2\n0\n0-9\n1-0\n",
        b"\xff\xfe",
    ],
)
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        decode_epochs(data)


def test_zero_means_that_the_crc_is_not_checked() -> None:
    assert decode_epochs(b"1\n0\n4-100\n") == (Epoch(4, 100),)
