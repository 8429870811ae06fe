"""Tests that C and Python give equal checksums and scans for any bytes (if C is built)."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.codec import backend, hashes, layout, message, scan
from rmqpy.codec.entry import encode_entry_header
from rmqpy.codec.properties import encode_properties
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.message import OutgoingMessage

native = pytest.importorskip(
    "rmqpy.codec.native.binding",
    reason=f"the C core is not built: {backend.reason}",
    exc_type=ImportError,
)

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT", "é"])
VALUES = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x02"), max_size=12)
NUMBERS = st.integers(-5, 99).map(str)
PROPERTIES = st.dictionaries(NAMES, VALUES | NUMBERS, max_size=5).map(encode_properties)


@st.composite
def drafts(draw: st.DrawFn) -> OutgoingMessage:
    born_v6, store_v6 = draw(st.booleans()), draw(st.booleans())
    flags = draw(INT) & ~(BORN_HOST_V6 | STORE_HOST_V6)
    return OutgoingMessage(
        topic=draw(st.text(max_size=20).map(str.encode) | st.binary(max_size=127)),
        queue_id=draw(INT),
        body=draw(st.binary(max_size=200)),
        properties=draw(PROPERTIES | st.binary(max_size=40)),
        flag=draw(INT),
        sys_flag=flags | born_v6 * BORN_HOST_V6 | store_v6 * STORE_HOST_V6,
        born_timestamp_ms=draw(LONG),
        born_host=(draw(_ip(born_v6)), draw(INT)),
        store_host=(draw(_ip(store_v6)), draw(INT)),
        reconsume_times=draw(INT),
        prepared_transaction_offset=draw(LONG),
    )


def _ip(v6: bool) -> st.SearchStrategy[bytes]:
    size = 16 if v6 else 4
    return st.binary(min_size=size, max_size=size)


def assert_same_scan(data: bytes | bytearray, base: int, dledger: bool, limit: int = 4096) -> None:
    for check_crc in (False, True):
        pure, fast = (
            walk(
                memoryview(data),
                base,
                dledger=dledger,
                check_crc=check_crc,
                max_records=limit,
            )
            for walk in (scan.scan_records, native.scan_records)
        )
        assert pure == fast


def crcs_in_c(data: bytes | memoryview) -> tuple[int, int]:
    """Return the CRC by the fastest method of this processor, and by the tables."""
    held = native.ffi.from_buffer("uint8_t[]", data)
    lib = native.lib
    return lib.rmq_crc32(held, len(data)), lib.rmq_crc32_portable(held, len(data))


@given(st.binary(max_size=700), st.integers(0, 20))
def test_crcs_are_equal(data: bytes, start: int) -> None:
    view = memoryview(data)[start:]
    assert crcs_in_c(view) == (hashes.crc32(view),) * 2


def test_crcs_of_every_length_are_equal() -> None:
    data = bytes((n * 7 + n // 251) & 0xFF for n in range(4096))
    for length in [*range(1100), 2047, 2048, 4095, 4096]:
        piece = data[:length]
        assert crcs_in_c(piece) == (hashes.crc32(piece),) * 2, length
        assert native.crc32(piece) == hashes.crc32(piece), length


PIECES = st.sampled_from([*layout.MAGIC_BYTES, b"\xda", b"\xda\xa3\x20", b"\0", bytes(300), b"x"])


@given(st.lists(PIECES, max_size=12).map(b"".join), st.integers(0, 700), st.integers(0, 1400))
def test_magic_places_and_content_ends_are_equal(data: bytes, start: int, stop: int) -> None:
    view = memoryview(data)
    stop = min(stop, len(data))
    found = [scan.magic_places(view, start, stop), native.magic_places(view, start, stop)]
    assert list(found[0]) == list(found[1])
    assert scan.content_end(view, start) == native.content_end(view, start)
    assert scan.content_end(view[:stop]) == native.content_end(view[:stop])


@pytest.mark.slow
@given(st.lists(drafts(), max_size=4), st.data())
@settings(max_examples=300)
def test_scans_are_equal_after_damage(some: list[OutgoingMessage], data: st.DataObject) -> None:
    dledger = data.draw(st.booleans())
    frames: list[bytes] = [bytes(message.encode_message(draft)) for draft in some]
    if dledger:
        places = [
            sum(len(record) + 48 for record in frames[:number]) for number in range(len(frames))
        ]
        frames = [
            encode_entry_header(5 + number, 2, place, len(record)) + record
            for number, (place, record) in enumerate(zip(places, frames, strict=True))
        ]
    raw = bytearray(b"".join(frames) + data.draw(st.sampled_from([b"", bytes(30), b"\xff" * 9])))
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            bit = data.draw(st.integers(0, len(raw) * 8 - 1))
            raw[bit >> 3] ^= 1 << (bit & 7)
    cut = data.draw(st.integers(0, len(raw)))
    assert_same_scan(raw, 0, dledger)
    assert_same_scan(raw[:cut], 0, dledger)
    assert_same_scan(raw, 0, dledger, limit=2)


ONE_LENGTH = [
    f"{first}\x01{value}\x02{second}\x01b b{end}".encode()
    for first, value, second, end in product(
        ["TAGS", "KEYS", "TAG", "\x02AGS"],
        ["aaa", "a\x01a", "a\x02a", "aa"],
        ["KEYS", "TAGS"],
        ["", "\x02"],
    )
]
"""Properties, many of one length, that differ in names, values, or separators."""


@given(st.lists(st.sampled_from(ONE_LENGTH), max_size=12))
@settings(max_examples=300)
def test_scans_of_records_with_properties_of_one_length_are_equal(some: list[bytes]) -> None:
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=0,
        body=b"",
        properties=b"",
        born_timestamp_ms=0,
        born_host=(bytes(4), 0),
        store_host=(bytes(4), 0),
    )
    records = [message.encode_message(evolve(draft, properties=raw)) for raw in some]
    assert_same_scan(b"".join(records) + bytes(64), 0, dledger=False)


CHANGED_BYTES = st.sampled_from([0, 1, 2, 0x53, 0x80]) | st.integers(0, 255)


@given(
    drafts(),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(-60, 100), CHANGED_BYTES)),
    st.data(),
)
@settings(max_examples=300)
def test_scans_of_records_that_differ_in_one_byte_are_equal(
    draft: OutgoingMessage, times: int, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """C takes from the record before what is at the same place."""
    properties = b"\x02".join([draft.properties] * times)
    record = bytes(message.encode_message(evolve(draft, properties=properties)))
    frames = []
    for place, value in [(0, record[0]), *changes]:
        changed = bytearray(record)
        changed[place % len(record)] = value
        frames += [bytes(changed), record]
    tail = bytes(data.draw(st.integers(0, 80)))
    assert_same_scan(b"".join(frames) + tail, 0, dledger=False)
    entries = (
        encode_entry_header(5 + number, 2, number * (len(record) + 48), len(record)) + frame
        for number, frame in enumerate(frames)
    )
    assert_same_scan(b"".join(entries) + tail, 0, dledger=True)


@given(st.binary(max_size=400), st.booleans())
def test_scans_of_noise_are_equal(noise: bytes, dledger: bool) -> None:
    assert_same_scan(noise, 0, dledger)
    assert_same_scan(struct.pack(">iI", len(noise) + 8, 0xDAA320A7) + noise, 7, dledger)


@pytest.mark.parametrize(
    ("name", "node"),
    [("A-classic-killed-v497", "store"), ("C-upgraded-v497", "n0"), ("D-dledger-v497", "n2")],
)
def test_scans_of_golden_stores_are_equal(
    golden: Callable[[str], Path], name: str, node: str
) -> None:
    store = golden(name) / node
    for path in [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]:
        data = path.read_bytes()
        assert_same_scan(data, int(path.name), path.parent.name == "data")
        assert_same_scan(data, 1, path.parent.name == "data", limit=3)
        assert_same_scan(data[:5000], int(path.name), path.parent.name == "data")


@pytest.mark.parametrize("name", ["rmq_sha1_blocks", "rmq_sha1_blocks_portable"])
def test_sha1_of_whole_blocks_is_that_of_hashlib(name: str) -> None:
    lib, ffi = native.lib, native.ffi
    take = getattr(lib, name)
    rng = random.Random(5)
    for length in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 4096):
        data = rng.randbytes(length)
        padded = data + b"\x80" + bytes((55 - length) % 64) + (8 * length).to_bytes(8)
        first = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0]
        state = ffi.new("uint32_t[5]", first)
        for begin in range(0, len(padded), 192):
            piece = padded[begin : begin + 192]
            take(state, ffi.from_buffer("uint8_t[]", piece), len(piece) // 64)
        found = b"".join(word.to_bytes(4) for word in state)
        assert found == hashlib.sha1(data).digest(), length


def test_a_cycle_with_memory_that_c_uses_can_be_collected() -> None:
    """In a process of its own: with the memory of the views themselves, it crashes."""
    program = """
import gc, mmap
from rmqpy.codec.native.binding import memory_of

class Holder: pass

for order in range(8):
    view = memoryview(mmap.mmap(-1, 4096))
    holder = Holder()
    holder.me = holder
    if order & 1: holder.view = view
    holder.kept = {"view": memory_of(view)}
    if order & 2: holder.row = [view, holder]
    if order & 4: holder.table = {"holder": holder, "view": view}
    del holder, view
    gc.collect()
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
