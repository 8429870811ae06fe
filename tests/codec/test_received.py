"""Records that are decoded when they are read: equal to records that are decoded at once."""

from __future__ import annotations

import copy
import pickle
from ipaddress import ip_address

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec import backend, received
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message, encode_message
from rmqpy.codec.received import read_record
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.message import OutgoingMessage, StoredMessage

V4 = ip_address("10.0.0.1").packed, 1234
V6 = ip_address("fe80::1").packed, 1234
DECODERS = received.decode_records, backend.decode_records
NAMES = [each.name for each in fields(StoredMessage)]


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


@given(
    st.binary(max_size=127),
    st.binary(max_size=300),
    st.binary(max_size=600),
    st.sampled_from([0, 1, 8, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]),
)
def test_a_record_equals_the_decoded_one(
    topic: bytes, body: bytes, properties: bytes, sys_flag: int
) -> None:
    whole = record(topic, body, properties, sys_flag)
    expected = decode_message(whole)
    for name in NAMES:  # whichever field is read first
        assert getattr(read_record(b"x" + whole, 1), name) == getattr(expected, name)
    assert read_record(whole, 0) == expected
    for decode in DECODERS:
        assert decode(whole + whole) == ([expected, expected], None)


@given(st.data())
def test_what_the_decoder_refuses_is_refused(data: st.DataObject) -> None:
    raw = bytearray(record(sys_flag=data.draw(st.sampled_from([0, BORN_HOST_V6]))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([*range(8), *range(36, 40), *range(84, len(raw))]))
        raw[place] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=3)))
    outcomes: list[StoredMessage | str] = []
    for read in (read_record, decode_message):
        try:
            outcomes.append(read(damaged, 0))
        except InvalidRecordError as fault:
            outcomes.append(str(fault))
    assert outcomes[0] == outcomes[1]


@given(st.data())
def test_both_implementations_find_the_same_records(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([0, 0, 0, 8, BORN_HOST_V6]), min_size=1, max_size=5))
    count = data.draw(st.sampled_from([1, 1, 1, 63, 64, 65]))
    raw = bytearray(b"".join(record(sys_flag=kind) for kind in kinds) * count)
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(raw[: len(raw) - data.draw(st.integers(0, 12))])
    outcomes = []
    for decode in DECODERS:
        records, fault = decode(cut)
        outcomes.append(([[getattr(each, name) for name in NAMES] for each in records], str(fault)))
    assert outcomes[0] == outcomes[1]


def test_undecoded_records_can_be_copied_changed_and_printed() -> None:
    expected = decode_message(record())
    assert repr(read_record(record(), 0)) == repr(expected)
    assert evolve(read_record(record(), 0), topic="U") == evolve(expected, topic="U")
    assert copy.copy(read_record(record(), 0)) == expected
    assert pickle.loads(pickle.dumps(read_record(record(), 0))) == expected


def test_a_record_has_no_other_attributes() -> None:
    for each in (read_record(record(), 0), decode_message(record())):
        with pytest.raises(AttributeError, match="StoredMessage has no attribute topics"):
            each.topics  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError):
            each.topic = "U"  # type: ignore[misc]


def test_two_threads_may_decode_a_record_at_the_same_time() -> None:
    found = read_record(record(), 0)

    def interrupted(raw: bytes) -> StoredMessage:
        object.__setattr__(found, "_source", (decode_message, raw))
        assert found.topic == "T"  # the other thread
        return decode_message(raw)

    object.__setattr__(found, "_source", (interrupted, record()))
    assert found.properties == {"TAGS": "a"}
    assert found == decode_message(record())


def test_the_bytes_of_a_record_are_kept_until_it_is_decoded() -> None:
    found = read_record(record(), 0)
    assert (found.body, found.queue_offset) == (b"hello", 0)
    assert hasattr(found, "_source")
    assert found.properties == {"TAGS": "a"}
    assert not hasattr(found, "_source")
