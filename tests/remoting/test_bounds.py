"""What a stranger may make us read: bounds that keep one request from holding up all others."""

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


def tolerant(size: int) -> bytes:
    """So many bytes that only the tolerant reader reads."""
    return b"{'clientID':'" + b"c" * (size - 15) + b"'}"


def test_a_long_text_has_to_be_strict_json() -> None:
    assert loads(b"{a:1}", 5) == {"a": 1}
    assert loads(b'{"a":1}', 5) == {"a": 1}
    with pytest.raises(FastjsonDecodeError, match="6 characters, more than 5, and no strict JSON"):
        loads(b"{a:12}", 5)


def test_bodies_of_clients() -> None:
    assert len(HeartbeatData.decode(tolerant(TOLERANT_REQUEST_MAX)).client_id) > 60_000
    with pytest.raises(RequestRejectedError, match="no strict JSON"):
        HeartbeatData.decode(tolerant(TOLERANT_REQUEST_MAX + 1))
    strict = b'{"clientID":"%s"}'
    longest = strict % (b"c" * (REQUEST_BYTES_MAX - len(strict) + 2))
    assert len(longest) == REQUEST_BYTES_MAX
    HeartbeatData.decode(longest)
    for body in (HeartbeatData, LockBatchRequestBody):
        with pytest.raises(RequestRejectedError, match=f"{REQUEST_BYTES_MAX + 1} bytes"):
            body.decode(longest + b" ")


@pytest.mark.slow
def test_answers_and_files_have_no_such_bound() -> None:
    """Integer keys as fastjson writes them, more than any request may have."""
    table = {f"topic-{number}@group": {0: 1, 1: 2} for number in range(40_000)}
    encoded = ConsumerOffsetSerializeWrapper(offset_table=table).encode()
    assert len(encoded) > REQUEST_BYTES_MAX
    assert ConsumerOffsetSerializeWrapper.decode(encoded).offset_table == table


def test_a_long_header_has_to_be_strict_json() -> None:
    def header(text: bytes) -> memoryview:
        return memoryview(pack(">I", len(text)) + text)

    long_remark = b"r" * TOLERANT_REQUEST_MAX
    assert decode_command(header(b'{"code":1,"remark":"%s"}' % long_remark)).code == 1
    assert decode_command(header(b"{'code':1}")).code == 1
    with pytest.raises(RemoteProtocolError, match="no strict JSON"):
        decode_command(header(b"{'code':1,'remark':'%s'}" % long_remark))


def compressed(count: int, line: bytes) -> bytes:
    version = b'{"timestamp":1,"counter":1}'
    lines = (pack(">i", len(line)) + line) * count
    raw = pack(">i", len(version)) + version + pack(">i", count) + lines + pack(">i", 2) + b"[]"
    return zlib.compress(raw, 9)


def test_registrations() -> None:
    line = b"topic 1 1 6 SINGLE_TAG"
    with pytest.raises(RequestRejectedError, match="it inflates to more than"):
        RegisterBrokerBody.decode_compressed(compressed(100_000, line))
    # as many random bytes behind the stream as it takes to hide the ratio
    padded = compressed(REGISTERED_TOPICS_MAX + 1, line) + bytes(1 << 20)
    with pytest.raises(
        RequestRejectedError, match=f"{REGISTERED_TOPICS_MAX + 1} topics, more than"
    ):
        RegisterBrokerBody.decode_compressed(padded)


def test_the_registration_of_a_large_broker_is_read() -> None:
    names = [f"%RETRY%consumer-group-of-some-service-{number}" for number in range(20_000)]
    table = {name: TopicConfig(name) for name in names}
    wrapper = TopicConfigSerializeWrapper(DataVersion(1), table)
    data = RegisterBrokerBody(wrapper).encode_compressed()
    read = RegisterBrokerBody.decode_compressed(data)
    assert list(read.topic_config_serialize_wrapper.topic_config_table) == names
