"""Tests of the parts of records: equal in C and in Python, and equal to the decoded message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmqpy.codec import backend, columns, scan
from rmqpy.codec.message import decode_message
from rmqpy.codec.properties import decode_properties

STORES = ["A-classic-clean-v497", "A-classic-clean-v533"]


@pytest.fixture(params=STORES)
def view(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> memoryview:
    """Return the first file of a commit log, from its first record to its last."""
    folder = next(golden(request.param).rglob("commitlog"))
    data = min(folder.iterdir()).read_bytes()
    found = scan.scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    return memoryview(data)[: found.end]


def test_parts_are_those_of_the_decoded_messages(view: memoryview) -> None:
    found = backend.scan_records(view, 0, dledger=False, check_crc=False)
    parts = backend.record_parts(view, found.offset, check_crc=True)
    assert parts == columns.record_parts(view, found.offset, check_crc=True)
    assert set(parts.crc_agrees) == {1} and len(parts.body_crc) == len(found) > 50
    bodies = bytes(backend.gather(view, parts.body_position, parts.body_length))
    assert bodies == columns.gather(view, parts.body_position, parts.body_length)
    ends = [0, *accumulate(parts.body_length)]
    for row, offset in enumerate(found.offset):
        message = decode_message(view, offset)
        assert bodies[ends[row] : ends[row + 1]] == message.body
        assert parts.body_crc[row] == message.body_crc
        host = view[parts.born_host_position[row] :][: parts.born_host_length[row]]
        assert (bytes(host[:-4]), int.from_bytes(host[-4:])) == message.born_host
        host = view[parts.store_host_position[row] :][: parts.store_host_length[row]]
        assert (bytes(host[:-4]), int.from_bytes(host[-4:])) == message.store_host
        tags = view[parts.tags_position[row] :][: parts.tags_length[row]]
        assert bytes(tags).decode() == message.properties.get("TAGS", "")


def test_a_flipped_body_does_not_match_its_crc(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    data = bytearray(view)
    pure = columns.record_parts(view, found.offset, check_crc=False)
    data[pure.body_position[3]] ^= 1
    parts = backend.record_parts(memoryview(data), found.offset, check_crc=True)
    assert [row for row, matches in enumerate(parts.crc_agrees) if not matches] == [3]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"a\x01b",
        b"a\x01b\x02c\x01d\x02",
        b"a\x01b\x02a\x01c\x02d\x01e",
        b"\x01b\x02a\x01\x02x\x02q\x01r\x01s",
        "stadt\x01Zürich".encode(),
    ],
)
def test_property_parts_are_those_of_the_decoded_properties(raw: bytes) -> None:
    view = memoryview(b"..." + raw + b"...")
    found = backend.property_parts(view, [3, 3], [len(raw), len(raw)])
    if found is None:
        assert backend.implementation == "pure"
        return
    pairs = [
        (bytes(view[at : at + size]).decode(), bytes(view[value : value + length]).decode())
        for at, size, value, length in zip(
            found.name_position,
            found.name_length,
            found.value_position,
            found.value_length,
            strict=True,
        )
    ]
    count = found.starts[1]
    assert found.starts[2] == 2 * count == len(pairs)
    assert pairs[:count] == pairs[count:] == list(decode_properties(raw).items())


def test_unusual_properties_are_left_to_python() -> None:
    many = b"\x02".join(b"k%d\x01v" % number for number in range(40))
    for raw in (many, "größe\x01v".encode()):
        assert backend.property_parts(memoryview(raw), [0], [len(raw)]) is None


def test_a_walk_ends_at_the_first_frame_at_or_after_the_stop(view: memoryview) -> None:
    found = scan.scan_records(view, 7 << 20, dledger=False, check_crc=False)
    frames = [*found.frame_offset, found.end]
    for stop in (frames[0], frames[1] - 1, frames[1], frames[40] + 1, frames[-2], frames[-2] + 1):
        end, reason = backend.walk_records(view, 7 << 20, stop, dledger=False)
        assert (end, reason) == scan.walk_records(view, 7 << 20, stop, dledger=False)
        assert end == min(frame for frame in frames if frame >= stop)
    after_end = backend.walk_records(view, 7 << 20, frames[-1] + 1, dledger=False)
    assert after_end == (frames[-1], scan.StopReason.END)


def test_equal_parts_have_equal_numbers(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    for places in (
        (found.topic_position, found.topic_length),
        (found.properties_position, found.properties_length),
    ):
        parts = backend.number_parts(view, *places)
        assert parts == scan.dictionary_encode(view, *places)
        texts = [bytes(view[at : at + size]) for at, size in zip(*places, strict=True)]
        assert parts.to_list() == texts
        assert parts.texts == list(dict.fromkeys(texts))
    assert backend.number_parts(view, [], []) == scan.dictionary_encode(view, [], [])


def test_texts_with_colliding_hashes_are_numbered_correctly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = pytest.importorskip("rmqpy.codec.native.binding")
    data, places, sizes = memoryview(b"abcab"), [0, 2, 3], [2, 1, 2]
    number_parts = native.lib.rmq_number_parts

    def with_one_cell(*arguments: Any) -> Any:
        return number_parts(*arguments[:6], 0, *arguments[7:])

    monkeypatch.setattr(native, "lib", SimpleNamespace(rmq_number_parts=with_one_cell))
    parts = native.number_parts(data, places, sizes)
    assert (list(parts.numbers), parts.texts) == ([0, 1, 0], [b"ab", b"c"])


def test_part_views_have_the_layout_of_arrow(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    parts = columns.record_parts(view, found.offset, check_crc=False)
    for places in (
        (parts.body_position, parts.body_length),
        (parts.tags_position, parts.tags_length),
        ([0, 3, 3], [0, 12, 13]),
    ):
        views = bytes(backend.part_views(view, *places))
        assert views == columns.part_views(view, *places)
        for row, (at, size) in enumerate(zip(*places, strict=True)):
            length, inlined, buffer, offset = struct.unpack_from("=i4sii", views, 16 * row)
            assert length == size
            if size <= 12:
                assert views[16 * row + 4 :][:12] == bytes(view[at : at + size]).ljust(12, b"\0")
            else:
                assert (inlined, buffer, offset) == (bytes(view[at : at + 4]), 0, at)


def test_parts_outside_the_view_are_refused() -> None:
    native = pytest.importorskip("rmqpy.codec.native.binding")
    with pytest.raises(AssertionError, match="not within the view"):
        native.part_views(memoryview(b"abc"), [1], [3])


def test_parts_after_an_entry_header_are_found_by_the_shift(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    shifted = [at - 48 for at in found.offset]
    expected = columns.record_parts(view, found.offset, check_crc=True)
    for record_parts in (backend.record_parts, columns.record_parts):
        assert record_parts(view, shifted, check_crc=True, shift=48) == expected
