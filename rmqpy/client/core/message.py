"""The messages of the client API: the message to send, the result of a send, and the message
received.

A message is checked following the rules of Java's client before anything is sent, and is refused
with the response code of Java's client. Reserved property names are those of Java's MessageConst;
they are set through the attributes of :class:`Message` or not at all.
"""

from __future__ import annotations

import ipaddress
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rmqpy.client.errors import InvalidMessageError
from rmqpy.codec import properties as names
from rmqpy.codec.layout import PROPERTIES_BYTES_MAX
from rmqpy.codec.message import (
    batch_item_head,
    decode_message,
    offset_msg_id,
    topic_and_properties,
)
from rmqpy.codec.properties import encode_properties
from rmqpy.codec.received import ReceivedRecords
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.message import Host, StoredMessage, slot_setter
from rmqpy.model.names import check_send_topic, check_topic
from rmqpy.remoting.bodies import MessageQueue

COMPRESSION_TYPE_MASK = 0x700
COMPRESSION_ZLIB = 0x300
"""The type in the sysFlag of a compressed body; brokers and clients before 4.9.4 left it 0."""

INFLATED_BODY_BYTES_MAX = 64 << 20
"""The largest size to which a compressed body is inflated; a larger one is treated as an attack."""

RESERVED_PROPERTIES = frozenset(
    {
        names.PROPERTY_KEYS,
        names.PROPERTY_TAGS,
        names.PROPERTY_WAIT,
        names.PROPERTY_DELAY,
        names.PROPERTY_UNIQ_KEY,
        names.PROPERTY_RETRY_TOPIC,
        names.PROPERTY_REAL_TOPIC,
        names.PROPERTY_REAL_QUEUE_ID,
        names.PROPERTY_ORIGIN_MESSAGE_ID,
        names.PROPERTY_RECONSUME_TIME,
        names.PROPERTY_MAX_RECONSUME_TIMES,
        names.PROPERTY_CONSUME_START_TIME,
        names.PROPERTY_MIN_OFFSET,
        names.PROPERTY_MAX_OFFSET,
        names.PROPERTY_TRANSACTION_PREPARED,
        names.PROPERTY_PRODUCER_GROUP,
        names.PROPERTY_CLUSTER,
        names.PROPERTY_MESSAGE_TYPE,
        names.PROPERTY_CORRELATION_ID,
        names.PROPERTY_MESSAGE_REPLY_TO_CLIENT,
        names.PROPERTY_MESSAGE_TTL,
        names.PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
        names.PROPERTY_PUSH_REPLY_TIME,
        names.PROPERTY_INNER_MULTI_QUEUE_OFFSET,
        names.PROPERTY_INSTANCE_ID,
        names.PROPERTY_BUYER_ID,
        names.PROPERTY_TRANSFER_FLAG,
        names.PROPERTY_CORRECTION_FLAG,
        names.PROPERTY_MQ2_FLAG,
        names.PROPERTY_MSG_REGION,
        names.PROPERTY_TRACE_SWITCH,
    }
)


_PLAIN_START = f"{names.PROPERTY_UNIQ_KEY}\x01"
_PLAIN_END = f"\x02{names.PROPERTY_WAIT}\x01true"
"""The properties of a plain message, before and after its unique id."""


def _joined_keys(keys: str | Sequence[str]) -> str:
    try:
        return keys if isinstance(keys, str) else " ".join(keys)
    except TypeError:
        raise InvalidMessageError(f"keys: found {keys!r}, expected texts") from None


class _Defaults:
    """The base of Message. Most messages have only a topic and a body, and keep nothing else; their
    other fields are set when they are read.
    """

    __slots__ = ("_plain_topic",)
    _plain_topic: str | None
    """The topic of a message that has only a topic and a body; otherwise None."""

    if not TYPE_CHECKING:  # The fields have their types.

        def __getattr__(self, name: str) -> Any:
            if name == "properties":
                value = {}
            elif name in _OPTIONAL:
                value = _OPTIONAL[name]
            else:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            object.__setattr__(self, name, value)
            return value


_OPTIONAL: dict[str, object] = {
    "tags": None,
    "keys": "",
    "flag": 0,
    "wait_store_ok": True,
    "delay_level": 0,
    "_plain_topic": None,  # A message that was copied or unpickled.
}


@define(frozen=True, init=False)
class Message(_Defaults):
    """A message to send (Java: Message).

    * ``topic``: the topic, which the broker may create (``autoCreateTopicEnable``).
    * ``body``: the content; it must not be empty.
    * ``tags``: the tag by which consumers filter; one tag per message.
    * ``keys``: the keys by which the message can be found, separated by blanks or as a sequence.
    * ``properties``: further pairs of name and value; reserved names are refused.
    * ``flag``: an integer that brokers pass through unchanged.
    * ``wait_store_ok``: whether the broker waits for its flush and its slaves (Java:
      waitStoreMsgOK).
    * ``delay_level``: 0 delivers at once; levels from 1 are those of the broker's
      messageDelayLevel, of which there are 18 (``ProducerSettings.delay_level_max``).

    A value of a wrong type, and a negative level, raise InvalidMessageError.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: str = ""
    properties: Mapping[str, str] = field(factory=dict)
    flag: int = 0
    wait_store_ok: bool = True
    delay_level: int = 0

    def __init__(
        self,
        *,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | Sequence[str] = "",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        wait_store_ok: bool = True,
        delay_level: int = 0,
    ) -> None:
        _set_topic(self, topic)
        _set_body(self, body)
        if (
            tags is None
            and keys == ""
            and properties is None
            and not flag
            and wait_store_ok is True
            and not delay_level
            and type(body) is bytes
            and type(topic) is str
        ):
            _set_plain_topic(self, topic)
            return
        _set_plain_topic(self, None)
        _set_tags(self, tags)
        _set_keys(self, keys if type(keys) is str else _joined_keys(keys))
        _set_properties(self, {} if properties is None else properties)
        _set_flag(self, flag)
        _set_wait(self, wait_store_ok)
        _set_delay(self, delay_level)
        # Many messages pass this, and it is four times as fast.
        if (
            type(body) is not bytes
            or type(topic) is not str
            or delay_level
            or properties
            or tags is not None
            or flag
        ):
            _check_types(self)


_new = object.__new__
_set_topic = slot_setter(Message, "topic")
_set_body = slot_setter(Message, "body")
_set_tags = slot_setter(Message, "tags")
_set_keys = slot_setter(Message, "keys")
_set_properties = slot_setter(Message, "properties")
_set_flag = slot_setter(Message, "flag")
_set_wait = slot_setter(Message, "wait_store_ok")
_set_delay = slot_setter(Message, "delay_level")
_set_plain_topic = slot_setter(_Defaults, "_plain_topic")


class SendStatus(Enum):
    """The status of a stored message (Java: SendStatus).

    All four mean that the master has stored the message. The last three mean that it was not also
    flushed (FLUSH_DISK_TIMEOUT) or replicated (FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE) in time.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@define(frozen=True, kw_only=True)
class SendResult:
    """The ids and the place of a stored message (Java: SendResult).

    ``msg_id`` is the unique id that the producer gave the message, ``offset_msg_id`` the id that
    contains its broker and physical offset. For a batch both are comma-separated lists, and
    ``queue_offset`` is that of the first message.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int


_set_status = slot_setter(SendResult, "status")
_set_msg_id = slot_setter(SendResult, "msg_id")
_set_offset_msg_id = slot_setter(SendResult, "offset_msg_id")
_set_result_queue = slot_setter(SendResult, "queue")
_set_queue_offset = slot_setter(SendResult, "queue_offset")


def send_result(
    status: SendStatus, msg_id: str, offset_msg_id: str, queue: MessageQueue, queue_offset: int
) -> SendResult:
    """Return a result; the generated method takes twice as long."""
    result = _new(SendResult)
    _set_status(result, status)
    _set_msg_id(result, msg_id)
    _set_offset_msg_id(result, offset_msg_id)
    _set_result_queue(result, queue)
    _set_queue_offset(result, queue_offset)
    return result


class _DecodedLater:
    """The base of MessageExt, which keeps its record until a field is read that needs it."""

    __slots__ = ("_record",)

    if not TYPE_CHECKING:  # The fields have their types.
        _record: bytes

        def __getattr__(self, name: str) -> Any:
            if name == "body":
                return inflated_body(self.stored.body, self.stored.sys_flag)
            if name not in ("topic", "properties", "stored"):
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            read: Callable[[str], Any] = super().__getattribute__
            try:
                record = read("_record")
                if name == "stored":
                    _set_decoded(self, decode_message(record))
                    object.__delattr__(self, "_record")
                else:
                    topic, properties = topic_and_properties(record)
                    _set_received_topic(self, topic)
                    _set_received_properties(self, properties)
            except AttributeError:
                pass  # Another thread has decoded it at the same time.
            return read(name)


@define(frozen=True, init=False)
class MessageExt(_DecodedLater):
    """A message received from a broker (Java: MessageExt).

    * ``queue``: the queue that it was pulled from.
    * ``stored``: every field of the record as it is in the log, including store time, hosts, and
      the number of redeliveries.
    * ``queue_offset``: the offset of the message in its queue.
    * ``topic``: the topic of the message.
    * ``properties``: all properties of the message, those of the system included.
    * ``body``: the body as it was sent. A compressed one is inflated at each access;
      RemoteProtocolError is raised if that fails.
    * ``stored_bytes``: the size of the body in the log, where it may be compressed.
    """

    queue: MessageQueue
    stored: StoredMessage
    queue_offset: int = field(init=False, eq=False, repr=False)
    topic: str = field(init=False, eq=False, repr=False)
    properties: Mapping[str, str] = field(init=False, eq=False, repr=False)
    body: bytes = field(init=False, eq=False, repr=False)
    stored_bytes: int = field(init=False, eq=False, repr=False)

    def __init__(self, *, queue: MessageQueue, stored: StoredMessage) -> None:
        _set_queue(self, queue)
        _set_decoded(self, stored)
        _set_offset(self, stored.queue_offset)
        _set_stored_bytes(self, len(stored.body))
        if not stored.sys_flag & COMPRESSED:
            _set_received_body(self, stored.body)

    def __reduce__(self) -> tuple[Callable[..., MessageExt], tuple[MessageQueue, StoredMessage]]:
        return _message_ext, (self.queue, self.stored)

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(names.PROPERTY_TAGS)

    @property
    def keys(self) -> str:
        """The keys, separated by blanks; empty if there are none."""
        return self.properties.get(names.PROPERTY_KEYS, "")

    @property
    def reconsume_times(self) -> int:
        """How often consumers of the group have asked for the message again."""
        return self.stored.reconsume_times

    @property
    def msg_id(self) -> str:
        """The producer's unique id, or the offset id of a message without one."""
        return self.properties.get(names.PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id that contains the address of the broker and the physical offset."""
        return offset_msg_id(self.stored.store_host, self.stored.physical_offset)


_set_queue = slot_setter(MessageExt, "queue")
_set_stored = slot_setter(MessageExt, "stored")
_set_offset = slot_setter(MessageExt, "queue_offset")
_set_received_topic = slot_setter(MessageExt, "topic")
_set_received_properties = slot_setter(MessageExt, "properties")
_set_stored_bytes = slot_setter(MessageExt, "stored_bytes")
_set_received_body = slot_setter(MessageExt, "body")
_set_record = slot_setter(_DecodedLater, "_record")
_run_through: Callable[[Iterable[object]], None] = deque[object](maxlen=0).extend
"""Takes all items of an iterable and keeps none."""


def _set_decoded(message: object, stored: StoredMessage) -> None:
    _set_stored(message, stored)
    _set_received_topic(message, stored.topic)
    _set_received_properties(message, stored.properties)


def _message_ext(queue: MessageQueue, stored: StoredMessage) -> MessageExt:
    return MessageExt(queue=queue, stored=stored)


def messages_of(queue: MessageQueue, found: ReceivedRecords) -> list[MessageExt]:
    """Return the messages of a pull from ``queue``."""
    # One field of all messages after the other, by functions in C only: no Python frame a message.
    messages = list(map(_new, repeat(MessageExt, len(found.records))))
    _run_through(map(_set_queue, messages, repeat(queue)))
    _run_through(map(_set_offset, messages, found.queue_offsets))
    _run_through(map(_set_stored_bytes, messages, map(len, found.bodies)))
    _run_through(map(_set_record, messages, found.records))
    if any(found.compressed):
        plain = zip(messages, found.bodies, found.compressed, strict=True)
        for message, body, is_compressed in plain:
            if not is_compressed:
                _set_received_body(message, body)
    else:
        _run_through(map(_set_received_body, messages, found.bodies))
    return messages


# ------------------------------------------------------------------------------ checks


def check_message(message: Message, body_bytes_max: int, delay_level_max: int) -> None:
    """Raise RequestRejectedError, mostly InvalidMessageError, for a message that Java's producer
    refuses to send.
    """
    _check_topic(message.topic)
    size = len(message.body)
    if not size:
        raise InvalidMessageError("the message body is empty")
    if size > body_bytes_max:
        raise InvalidMessageError(f"the body has {size} bytes, more than {body_bytes_max}")
    if is_plain(message):
        return
    if message.delay_level > delay_level_max:
        raise InvalidMessageError(
            f"delay_level: found {message.delay_level}, expected at most {delay_level_max}"
            " (ProducerSettings.delay_level_max)"
        )
    for name, value in message.properties.items():
        if name in RESERVED_PROPERTIES:
            raise InvalidMessageError(f"the property name {name} is reserved")
        if not name.strip() or not value.strip():
            raise InvalidMessageError(f"the property {name!r}={value!r} has a blank name or value")


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    """Check the topic of a message. Only those that pass are remembered."""
    check_topic(topic)
    check_send_topic(topic)


def is_plain(message: Message) -> bool:
    """Return whether it is known that the message has only a topic and a body."""
    return message._plain_topic is not None


def plain_batch_body(
    messages: Sequence[Message], id_start: str, id_ends: str, body_bytes_max: int
) -> bytes | None:
    """Return the body of a batch if :func:`check_message` allows all messages, their topic is that
    of the first one, and they have only a topic and a body; otherwise None. The topic of the first
    one has been checked. The unique ids are as :meth:`UniqueIds.take` returns them.
    """
    topic, count = messages[0].topic, len(messages)
    bodies = [message.body for message in messages if message._plain_topic == topic]
    if len(bodies) != count:
        return None
    sizes = [*map(len, bodies)]
    if not 0 < min(sizes) <= max(sizes) <= body_bytes_max:
        return None
    ends = id_ends.encode().split(b",")
    start, end = (_PLAIN_START + id_start).encode(), _PLAIN_END.encode()
    length = len(start) + len(ends[0]) + len(end)
    heads = {size: batch_item_head(0, size, length) for size in set(sizes)}
    # One part of all messages after the other, by functions in C only.
    parts = [end] * (5 * count)
    parts[0::5] = map(heads.__getitem__, sizes)
    parts[1::5] = bodies
    parts[2::5] = [length.to_bytes(2) + start] * count
    parts[3::5] = ends
    return b"".join(parts)


def property_string(
    message: Message, unique_id: str, reserved: Mapping[str, str] | None = None
) -> str:
    """Return the properties of a checked message, including ``reserved`` ones."""
    if is_plain(message) and not reserved:
        return f"{_PLAIN_START}{unique_id}{_PLAIN_END}"
    wait = "true" if message.wait_store_ok else "false"
    pairs = {**message.properties, **(reserved or {})}
    if message.keys:
        pairs[names.PROPERTY_KEYS] = message.keys
    pairs[names.PROPERTY_UNIQ_KEY] = unique_id
    pairs[names.PROPERTY_WAIT] = wait
    if message.tags:
        pairs[names.PROPERTY_TAGS] = message.tags
    if message.delay_level:
        pairs[names.PROPERTY_DELAY] = str(message.delay_level)
    try:
        raw = encode_properties(pairs)
    except ValueError as error:
        raise InvalidMessageError(str(error)) from None
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise InvalidMessageError(
            f"the properties have {len(raw)} bytes, more than {PROPERTIES_BYTES_MAX}"
        )
    return raw.decode()


# ------------------------------------------------------------------------------ compression


def inflated_body(body: bytes, sys_flag: int) -> bytes:
    """Return the body, inflated if ``sys_flag`` marks it as compressed. Raises RemoteProtocolError
    if that fails.
    """
    if not sys_flag & COMPRESSED:
        return body
    inflated, is_whole = inflated_start(body, sys_flag, INFLATED_BODY_BYTES_MAX)
    if not is_whole:
        raise RemoteProtocolError(
            f"the compressed body inflates to more than {INFLATED_BODY_BYTES_MAX} bytes"
        )
    return inflated


def inflated_start(body: bytes, sys_flag: int, limit: int) -> tuple[bytes, bool]:
    """Return up to ``limit`` bytes of a body as it was sent, and whether that is all of it. Raises
    RemoteProtocolError as :func:`inflated_body`.
    """
    if not sys_flag & COMPRESSED:
        return body[:limit], len(body) <= limit
    kind = sys_flag & COMPRESSION_TYPE_MASK
    if kind not in (0, COMPRESSION_ZLIB):
        name = {0x100: "LZ4", 0x200: "ZSTD"}.get(kind, f"an unknown type, {kind >> 8}")
        raise RemoteProtocolError(f"the body is compressed with {name}; only ZLIB can be read")
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, limit)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed body cannot be inflated: {error}") from error
    if inflater.unconsumed_tail:
        return inflated, False
    if not inflater.eof and len(inflated) < limit:
        raise RemoteProtocolError("the compressed body is truncated")
    return inflated, inflater.eof


# ------------------------------------------------------------------------------ addresses


def host_address(host: Host) -> str:
    """Return a packed address as ``ip:port``, with brackets around IPv6."""
    packed, port = host
    ip = ipaddress.ip_address(packed)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def _check_types(message: Message) -> None:
    """Raise InvalidMessageError for a value of a wrong type."""
    body: object = message.body
    if not isinstance(body, bytes | bytearray | memoryview):
        hint = "; encode it, for example with .encode()" if isinstance(body, str) else ""
        raise InvalidMessageError(f"body: found {_type(body)}, expected bytes{hint}")
    for name in ("topic", "tags", "keys"):
        value = getattr(message, name)
        if not isinstance(value, str) and not (name == "tags" and value is None):
            raise InvalidMessageError(f"{name}: found {_type(value)}, expected a text")
    for name in ("delay_level", "flag"):
        value = getattr(message, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidMessageError(f"{name}: found {value!r}, expected an integer")
    if message.delay_level < 0:
        raise InvalidMessageError(f"delay_level: found {message.delay_level}, expected 0 or more")
    properties: object = message.properties
    if not isinstance(properties, Mapping):
        raise InvalidMessageError(f"properties: found {_type(properties)}, expected a mapping")
    for name, text in properties.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidMessageError(f"the property {name!r}={text!r} is not a pair of texts")


def _type(value: object) -> str:
    return f"a value of type {type(value).__name__}"
