"""Batch pushes in binary: their bytes, and everything that is refused."""

from __future__ import annotations

from contextlib import suppress
from struct import pack

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec.backend import run_units
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.protocol.json_bodies import decode_request, decode_response, encode_answer
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    Entry,
    PushEntryRequest,
    PushEntryResponse,
)
from rmqpy.dledger.protocol.push_binary import member_names, write_run
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import Term

CODE = RequestCode.RMQPY_PUSH_RUN
ENTRIES = (Entry.of(7, 3, 100, b"hi"), Entry.of(8, 4, 150, b""))
DATA = b"".join(entry.encode_header() + bytes(entry.body) for entry in ENTRIES)
NAMES = b"\x01g\x02n0\x02n1"
HEAD = pack(">4siqqqii", b"RDP1", len(NAMES), 4, 6, 7, 2, len(DATA))


def push_of(data: bytes = DATA, index: int = 7, position: int = 100) -> PushEntryRequest:
    found = run_units(memoryview(data), index, position)
    assert found is not None
    span, units = found
    return PushEntryRequest(
        group="g",
        remote_id="n1",
        local_id="n0",
        leader_id="n0",
        term=Term(4),
        commit_index=6,
        entries=EntryRun(span, data, units),
        batch=True,
    )


def test_the_bytes_of_a_push_are_those_of_the_documentation() -> None:
    pieces = write_run(push_of())
    assert pieces is not None
    assert b"".join(pieces) == HEAD + NAMES + DATA
    decoded = decode_request(CODE, HEAD + NAMES + DATA)
    assert decoded == evolve(push_of(), entries=ENTRIES)
    assert isinstance(decoded, PushEntryRequest)
    assert isinstance(decoded.entries, EntryRun)
    assert decoded.entries.units == push_of().entries.units  # type: ignore[attr-defined]


def test_the_bytes_of_an_answer_are_those_of_the_documentation() -> None:
    answer = PushEntryResponse(term=Term(4), index=7, begin_index=1, end_index=8, count=2)
    body = pack(">4siqqqqi", b"RDA1", 200, 4, 7, 1, 8, 2)
    assert encode_answer(CODE, answer) == body
    assert decode_response(PushEntryRequest, body) == answer
    refusal = PushEntryResponse(code=DLedgerResponseCode.UNEXPECTED_MEMBER)
    assert decode_response(PushEntryRequest, encode_answer(CODE, refusal)) == refusal


def test_only_a_batch_of_one_run_with_short_names_is_sent_in_binary() -> None:
    push = push_of()
    assert write_run(evolve(push, entries=ENTRIES)) is None
    assert write_run(evolve(push, batch=False)) is None
    assert write_run(evolve(push, group=None)) is None
    assert write_run(evolve(push, group="g" * 256)) is None
    longest = write_run(evolve(push, group="g" * 255))
    assert longest is not None
    assert decode_request(CODE, b"".join(longest)).group == "g" * 255
    assert member_names("größe", "n0", "n1") == b"\x07gr\xc3\xb6\xc3\x9fe\x02n0\x02n1"


@pytest.mark.parametrize("place", [*range(8), *range(24, 40), 40, 42, 45])
def test_a_push_with_a_wrong_head_is_refused(place: int) -> None:
    """Term and committed index may have any value here; the core examines them."""
    body = bytearray(HEAD + NAMES + DATA)
    body[place] ^= 0x81
    with pytest.raises(RemoteProtocolError, match="a binary push: "):
        decode_request(CODE, bytes(body))


@pytest.mark.parametrize("end", range(len(HEAD + NAMES + DATA)))
def test_a_push_that_is_cut_is_refused(end: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(CODE, (HEAD + NAMES + DATA)[:end])


@pytest.mark.parametrize(
    "names",
    [
        b"",
        b"\0\0",
        b"\x01g\x02n0\x03n1",
        b"\x01g\x02n0\x02n1x",
        b"\x01\xff\x02n0\x02n1",
        b"\xff" * 9,
    ],
)
def test_invalid_names_are_refused(names: bytes) -> None:
    head = pack(">4siqqqii", b"RDP1", len(names), 4, 6, 7, 2, len(DATA))
    with pytest.raises(RemoteProtocolError, match="names"):
        decode_request(CODE, head + names + DATA)


def test_a_push_without_entries_is_refused() -> None:
    head = pack(">4siqqqii", b"RDP1", len(NAMES), 4, 6, 7, 0, 0)
    with pytest.raises(RemoteProtocolError):
        decode_request(CODE, head + NAMES)


@given(st.binary(max_size=80))
def test_random_bytes_give_a_message_or_a_protocol_error(noise: bytes) -> None:
    for body in (noise, HEAD + noise, HEAD + NAMES + noise, b"RDA1" + noise):
        with suppress(RemoteProtocolError):
            decode_request(CODE, body)
        with suppress(RemoteProtocolError):
            decode_response(PushEntryRequest, body)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.integers(0, 1 << 40))
def test_pushes_are_decoded_as_they_were_encoded(bodies: list[bytes], position: int) -> None:
    data = b""
    for number, body in enumerate(bodies):
        entry = Entry.of(7 + number, 4, position + len(data), body)
        data += entry.encode_header() + body
    push = push_of(data, 7, position)
    pieces = write_run(push)
    assert pieces is not None
    assert decode_request(CODE, b"".join(pieces)) == push
