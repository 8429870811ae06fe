"""Tests of records, batch bodies and message ids against recorded bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Unpack

import pytest
from attrs import evolve
from harness.store import MessageFields

from rmqpy.codec import layout, message
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.hashes import crc32
from rmqpy.codec.properties import decode_properties, encode_properties
from rmqpy.model.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rmqpy.model.message import Host, OutgoingMessage, StoredMessage

V4_RECORD = bytes.fromhex(
    "0000006a daa320a7 3610a686 00000001 00000002 0000000000000003 0000000000000004 00000000"
    "00000174876e8000 0a000001000004d2 00000174876e8001 0a00000200002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 01 54 0009 544147530154616741"
)
BATCH_BODY = bytes.fromhex(
    "0000002b 00000000 00000000 00000000 00000002 6231 0013 57414954017472756502544147530154616741"
    "00000021 00000000 00000000 00000000 00000002 6232 0009 574149540174727565"
)


def draft(**changes: Unpack[MessageFields]) -> OutgoingMessage:
    message = OutgoingMessage(
        topic=b"T",
        queue_id=1,
        body=b"hello",
        properties=b"TAGS\x01TagA",
        flag=2,
        born_timestamp_ms=1600000000000,
        born_host=(ip_address("10.0.0.1").packed, 1234),
        store_host=(ip_address("10.0.0.2").packed, 10911),
    )
    return evolve(message, **changes)


def test_a_version_1_record_has_the_expected_bytes() -> None:
    record = message.encode_message(draft())
    message.set_offsets(record, 0, 3, 4, 1600000000001)
    assert record == V4_RECORD
    found = message.decode_message(record)
    assert (found.size, found.version, found.body_crc, found.topic) == (106, 1, 0x3610A686, "T")
    assert (found.queue_id, found.flag, found.queue_offset, found.physical_offset) == (1, 2, 3, 4)
    assert found.born_host == (b"\n\0\0\1", 1234)
    assert found.store_host == (b"\n\0\0\2", 10911)
    assert (found.born_timestamp_ms, found.store_timestamp_ms) == (1600000000000, 1600000000001)
    assert (found.body, found.properties) == (b"hello", {"TAGS": "TagA"})
    assert found.raw_properties == b"TAGS\x01TagA"


@pytest.mark.parametrize("born_v6", [0, BORN_HOST_V6])
@pytest.mark.parametrize("store_v6", [0, STORE_HOST_V6])
def test_hosts_may_have_either_address_family(born_v6: int, store_v6: int) -> None:
    born: Host = (ip_address("2001:db8::1" if born_v6 else "10.0.0.1").packed, 65535)
    store: Host = (ip_address("fe80::2" if store_v6 else "10.0.0.2").packed, 1)
    one = draft(
        sys_flag=born_v6 | store_v6,
        born_host=born,
        store_host=store,
        reconsume_times=7,
        prepared_transaction_offset=1 << 40,
    )
    record = message.encode_message(one)
    message.set_offsets(record, 0, None, 1 << 33, 1600000000001)
    extra = 12 * ((born_v6 > 0) + (store_v6 > 0))
    assert len(record) == 106 + extra
    assert record[-19:] == V4_RECORD[-22:][3:]
    assert struct.unpack_from(">q", record, 56 + (12 if born_v6 else 0)) == (1600000000001,)
    found = message.decode_message(b"xy" + record, 2)
    assert (found.born_host, found.store_host) == (born, store)
    assert (found.reconsume_times, found.prepared_transaction_offset) == (7, 1 << 40)
    assert (found.queue_offset, found.physical_offset) == (0, 1 << 33)


def test_an_empty_body_has_crc_0() -> None:
    record = message.encode_message(draft(body=b"", properties=b""))
    assert len(record) == 92
    assert record[8:12] == b"\0\0\0\0"
    assert message.decode_message(record).properties == {}


def test_a_body_may_be_a_memoryview() -> None:
    view = memoryview(b"xhellox")[1:-1]
    assert message.encode_message(draft(body=view)) == message.encode_message(draft())


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b"t" * 128},
        {"properties": b"p" * 32768},
        {"sys_flag": BORN_HOST_V6},
        {"sys_flag": STORE_HOST_V6},
        {"born_host": (bytes(16), 1)},
        {"store_host": (bytes(5), 1)},
    ],
)
def test_values_beyond_the_limits_fail_an_assertion(changes: MessageFields) -> None:
    with pytest.raises(AssertionError):
        message.encode_message(draft(**changes))


def test_values_at_the_limits_are_encoded() -> None:
    long = draft(topic=b"t" * 127, properties=b"p" * 32767)
    found = message.decode_message(message.encode_message(long))
    assert (found.topic, len(found.raw_properties)) == ("t" * 127, 32767)


def test_version_2_is_decoded() -> None:
    topic = b"t" * 200
    head = bytearray(V4_RECORD[:93])
    head[0:8] = struct.pack(">iI", 88 + 5 + 2 + 200 + 2, 0xDAA320AB)
    found = message.decode_message(head + struct.pack(">h", 200) + topic + b"\0\0")
    assert (found.version, found.topic, found.body) == (2, "t" * 200, b"hello")


@pytest.mark.parametrize(
    ("position", "value", "field"),
    [
        (0, "0000006b", "TOTALSIZE"),
        (0, "ffffffff", "TOTALSIZE"),
        (0, "0000005a", "TOTALSIZE"),
        (4, "daa320a8", "MAGICCODE"),
        (4, "daa320ab", "TOPICLENGTH"),
        (84, "80000000", "BODYLENGTH"),
        (84, "00000013", "BODYLENGTH"),
        (93, "80", "TOPICLENGTH"),
        (93, "0b", "TOPICLENGTH"),
        (95, "0008", "PROPERTIESLENGTH"),
        (95, "ffff", "PROPERTIESLENGTH"),
    ],
)
def test_an_invalid_record_is_refused_with_its_field(position: int, value: str, field: str) -> None:
    raw = bytearray(b"abcd" + V4_RECORD)
    raw[4 + position : 4 + position + len(value) // 2] = bytes.fromhex(value)
    with pytest.raises(InvalidRecordError, match=f"at offset 4: {field} is ") as caught:
        message.decode_message(raw, 4)
    assert (caught.value.offset, caught.value.field) == (4, field)


def test_every_truncated_record_is_refused() -> None:
    for length in range(len(V4_RECORD)):
        with pytest.raises(InvalidRecordError, match="TOTALSIZE"):
            message.decode_message(V4_RECORD[:length])


def test_a_blank_has_the_expected_bytes() -> None:
    assert message.encode_blank(586) == bytes.fromhex("0000024acbd43194")
    with pytest.raises(AssertionError):
        message.encode_blank(7)


def test_a_batch_body_has_the_expected_bytes() -> None:
    items = message.batch_records(BATCH_BODY)
    assert [(item.flag, bytes(item.body), item.properties) for item in items] == [
        (0, b"b1", b"WAIT\x01true\x02TAGS\x01TagA"),
        (0, b"b2", b"WAIT\x01true"),
    ]
    assert message.encode_batch_body(items) == BATCH_BODY
    assert message.batch_records(b"") == []


@pytest.mark.parametrize(
    ("position", "value", "field"),
    [
        (0, "0000002a", "properties length"),
        (0, "00000015", "total size"),
        (0, "0000004d", "total size"),
        (16, "ffffffff", "body length"),
        (16, "00000016", "body length"),
        (22, "0012", "properties length"),
        (22, "8013", "properties length"),
    ],
)
def test_an_invalid_batch_body_is_refused_with_its_field(
    position: int, value: str, field: str
) -> None:
    raw = bytearray(BATCH_BODY)
    raw[position : position + len(value) // 2] = bytes.fromhex(value)
    with pytest.raises(InvalidRecordError, match=field):
        message.batch_records(raw)


def test_a_truncated_batch_body_is_refused() -> None:
    for length in set(range(1, len(BATCH_BODY))) - {0x2B}:
        with pytest.raises(InvalidRecordError):
            message.batch_records(BATCH_BODY[:length])


def test_an_offset_message_id_contains_host_and_offset() -> None:
    host = (ip_address("10.0.0.2").packed, 10911)
    assert message.offset_msg_id(host, 4) == "0A00000200002A9F0000000000000004"
    assert message.parse_offset_msg_id("0A00000200002A9F0000000000000004") == (host, 4)
    v6 = (ip_address("2001:db8::1").packed, 10911)
    text = message.offset_msg_id(v6, 1 << 40)
    assert text == "20010DB8000000000000000000000001" + "00002A9F" + "0000010000000000"
    assert message.parse_offset_msg_id(text.lower()) == (v6, 1 << 40)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0A00", "4 characters"),
        ("Z" * 32, "not hexadecimal"),
        ("0A00000200002A9F00000000000000  ", "not hexadecimal"),
    ],
)
def test_an_invalid_message_id_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        message.parse_offset_msg_id(text)


STORES = {
    "A-classic-clean-v497": ["store"],
    "A-classic-killed-v497": ["store"],
    "A-classic-clean-v533": ["store"],
    "B-master-slave-v497": ["master", "slave"],
    "B-lagging-slave-v497": ["master"],
    "C-upgraded-v497": ["n0", "n1", "n2"],
    "C-upgraded-v533": ["n0", "n1", "n2"],
    "D-dledger-v497": ["n0", "n1", "n2"],
    "D-dledger-v533": ["n0", "n1", "n2"],
}


@pytest.mark.parametrize(
    ("name", "node"), [(s, node) for s, nodes in STORES.items() for node in nodes]
)
def test_every_message_of_the_golden_stores_is_decoded_and_encoded_as_in_java(
    golden: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    name: str,
    node: str,
) -> None:
    """A decoded message is that of the Java consumer, an encoded record that of the Java broker."""
    log = read_log(golden(name) / node)
    messages = manifest(name)["messages"]
    assert len(messages) > 200
    bytes_of_java, found = [], []
    for seen in messages:
        base, data = next(piece for piece in reversed(log) if piece[0] <= seen["commitLogOffset"])
        position = seen["commitLogOffset"] - base
        one = message.decode_message(data, position)
        if name.endswith("v533"):  # The 5.3.3 client clears the bit after decompression.
            seen = {**seen, "sysFlag": seen["sysFlag"] | one.sys_flag & COMPRESSED}
        assert described(one) == {key: seen[key] for key in described(one)}
        assert message.offset_msg_id(one.store_host, one.physical_offset) == seen["offsetMsgId"]
        assert one.properties.get("UNIQ_KEY", seen["offsetMsgId"]) == seen["msgId"]
        assert crc32(one.body) == one.body_crc
        assert decode_properties(encode_properties(one.properties)) == one.properties
        found.append(one)
        bytes_of_java.append(data[position : position + one.size])
    records = [message.encode_message(draft_of(one)) for one in found]
    for record, one in zip(records, found, strict=True):
        message.set_offsets(
            record, 0, one.queue_offset, one.physical_offset, one.store_timestamp_ms
        )
    assert records == bytes_of_java


def read_log(store: Path) -> list[tuple[int, bytes]]:
    paths = [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]
    return sorted((int(path.name), path.read_bytes()) for path in paths)


def described(found: StoredMessage) -> dict[str, object]:
    """Return a message with the keys of the manifest."""
    return {
        "topic": found.topic,
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "commitLogOffset": found.physical_offset,
        "storeSize": found.size,
        "sysFlag": found.sys_flag,
        "flag": found.flag,
        "preparedTransactionOffset": found.prepared_transaction_offset,
        "reconsumeTimes": found.reconsume_times,
        "bornTimestamp": found.born_timestamp_ms,
        "storeTimestamp": found.store_timestamp_ms,
        "bornHost": f"/{ip_address(found.born_host[0])}:{found.born_host[1]}",
        "storeHost": f"/{ip_address(found.store_host[0])}:{found.store_host[1]}",
        "bodyCRC": found.body_crc,
        "props": found.properties,
    }


def draft_of(found: StoredMessage) -> OutgoingMessage:
    return OutgoingMessage(
        topic=found.topic.encode(),
        queue_id=found.queue_id,
        body=found.body,
        properties=found.raw_properties,
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp_ms=found.born_timestamp_ms,
        born_host=found.born_host,
        store_host=found.store_host,
        reconsume_times=found.reconsume_times,
        prepared_transaction_offset=found.prepared_transaction_offset,
    )


@pytest.mark.parametrize("bits", range(1, 11))
def test_a_body_length_that_became_0_is_found_although_an_empty_body_has_no_crc(bits: int) -> None:
    record = message.encode_message(draft(body=b"1" * (1 << bits)))
    place = layout.BODY_POSITION - 4
    assert int.from_bytes(record[place : place + 4]) == 1 << bits
    message.check_record(record, 0)
    record[place : place + 4] = bytes(4)
    with pytest.raises(InvalidRecordError, match="PROPERTIESLENGTH"):
        message.check_record(record, 0)


def test_checking_a_damaged_record_raises_no_other_error() -> None:
    """This includes flags for longer hosts than the record has room for."""
    short = message.encode_message(draft(body=b"", properties=b""))
    for record in (bytes(short), V4_RECORD):
        message.check_record(record, 0)
        for place in range(len(record)):
            for bit in range(8):
                raw = bytearray(record)
                raw[place] ^= 1 << bit
                with suppress(InvalidRecordError):
                    message.check_record(raw, 0)
    short[39] |= BORN_HOST_V6 | STORE_HOST_V6
    with pytest.raises(InvalidRecordError, match="SYSFLAG"):
        message.check_record(short, 0)
