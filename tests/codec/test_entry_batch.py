"""Runs of entries, read, encoded and decoded in Python and in C, on valid and damaged input."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from typing import Protocol, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, entry_batch
from rmqpy.codec.entry import encode_entry_header, encode_filler_head
from rmqpy.codec.message import encode_message
from rmqpy.model.message import OutgoingMessage


class RunCodec(Protocol):
    """An implementation of the codec of runs."""

    def read_run(
        self, view: memoryview, index: int, position: int, *, count_max: int, size_max: int
    ) -> tuple[entry_batch.RunSpan, bytes] | None: ...

    def encode_run(self, span: entry_batch.RunSpan, data: bytes) -> bytes: ...

    def run_units(
        self, data: memoryview, index: int, position: int
    ) -> tuple[entry_batch.RunSpan, bytes] | None: ...

    def decode_run(
        self, body: bytes, start: int
    ) -> tuple[entry_batch.RunSpan, bytes, bytes, int] | None: ...


class Limits(TypedDict):
    """The limits of a run."""

    count_max: int
    size_max: int


IMPLEMENTATIONS: list[RunCodec] = [entry_batch]
try:
    from rmqpy.codec.native import entry_batch as native_entry_batch
except ImportError:
    pass
else:
    IMPLEMENTATIONS.append(native_entry_batch)

each_codec = pytest.mark.parametrize(
    "codec", IMPLEMENTATIONS, ids=["python", "c"][: len(IMPLEMENTATIONS)]
)
ALL: Limits = {"count_max": 1 << 20, "size_max": 1 << 30}
HOST = (b"\x7f\0\0\1", 10911)


def record(body: bytes) -> bytes:
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=1,
        body=body,
        properties=b"",
        born_timestamp_ms=5,
        born_host=HOST,
        store_host=HOST,
    )
    return bytes(encode_message(draft))


def run_of(bodies: list[bytes], index: int = 7, position: int = 4096, term: int = 3) -> bytes:
    data = b""
    for number, body in enumerate(bodies):
        part = record(body)
        place = position + len(data)
        data += encode_entry_header(index + number, term, place, len(part)) + part
    return data


@each_codec
def test_a_run_is_decoded_as_it_was_encoded(codec: RunCodec) -> None:
    data = run_of([b"", b"a", b"ab", b"abc" * 99])
    found = codec.read_run(memoryview(data + encode_filler_head(64)), 7, 4096, **ALL)
    assert found is not None
    span, read = found
    assert read == data
    text = codec.encode_run(span, data)
    assert (span.first_index, span.count, span.size, span.last_term) == (7, 4, len(data), 3)
    body = b"%b[%b]%b" % (b'{"batch":true,"batchEntry":', text, b',"code":200}')
    decoded = codec.decode_run(body, 27)
    assert decoded is not None
    decoded_span, entries, units, end = decoded
    assert (decoded_span, entries) == (span, data)
    assert len(units) == 4 * 32
    assert body[end:] == b',"code":200}'
    assert codec.run_units(memoryview(data), 7, 4096) == (span, units)


def test_the_text_of_a_run_is_that_of_its_entries() -> None:
    data = run_of([b"hi"])
    found = backend.read_run(memoryview(data), 7, 4096, **ALL)
    assert found is not None
    header = (1, len(data), 7, 3, 4096, 0, 0, 0, len(data) - 48)
    assert backend.encode_run(*found) == entry_batch.entry_text(header, data[48:])


@each_codec
@pytest.mark.parametrize(("count", "size", "expected"), [(2, 1 << 20, 2), (9, 1, 1), (9, 200, 2)])
def test_a_run_ends_at_its_limits(codec: RunCodec, count: int, size: int, expected: int) -> None:
    data = run_of([b"x"] * 4)
    found = codec.read_run(memoryview(data), 7, 4096, count_max=count, size_max=size)
    assert found is not None
    assert found[0].count == expected


@each_codec
@pytest.mark.parametrize("place", [0, 4, 8, 16, 24, 32, 36, 40, 44, 48, 52, 56, 136, 137])
def test_a_damaged_entry_ends_the_run(codec: RunCodec, place: int) -> None:
    """Covers each field of the header, and size, magic, CRC and body of the record."""
    data = bytearray(run_of([b"xy"] * 3))
    second = len(data) // 3
    data[second + min(place, second - 1)] ^= 0x81
    found = codec.read_run(memoryview(data), 7, 4096, **ALL)
    assert found is not None
    assert found[0].count == 1
    assert codec.read_run(memoryview(data)[second:], 8, 4096 + second, **ALL) is None


@each_codec
def test_a_body_length_that_became_0_ends_the_run(codec: RunCodec) -> None:
    """An empty body has no CRC."""
    data = bytearray(run_of([b"x" * 32] * 3))
    second = len(data) // 3
    length = second + 48 + 87
    assert data[length] == 32
    data[length] = 0
    found = codec.read_run(memoryview(data), 7, 4096, **ALL)
    assert found is not None
    assert found[0].count == 1


@each_codec
@pytest.mark.parametrize("place", [0, 4, 8, 16, 24, 32, 36, 40, 44])
def test_units_are_those_of_consecutive_entries_only(codec: RunCodec, place: int) -> None:
    """Covers each field of the header of an entry."""
    data = run_of([b"xy"] * 3)
    size = len(data) // 3
    assert codec.run_units(memoryview(data), 7, 4096) is not None
    for index, position in ((8, 4096), (7, 4095), (10**18, 4096), (7, 10**18)):
        assert codec.run_units(memoryview(data), index, position) is None
    assert codec.run_units(memoryview(data)[:-1], 7, 4096) is None
    assert codec.run_units(memoryview(b""), 7, 4096) is None
    for entry in range(3):
        damaged = bytearray(data)
        damaged[entry * size + place] ^= 0x81
        assert codec.run_units(memoryview(damaged), 7, 4096) is None


@each_codec
def test_terms_in_a_run_do_not_decrease(codec: RunCodec) -> None:
    data = run_of([b"x"], term=3)
    data += run_of([b"x"], index=8, position=4096 + len(data), term=2)
    assert codec.run_units(memoryview(data), 7, 4096) is None
    found = codec.read_run(memoryview(data), 7, 4096, **ALL)
    assert found is not None
    assert found[0].count == 1


def list_of(*items: bytes) -> bytes:
    return b"[%b]" % b",".join(items)


GOOD = (
    b'{"body":"aGk=","bodyCrc":0,"chainCrc":0,"channel":0,"index":2,"magic":1,"pos":100,'
    b'"size":50,"term":3}'
)
NEXT = GOOD.replace(b'"index":2', b'"index":3').replace(b'"pos":100', b'"pos":150')


@each_codec
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"[",
        GOOD,
        b"[" + GOOD,
        list_of(GOOD)[:-1] + b",]",
        list_of(GOOD, GOOD),
        list_of(NEXT, GOOD),
        list_of(GOOD, NEXT.replace(b'"term":3', b'"term":2')),
        list_of(GOOD.replace(b"aGk=", b"aGl=")),
        list_of(GOOD.replace(b"aGk=", b"aGk")),
        list_of(GOOD.replace(b"aGk=", b"aGk==")),
        list_of(GOOD.replace(b"aGk=", b"a=k=")),
        list_of(GOOD.replace(b"aGk=", b"aG-=")),
        list_of(GOOD.replace(b"aGk=", b"aGk=\\")),
        list_of(GOOD.replace(b"aGk=", b"")),
        list_of(GOOD.replace(b'"size":50', b'"size":49')),
        list_of(GOOD.replace(b'"size":50', b'"size":050')),
        list_of(GOOD.replace(b'"size":50', b'"size":"50"')),
        list_of(GOOD.replace(b'"index":2', b'"index":-2')),
        list_of(GOOD.replace(b'"index":2', b'"index":')),
        list_of(GOOD.replace(b'"index":2', b'"index":1234567890123456789')),
        list_of(GOOD.replace(b'"magic":1', b'"magic":2')),
        list_of(GOOD.replace(b'"channel":0', b'"channel":1')),
        list_of(GOOD.replace(b",", b", ")),
    ],
)
def test_an_invalid_run_is_not_decoded(codec: RunCodec, text: bytes) -> None:
    assert codec.decode_run(text, 0) is None


@each_codec
def test_bodies_of_every_length_are_decoded_as_they_were_encoded(codec: RunCodec) -> None:
    for length in range(70):
        body = bytes(range(200, 200 + min(length, 50))) + bytes(max(0, length - 50))
        found = codec.read_run(memoryview(run_of([body])), 7, 4096, **ALL)
        assert found is not None
        decoded = codec.decode_run(b"[" + codec.encode_run(*found) + b"]", 0)
        assert decoded is not None
        assert decoded[1] == run_of([body])


def assert_same(call: Callable[[RunCodec], object]) -> None:
    results = [call(codec) for codec in IMPLEMENTATIONS]
    assert all(result == results[0] for result in results)


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=5), st.data())
def test_both_codecs_agree_on_damaged_runs(bodies: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(run_of(bodies))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=2)):
        raw[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    limits: Limits = {
        "count_max": data.draw(st.integers(1, 6)),
        "size_max": data.draw(st.integers(1, 900)),
    }
    view = memoryview(raw)[:cut] if data.draw(st.booleans()) else memoryview(raw)
    assert_same(lambda codec: codec.read_run(view, 7, 4096, **limits))
    assert_same(lambda codec: codec.run_units(view, 7, 4096))
    good = entry_batch.read_run(memoryview(run_of(bodies)), 7, 4096, **ALL)
    assert good is not None
    assert_same(lambda codec: codec.encode_run(*good))
    text = bytearray(b"[" + entry_batch.encode_run(*good) + b"]")
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=2)):
        text[place] = data.draw(st.sampled_from(b'"\\=+/A,:{}[]0189 -e\x00\xff'))
    sent = bytes(text[: data.draw(st.integers(0, len(text)))]) if data.draw(st.booleans()) else text
    assert_same(lambda codec: codec.decode_run(bytes(sent), 0))


@given(st.binary(max_size=300), st.integers(0, 20))
def test_both_codecs_agree_on_noise(noise: bytes, start: int) -> None:
    assert_same(lambda codec: codec.decode_run(noise, start))
    assert_same(lambda codec: codec.read_run(memoryview(noise), 0, 0, **ALL))
    assert_same(lambda codec: codec.run_units(memoryview(noise), 0, 0))


def test_both_codecs_agree_on_every_byte_of_a_body() -> None:
    """The text is long enough to be read in blocks of sixteen bytes."""
    good = entry_batch.read_run(memoryview(run_of([bytes(range(160, 187))])), 7, 4096, **ALL)
    assert good is not None
    text = bytearray(b"[" + entry_batch.encode_run(*good) + b"]")
    start = len('[{"body":"')
    for place in range(start, start + 40):
        original = text[place]
        for value in range(256):
            text[place] = value
            assert_same(lambda codec: codec.decode_run(bytes(text), 0))
        text[place] = original


@given(st.binary(max_size=200))
def test_random_bodies_are_decoded_as_they_were_encoded(body: bytes) -> None:
    for codec in IMPLEMENTATIONS:
        found = codec.read_run(memoryview(run_of([body])), 7, 4096, **ALL)
        assert found is not None
        text = codec.encode_run(*found)
        assert b2a_base64(run_of([body])[48:], newline=False) in text
        decoded = codec.decode_run(b"[" + text + b"]", 0)
        assert decoded is not None
        assert decoded[1] == run_of([body])
