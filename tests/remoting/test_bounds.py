"""Bounds of decoding: no request of an unknown peer may delay all others."""

from __future__ import annotations

import zlib
from struct import pack

import pytest

from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError
from rmqpy.remoting.bodies import (
    REGISTERED_TOPICS_MAX,
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    HeartbeatData,
    LockBatchRequestBody,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.body import REQUEST_BYTES_MAX
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX, FastjsonDecodeError, loads
from rmqpy.remoting.frame import decode_command


def lenient_json(size: int) -> bytes:
    """Return ``size`` bytes that only the tolerant decoder accepts."""
    return b"{'clientID':'" + b"c" * (size - 15) + b"'}"


def test_a_long_text_must_be_strict_json() -> None:
    assert loads(b"{a:1}", 5) == {"a": 1}
    assert loads(b'{"a":1}', 5) == {"a": 1}
    with pytest.raises(FastjsonDecodeError, match="6 characters, more than 5, and not strict JSON"):
        loads(b"{a:12}", 5)


def test_the_size_of_request_bodies_is_bounded() -> None:
    assert len(HeartbeatData.decode(lenient_json(TOLERANT_REQUEST_MAX)).client_id) > 60_000
    with pytest.raises(RequestRejectedError, match="not strict JSON"):
        HeartbeatData.decode(lenient_json(TOLERANT_REQUEST_MAX + 1))
    strict = b'{"clientID":"%s"}'
    longest = strict % (b"c" * (REQUEST_BYTES_MAX - len(strict) + 2))
    assert len(longest) == REQUEST_BYTES_MAX
    HeartbeatData.decode(longest)
    for body in (HeartbeatData, LockBatchRequestBody):
        with pytest.raises(RequestRejectedError, match=f"{REQUEST_BYTES_MAX + 1} bytes"):
            body.decode(longest + b" ")


@pytest.mark.slow
def test_answers_and_files_have_no_size_bound() -> None:
    """The integer keys are those of fastjson; they are more than a request may have."""
    table = {f"topic-{number}@group": {0: 1, 1: 2} for number in range(40_000)}
    encoded = ConsumerOffsetSerializeWrapper(offset_table=table).encode()
    assert len(encoded) > REQUEST_BYTES_MAX
    assert ConsumerOffsetSerializeWrapper.decode(encoded).offset_table == table


def test_a_long_header_must_be_strict_json() -> None:
    def header(text: bytes) -> memoryview:
        return memoryview(pack(">I", len(text)) + text)

    long_remark = b"r" * TOLERANT_REQUEST_MAX
    assert decode_command(header(b'{"code":1,"remark":"%s"}' % long_remark)).code == 1
    assert decode_command(header(b"{'code':1}")).code == 1
    with pytest.raises(RemoteProtocolError, match="not strict JSON"):
        decode_command(header(b"{'code':1,'remark':'%s'}" % long_remark))


def compressed(count: int, line: bytes) -> bytes:
    version = b'{"timestamp":1,"counter":1}'
    lines = (pack(">i", len(line)) + line) * count
    raw = pack(">i", len(version)) + version + pack(">i", count) + lines + pack(">i", 2) + b"[]"
    return zlib.compress(raw, 9)


def test_the_inflated_size_of_a_registration_is_bounded() -> None:
    line = b"topic 1 1 6 SINGLE_TAG"
    with pytest.raises(RequestRejectedError, match="it inflates to more than"):
        RegisterBrokerBody.decode_compressed(compressed(100_000, line))
    # Enough bytes after the stream hide its compression ratio.
    padded = compressed(REGISTERED_TOPICS_MAX + 1, line) + bytes(1 << 20)
    with pytest.raises(
        RequestRejectedError, match=f"{REGISTERED_TOPICS_MAX + 1} topics, more than"
    ):
        RegisterBrokerBody.decode_compressed(padded)


@pytest.mark.slow
def test_the_registration_of_a_large_broker_is_accepted() -> None:
    names = [f"%RETRY%consumer-group-of-some-service-{number}" for number in range(20_000)]
    table = {name: TopicConfig(name) for name in names}
    wrapper = TopicConfigSerializeWrapper(DataVersion(1), table)
    data = RegisterBrokerBody(wrapper).encode_compressed()
    read = RegisterBrokerBody.decode_compressed(data)
    assert list(read.topic_config_serialize_wrapper.topic_config_table) == names
