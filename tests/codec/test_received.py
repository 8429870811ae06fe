"""The records of a response: both implementations find what ``decode_message`` finds."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

import pytest
from attrs import astuple
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, received
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message, encode_message, topic_and_properties
from rmqpy.codec.received import ReceivedRecords, decode_records
from rmqpy.model.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rmqpy.model.message import OutgoingMessage

V4 = ip_address("10.0.0.1").packed, 1234
V6 = ip_address("fe80::1").packed, 1234
READERS = received.received_records, backend.received_records
Reader = Callable[[bytes], tuple[ReceivedRecords, InvalidRecordError | None]]


def record(
    topic: bytes = b"T", body: bytes = b"hello", properties: bytes = b"TAGS\x01a", sys_flag: int = 0
) -> bytes:
    draft = OutgoingMessage(
        topic=topic,
        queue_id=1,
        body=body,
        properties=properties,
        sys_flag=sys_flag,
        born_timestamp_ms=1_600_000_000_000,
        born_host=V6 if sys_flag & BORN_HOST_V6 else V4,
        store_host=V6 if sys_flag & STORE_HOST_V6 else V4,
    )
    return bytes(encode_message(draft))


def outcome(read: Reader, data: bytes) -> tuple[tuple[object, ...], str]:
    found, fault = read(data)
    return astuple(found), str(fault)


def outcome_of_decoding(data: bytes) -> tuple[tuple[object, ...], str]:
    """Return the same from records that are decoded completely."""
    decoded, fault = decode_records(data)
    records, position = [], 0
    for each in decoded:
        records.append(data[position : position + each.size])
        position += each.size
    columns = (
        records,
        [each.queue_offset for each in decoded],
        [each.sys_flag & COMPRESSED for each in decoded],
        [each.body for each in decoded],
    )
    return columns, str(fault)


@pytest.mark.parametrize("read", READERS)
@given(
    st.binary(max_size=127),
    st.binary(max_size=300),
    st.binary(max_size=600),
    st.sampled_from([0, 1, 8, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
)
def test_the_columns_are_those_of_the_decoded_records(
    read: Reader, topic: bytes, body: bytes, properties: bytes, sys_flag: int
) -> None:
    whole = record(topic, body, properties, sys_flag)
    assert outcome(read, whole + whole) == outcome_of_decoding(whole + whole)
    assert read(whole)[0].bodies == [body]
    expected = decode_message(whole)
    assert topic_and_properties(whole) == (expected.topic, expected.properties)


@given(st.data())
def test_both_implementations_refuse_what_the_decoder_refuses(data: st.DataObject) -> None:
    raw = bytearray(record(sys_flag=data.draw(st.sampled_from([0, BORN_HOST_V6]))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([*range(8), *range(36, 40), *range(84, len(raw))]))
        raw[place] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=3)))
    expected = outcome_of_decoding(damaged)
    for read in READERS:
        assert outcome(read, damaged) == expected


@given(st.data())
def test_both_implementations_find_the_same_in_many_records(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([0, 0, 0, 9, BORN_HOST_V6]), min_size=1, max_size=5))
    count = data.draw(st.sampled_from([1, 1, 1, 63, 64, 65]))
    raw = bytearray(b"".join(record(sys_flag=kind) for kind in kinds) * count)
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(raw[: len(raw) - data.draw(st.integers(0, 12))])
    expected = outcome_of_decoding(cut)
    for read in READERS:
        assert outcome(read, cut) == expected


def test_records_of_version_2_are_found() -> None:
    old = record()
    topic = old.index(b"\x01T")
    new = (len(old) + 1).to_bytes(4) + b"\xda\xa3\x20\xab" + old[8:topic] + b"\x00" + old[topic:]
    assert decode_message(new).version == 2
    assert topic_and_properties(new) == ("T", {"TAGS": "a"})
    for read in READERS:
        found, fault = read(old + new + old)
        assert (found.records, fault) == ([old, new, old], None)
        assert found.bodies == [b"hello"] * 3


def test_nothing_is_found_in_nothing() -> None:
    for read in READERS:
        assert read(b"") == (ReceivedRecords(), None)
    assert decode_records(b"") == ([], None)


def test_a_record_is_decoded() -> None:
    assert decode_records(record() * 2) == ([decode_message(record())] * 2, None)
