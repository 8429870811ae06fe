"""Topics and their data version, the registration of a broker, and tables of settings.

A compressed RegisterBrokerBody is one zlib stream (level 9) of

=========  ==================================================================
bytes      field
=========  ==================================================================
4 + n      length, DataVersion as JSON
4          number of topics
4 + n      each: length, ``name readQueues writeQueues perm FILTER_TYPE``
4 + n      length, JSON array of filter servers
=========  ==================================================================

``topicSysFlag``, ``order`` and attributes are lost in this form.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct, error
from typing import Final, Self

from attrs import field

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.values import define
from rmqpy.remoting.body import Body
from rmqpy.remoting.fastjson import FastjsonDecodeError, dumps, loads
from rmqpy.remoting.java_values import INT32_MAX, parse_decimal
from rmqpy.remoting.lazy_attrs import Int64, lazy_define

SINGLE_TAG: Final = "SINGLE_TAG"
MULTI_TAG: Final = "MULTI_TAG"

INFLATED_BYTES_MAX: Final = 32 << 20
"""The maximum size of a registration after inflation. A frame can inflate to a thousand times its
size.
"""

INFLATED_FREELY: Final = 256 << 10
INFLATED_RATIO_MAX: Final = 100
"""The maximum ratio of a registration's size, beyond the first ``INFLATED_FREELY`` bytes, to its
compressed size; a ratio of ten is usual.
"""

REGISTERED_TOPICS_MAX: Final = 100_000
"""The maximum number of topics in a registration. Each takes some microseconds to decode, during
which all other requests wait.
"""

_COMPRESSION_LEVEL: Final = 9
_LENGTH = Struct(">i")


def body_crc32(body: bytes) -> int:
    """Return ``bodyCrc32`` of REGISTER_BROKER: the CRC-32 with the sign bit cleared."""
    return zlib.crc32(body) & 0x7FFFFFFF


@define(slots=True, frozen=True)
class DataVersion(Body):
    """The version of a table. Versions can be compared for equality but have no order.

    Only 5.x writes ``state_version``.
    """

    timestamp: Int64
    counter: Int64 = 0
    state_version: Int64 | None = None

    def next(self, now_ms: int) -> DataVersion:
        """Return the version of the table after a change; this object is not modified."""
        return DataVersion(now_ms, self.counter + 1, self.state_version)

    def same_as(self, other: DataVersion) -> bool:
        """Return whether timestamp and counter are equal, which is the equality of Java 4.9."""
        return self.timestamp == other.timestamp and self.counter == other.counter


@define(slots=True, eq=False, repr=False)
class TopicConfig(Body):
    """A topic on a broker. Only 5.x writes ``attributes``."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None

    def encode_line(self) -> bytes:
        """Return the five fields of the compressed registration, separated by blanks."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type}"
        ).encode()

    @classmethod
    def decode_line(cls, line: bytes) -> Self:
        """Return the topic in a line of the compressed registration.

        Fields after the fifth, which 5.x writes, are ignored. Raises RequestRejectedError.
        """
        parts = line.decode("utf-8", "replace").split(" ")
        try:
            name, read, write, perm, filter_type = parts[:5]
            return cls(
                name,
                read_queue_nums=parse_decimal(read, INT32_MAX),
                write_queue_nums=parse_decimal(write, INT32_MAX),
                perm=parse_decimal(perm, INT32_MAX),
                topic_filter_type=filter_type,
            )
        except ValueError:
            raise _refused(f"invalid topic line {line[:128]!r}") from None


@lazy_define()
class TopicConfigSerializeWrapper(Body):
    """The response body of GET_ALL_TOPIC_CONFIG (21), part of the request body of REGISTER_BROKER
    (103), and config/topics.json.
    """

    data_version: DataVersion
    topic_config_table: dict[str, TopicConfig] = field(factory=dict)


@lazy_define()
class RegisterBrokerBody(Body):
    """The request body of REGISTER_BROKER (103).

    ``encode`` and ``decode`` use plain JSON, ``encode_compressed`` and ``decode_compressed`` the
    compressed form.
    """

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
    filter_server_list: list[str] = field(factory=list)

    @staticmethod
    def encode_with(wrapper: Sequence[bytes]) -> bytes:
        """Return the body with an encoded table, in parts, and no filter servers."""
        begin = b'{"filterServerList":[],"topicConfigSerializeWrapper":'
        return b"".join((begin, *wrapper, b"}"))

    def encode_compressed(self) -> bytes:
        wrapper = self.topic_config_serialize_wrapper
        parts = [_sized(wrapper.data_version.encode())]
        parts.append(_LENGTH.pack(len(wrapper.topic_config_table)))
        parts += [_sized(topic.encode_line()) for topic in wrapper.topic_config_table.values()]
        parts.append(_sized(dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), _COMPRESSION_LEVEL)

    @classmethod
    def decode_compressed(cls, data: bytes) -> Self:
        raw = _inflated(data)
        try:
            version, position = _take(raw, 0)
            (count,) = _LENGTH.unpack_from(raw, position)
            position += _LENGTH.size
            if count > REGISTERED_TOPICS_MAX:
                raise _refused(f"{count} topics, more than {REGISTERED_TOPICS_MAX}")
            topics: dict[str, TopicConfig] = {}
            for _ in range(count):
                line, position = _take(raw, position)
                topic = TopicConfig.decode_line(line)
                topics[topic.topic_name] = topic
            servers, _ = _take(raw, position)
        except error:
            raise _refused(f"it is truncated after {len(raw)} bytes") from None
        wrapper = TopicConfigSerializeWrapper(DataVersion.decode(version), topics)
        return cls(wrapper, _text_list(servers))


@lazy_define()
class KVTable(Body):
    """The response body of GET_BROKER_RUNTIME_INFO (28), of GET_KVLIST_BY_NAMESPACE (219), and,
    with the order topics, of REGISTER_BROKER (103).
    """

    table: dict[str, str] = field(factory=dict)


@lazy_define()
class KVConfigSerializeWrapper(Body):
    """The content of a name server's kvConfig.json: namespace to key to value."""

    config_table: dict[str, dict[str, str]] = field(factory=dict)


@lazy_define()
class TopicList(Body):
    """The response body of requests 206, 224, 304, 305 and 311 to 313."""

    topic_list: list[str] = field(factory=list)
    broker_addr: str | None = None


def _sized(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _take(raw: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(raw, position)
    start = position + _LENGTH.size
    if not 0 <= size <= len(raw) - start:
        raise _refused(f"a field of {size} bytes at {position} does not fit into {len(raw)} bytes")
    return raw[start : start + size], start + size


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    limit = min(INFLATED_BYTES_MAX, INFLATED_FREELY + INFLATED_RATIO_MAX * len(data))
    try:
        raw = stream.decompress(data, limit)
    except zlib.error as fault:
        raise _refused(f"not a zlib stream ({fault})") from None
    if stream.unconsumed_tail:
        raise _refused(f"it inflates to more than {limit} bytes")
    if not stream.eof:
        raise _refused("its zlib stream is truncated")
    return raw


def _text_list(data: bytes) -> list[str]:
    try:
        servers = loads(data)
    except FastjsonDecodeError as fault:
        raise _refused(f"filter server list: {fault}") from None
    if servers is None:
        return []
    if not isinstance(servers, list) or not all(isinstance(item, str) for item in servers):
        raise _refused("the filter server list is not an array of strings")
    return servers


def _refused(problem: str) -> RequestRejectedError:
    return RequestRejectedError(
        ResponseCode.SYSTEM_ERROR, f"not a compressed RegisterBrokerBody: {problem}"
    )
