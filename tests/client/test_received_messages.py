"""Messages whose records are decoded when they are read: equal to those decoded at once."""

from __future__ import annotations

import copy
import itertools
import pickle
import zlib
from functools import partial

import pytest
from attrs import evolve

from rmqpy.client.core import message as module
from rmqpy.client.core.message import MessageExt, messages_of
from rmqpy.codec.backend import received_records
from rmqpy.codec.message import decode_message, encode_message, topic_and_properties
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import MessageQueue

QUEUE = MessageQueue("T", "a", 1)
NAMES = ("topic", "properties", "tags", "keys", "reconsume_times", "msg_id", "offset_msg_id")


def record(body: bytes = b"hello", sys_flag: int = 0) -> bytes:
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=1,
        body=body,
        properties=b"TAGS\x01a\x02KEYS\x01k",
        sys_flag=sys_flag,
        born_timestamp_ms=1_600_000_000_000,
        born_host=(b"\x7f\x00\x00\x01", 1),
        store_host=(b"\x7f\x00\x00\x01", 2),
        reconsume_times=3,
    )
    return bytes(encode_message(draft))


def received(*records: bytes) -> list[MessageExt]:
    found, fault = received_records(b"".join(records))
    assert fault is None
    return messages_of(QUEUE, found)


def decoded(raw: bytes) -> MessageExt:
    return MessageExt(queue=QUEUE, stored=decode_message(raw))


def test_a_message_equals_one_that_is_decoded_at_once() -> None:
    expected = decoded(record())
    for name in ("queue", "queue_offset", "body", "stored_bytes", "stored", *NAMES):
        (message,) = received(record())
        assert getattr(message, name) == getattr(expected, name), name
    (message,) = received(record())
    assert (message.body, message.queue_offset) == (b"hello", 0)
    assert message == expected


def test_a_record_is_kept_until_it_is_decoded() -> None:
    (message,) = received(record())
    assert (message.body, message.queue_offset, message.stored_bytes) == (b"hello", 0, 5)
    assert (message.topic, message.tags, message.keys) == ("T", "a", "k")
    assert message.properties is message.properties
    assert hasattr(message, "_record")
    assert message.stored == decode_message(record())
    assert message.properties == {"TAGS": "a", "KEYS": "k"}
    assert not hasattr(message, "_record")


def test_compressed_bodies_among_plain_ones_are_inflated() -> None:
    deflated = zlib.compress(b"abc" * 99)
    plain, compressed, last = received(record(), record(deflated, COMPRESSED), record(b"last"))
    assert [plain.body, compressed.body, last.body] == [b"hello", b"abc" * 99, b"last"]
    assert compressed.body == b"abc" * 99
    assert compressed.stored_bytes == len(deflated)
    assert compressed == decoded(record(deflated, COMPRESSED))
    assert decoded(record(deflated, COMPRESSED)).body == b"abc" * 99


def test_only_the_body_that_cannot_be_inflated_is_refused() -> None:
    junk, good = received(record(b"junk", COMPRESSED), record())
    assert copy.copy(junk) == junk
    assert pickle.loads(pickle.dumps(junk)) == junk
    for message in (junk, copy.copy(junk), decoded(record(b"junk", COMPRESSED))):
        with pytest.raises(RemoteProtocolError, match="cannot be inflated"):
            message.body  # noqa: B018
        assert message.tags == "a"
    assert good.body == b"hello"


def test_an_undecoded_message_can_be_copied_changed_and_printed() -> None:
    expected = decoded(record())
    assert repr(received(record())[0]) == repr(expected)
    assert copy.copy(received(record())[0]) == expected
    assert pickle.loads(pickle.dumps(received(record())[0])) == expected
    other = decode_message(record(b"another"))
    changed = evolve(received(record())[0], stored=other)
    assert (changed.body, changed.stored_bytes, changed.queue) == (b"another", 7, QUEUE)
    assert evolve(received(record())[0], queue=MessageQueue("T", "b", 0)) != expected


def test_a_message_has_no_other_attributes_and_cannot_be_changed() -> None:
    for each in (*received(record()), decoded(record())):
        with pytest.raises(AttributeError, match="MessageExt has no attribute topics"):
            each.topics  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError):
            each.body = b"other"  # type: ignore[misc]


def test_two_threads_may_decode_a_message_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is interrupted in between by another, at either step."""
    functions = (decode_message, topic_and_properties)
    for names in itertools.product(("stored", "properties", "topic"), repeat=2):
        (message,) = received(record())

        def interrupted(
            raw: bytes, message: MessageExt = message, other: str = names[1], place: int = 0
        ) -> object:
            monkeypatch.undo()
            assert getattr(message, other) == getattr(decoded(record()), other)
            return functions[place](raw)

        for place, function in enumerate(functions):
            monkeypatch.setattr(module, function.__name__, partial(interrupted, place=place))
        assert getattr(message, names[0]) == getattr(decoded(record()), names[0])
        assert message == decoded(record())
        assert (message.topic, message.tags) == ("T", "a")
