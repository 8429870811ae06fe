"""Messages: one to be written to a log, and one read from a log."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.model.flags import TRANSACTION_ROLLBACK
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.names import LEADER_MARKER_TOPIC

Host = tuple[bytes, int]
"""A socket address as a record stores it: packed IP (4 or 16 bytes) and port."""


@define(slots=True, kw_only=True)
class OutgoingMessage:
    """The content of a record to be written (Java MessageExtBrokerInner).

    ``properties`` is the encoded property string (UTF-8, ``key\\x01value\\x02…``), ready to be
    stored. ``sys_flag`` must have BORN_HOST_V6 or STORE_HOST_V6 set if, and only if, the respective
    host has 16 bytes. The log assigns queue offset, physical offset and store timestamp.
    """

    topic: bytes
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int
    born_host: Host
    store_host: Host
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait_store_ok: bool = True


def marker(text: str, host: Host, now_ms: int) -> OutgoingMessage:
    """Return a message that no consumer receives: its record has no queue unit and no key."""
    return OutgoingMessage(
        topic=LEADER_MARKER_TOPIC.encode(),
        queue_id=0,
        body=text.encode(),
        properties=b"",
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def slot_setter(kind: type[object], name: str) -> Callable[[object, object], None]:
    """Return a function that sets a field of a frozen class with slots. Only for new objects; it is
    faster than object.__setattr__.
    """
    setter: Callable[[object, object], None] = kind.__dict__[name].__set__
    return setter


@define(slots=True, kw_only=True, frozen=True)
class StoredMessage:
    """A decoded record (Java MessageExt). Timestamps are in ms; ``body`` is as stored, possibly
    compressed.
    """

    size: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: dict[str, str] = field(factory=dict)
    raw_properties: bytes = b""
