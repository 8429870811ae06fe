"""Parts of records: the same in C and in Python, and the same as a whole message tells."""

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
    """The first file of a commit log, from its first record to its last."""
    folder = next(golden(request.param).rglob("commitlog"))
    data = min(folder.iterdir()).read_bytes()
    found = scan.scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    return memoryview(data)[: found.end]


def test_parts_are_those_of_the_messages(view: memoryview) -> None:
    found = backend.scan_records(view, 0, dledger=False, check_crc=False)
    told = backend.record_parts(view, found.offset, check_crc=True)
    assert told == columns.record_parts(view, found.offset, check_crc=True)
    assert set(told.crc_agrees) == {1} and len(told.body_crc) == len(found) > 50
    bodies = bytes(backend.gather(view, told.body_position, told.body_length))
    assert bodies == columns.gather(view, told.body_position, told.body_length)
    ends = [0, *accumulate(told.body_length)]
    for row, offset in enumerate(found.offset):
        message = decode_message(view, offset)
        assert bodies[ends[row] : ends[row + 1]] == message.body
        assert told.body_crc[row] == message.body_crc
        host = view[told.born_host_position[row] :][: told.born_host_length[row]]
        assert (bytes(host[:-4]), int.from_bytes(host[-4:])) == message.born_host
        host = view[told.store_host_position[row] :][: told.store_host_length[row]]
        assert (bytes(host[:-4]), int.from_bytes(host[-4:])) == message.store_host
        tags = view[told.tags_position[row] :][: told.tags_length[row]]
        assert bytes(tags).decode() == message.properties.get("TAGS", "")


def test_a_flipped_body_does_not_agree(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    data = bytearray(view)
    places = columns.record_parts(view, found.offset, check_crc=False)
    data[places.body_position[3]] ^= 1
    told = backend.record_parts(memoryview(data), found.offset, check_crc=True)
    assert [row for row, agrees in enumerate(told.crc_agrees) if not agrees] == [3]


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
def test_properties_are_those_of_the_string(raw: bytes) -> None:
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


def test_what_is_not_for_c() -> None:
    many = b"\x02".join(b"k%d\x01v" % number for number in range(40))
    for raw in (many, "größe\x01v".encode()):
        assert backend.property_parts(memoryview(raw), [0], [len(raw)]) is None


def test_a_walk_ends_at_the_first_frame_from_there(view: memoryview) -> None:
    found = scan.scan_records(view, 7 << 20, dledger=False, check_crc=False)
    frames = [*found.frame_offset, found.end]
    for stop in (frames[0], frames[1] - 1, frames[1], frames[40] + 1, frames[-2], frames[-2] + 1):
        end, why = backend.walk_records(view, 7 << 20, stop, dledger=False)
        assert (end, why) == scan.walk_records(view, 7 << 20, stop, dledger=False)
        assert end == min(frame for frame in frames if frame >= stop)
    behind = backend.walk_records(view, 7 << 20, frames[-1] + 1, dledger=False)
    assert behind == (frames[-1], scan.StopReason.END)


def test_equal_parts_have_equal_numbers(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    for places in (
        (found.topic_position, found.topic_length),
        (found.properties_position, found.properties_length),
    ):
        told = backend.number_parts(view, *places)
        assert told == scan.dictionary_encode(view, *places)
        wanted = [bytes(view[at : at + size]) for at, size in zip(*places, strict=True)]
        assert told.to_list() == wanted
        assert told.texts == list(dict.fromkeys(wanted))
    assert backend.number_parts(view, [], []) == scan.dictionary_encode(view, [], [])


def test_texts_made_to_fall_together_are_numbered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = pytest.importorskip("rmqpy.codec.native.binding")
    data, places, sizes = memoryview(b"abcab"), [0, 2, 3], [2, 1, 2]
    given_up = native.lib.rmq_number_parts

    def in_one_place(*arguments: Any) -> Any:
        return given_up(*arguments[:6], 0, *arguments[7:])

    monkeypatch.setattr(native, "lib", SimpleNamespace(rmq_number_parts=in_one_place))
    told = native.number_parts(data, places, sizes)
    assert (list(told.numbers), told.texts) == ([0, 1, 0], [b"ab", b"c"])


def test_views_are_those_of_arrow(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    told = columns.record_parts(view, found.offset, check_crc=False)
    for places in (
        (told.body_position, told.body_length),
        (told.tags_position, told.tags_length),
        ([0, 3, 3], [0, 12, 13]),
    ):
        made = bytes(backend.part_views(view, *places))
        assert made == columns.part_views(view, *places)
        for row, (at, size) in enumerate(zip(*places, strict=True)):
            length, inlined, buffer, offset = struct.unpack_from("=i4sii", made, 16 * row)
            assert length == size
            if size <= 12:
                assert made[16 * row + 4 :][:12] == bytes(view[at : at + size]).ljust(12, b"\0")
            else:
                assert (inlined, buffer, offset) == (bytes(view[at : at + 4]), 0, at)


def test_parts_outside_of_the_view_are_refused() -> None:
    native = pytest.importorskip("rmqpy.codec.native.binding")
    with pytest.raises(AssertionError, match="not within the view"):
        native.part_views(memoryview(b"abc"), [1], [3])


def test_parts_behind_a_header(view: memoryview) -> None:
    found = scan.scan_records(view, 0, dledger=False, check_crc=False)
    shifted = [at - 48 for at in found.offset]
    wanted = columns.record_parts(view, found.offset, check_crc=True)
    for record_parts in (backend.record_parts, columns.record_parts):
        assert record_parts(view, shifted, check_crc=True, shift=48) == wanted
