"""Messages that a producer refuses, the properties that it sends, and compressed bodies."""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Callable

import pytest
from attrs import evolve
from attrs.exceptions import FrozenInstanceError

from rmqpy.client.core.message import (
    COMPRESSION_ZLIB,
    RESERVED_PROPERTIES,
    Message,
    check_message,
    host_address,
    inflated_body,
    is_plain,
    property_string,
)
from rmqpy.client.errors import InvalidMessageError
from rmqpy.codec.properties import decode_properties
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.names import check_group

JAVA_RESERVED = (
    "ARRIVE_TIME BUYER_ID CLUSTER CONSUME_START_TIME CORRECTION_FLAG CORRELATION_ID DELAY"
    " INNER_MULTI_QUEUE_OFFSET INSTANCE_ID KEYS MAX_OFFSET MAX_RECONSUME_TIMES MIN_OFFSET MQ2_FLAG"
    " MSG_REGION MSG_TYPE ORIGIN_MESSAGE_ID PGROUP PUSH_REPLY_TIME REAL_QID REAL_TOPIC"
    " RECONSUME_TIME REPLY_TO_CLIENT RETRY_TOPIC TAGS TRACE_ON TRANSFER_FLAG TRAN_MSG TTL UNIQ_KEY"
    " WAIT"
)


VALID = Message(topic="T", body=b"1234")


def test_reserved_properties_are_those_of_java() -> None:
    assert set(JAVA_RESERVED.split()) == RESERVED_PROPERTIES


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (evolve(VALID, topic=""), 1, "topic is blank"),
        (evolve(VALID, topic="a.b"), 1, "illegal characters"),
        (evolve(VALID, topic="x" * 128), 1, "longer than topic max length"),
        (evolve(VALID, topic="SCHEDULE_TOPIC_XXXX"), 16, "forbidden"),
        (evolve(VALID, body=b""), 13, "body is empty"),
        (evolve(VALID, body=b"12345"), 13, "has 5 bytes, more than 4"),
        (evolve(VALID, delay_level=19), 13, "found 19, expected at most 18"),
        (evolve(VALID, properties={"KEYS": "x"}), 13, "KEYS is reserved"),
        (evolve(VALID, properties={"UNIQ_KEY": "x"}), 13, "UNIQ_KEY is reserved"),
        (evolve(VALID, properties={"a": " "}), 13, "blank"),
        (evolve(VALID, properties={"": "a"}), 13, "blank"),
    ],
)
def test_an_invalid_message_is_refused(message: Message, code: int, reason: str) -> None:
    with pytest.raises(RequestRejectedError, match=reason) as refused:
        check_message(message, 4, 18)
    assert refused.value.code == code


def test_the_longest_names_are_allowed() -> None:
    check_message(Message(topic="%RETRY%" + "x" * 120, body=b"1234"), 4, 18)
    check_group("g" * 255)
    with pytest.raises(RequestRejectedError, match="longer than group max length"):
        check_group("g" * 256)


def test_properties_are_encoded_in_javas_order() -> None:
    message = Message(
        topic="T",
        body=b"b",
        tags="TagA",
        keys=["k1", "k2"],
        properties={"seq": "0"},
        wait_store_ok=False,
        delay_level=3,
    )
    assert property_string(message, "ID") == (
        "seq\x010\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ID\x02WAIT\x01false\x02TAGS\x01TagA\x02DELAY\x013"
    )
    assert decode_properties(property_string(Message(topic="T", body=b"b"), "ID").encode()) == {
        "UNIQ_KEY": "ID",
        "WAIT": "true",
    }


@pytest.mark.parametrize(
    ("properties", "reason"),
    [({"a\x01b": "c"}, "must not contain"), ({"a": "b\x02c"}, "must not contain")],
)
def test_separators_in_properties_are_refused(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(RequestRejectedError, match=reason):
        property_string(Message(topic="T", body=b"b", properties=properties), "ID")


def test_the_length_of_properties_is_limited() -> None:
    fixed = len(property_string(Message(topic="T", body=b"b", keys="k"), "ID")) - 1
    property_string(Message(topic="T", body=b"b", keys="k" * (32767 - fixed)), "ID")
    with pytest.raises(RequestRejectedError, match="32768 bytes, more than 32767"):
        property_string(Message(topic="T", body=b"b", keys="k" * (32768 - fixed)), "ID")


@pytest.mark.parametrize("kind", [0, COMPRESSION_ZLIB])
def test_zlib_bodies_are_inflated(kind: int) -> None:
    assert inflated_body(zlib.compress(b"abc" * 99), COMPRESSED | kind) == b"abc" * 99
    assert inflated_body(b"as it is", kind) == b"as it is"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "sys_flag", "reason"),
    [
        (b"junk", COMPRESSED, "cannot be inflated"),
        (zlib.compress(b"abc" * 99)[:-5], COMPRESSED, "is truncated"),
        (b"", COMPRESSED, "is truncated"),
        (zlib.compress(bytes(65 << 20)), COMPRESSED, "more than 67108864 bytes"),
        (b"x", COMPRESSED | 0x100, "LZ4"),
        (b"x", COMPRESSED | 0x200, "ZSTD"),
        (b"x", COMPRESSED | 0x400, "unknown type, 4"),
    ],
    ids=["junk", "torn", "empty", "bomb", "lz4", "zstd", "unknown"],
)
def test_bodies_that_cannot_be_inflated_are_refused(
    body: bytes, sys_flag: int, reason: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        inflated_body(body, sys_flag)


def test_a_host_address_is_host_and_port() -> None:
    assert host_address((bytes([10, 0, 0, 1]), 10911)) == "10.0.0.1:10911"
    assert host_address((bytes(15) + b"\x01", 10911)) == "[::1]:10911"


@pytest.mark.parametrize("copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_message_with_only_a_topic_and_a_body_is_like_others(
    copied: Callable[[Message], Message],
) -> None:
    plain, same = Message(topic="T", body=b"b"), Message(topic="T", body=b"b", properties={})
    assert is_plain(plain) and not is_plain(same)
    assert property_string(plain, "ID") == property_string(same, "ID")
    assert repr(copied(plain)) == repr(plain) == repr(same)
    assert copied(plain) == plain == same == evolve(plain)
    assert (plain.tags, plain.keys, plain.flag, plain.delay_level) == (None, "", 0, 0)
    assert plain.wait_store_ok and plain.properties is plain.properties
    assert not is_plain(copied(plain))  # It need not be known.
    with pytest.raises(AttributeError, match="Message has no attribute key"):
        _ = plain.key  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        plain.tags = "t"  # type: ignore[misc]


def test_keys_of_a_wrong_type_are_refused() -> None:
    for keys in (0, None):
        with pytest.raises(InvalidMessageError, match=r"keys: found .*expected texts"):
            Message(topic="T", body=b"b", keys=keys)  # type: ignore[arg-type]
