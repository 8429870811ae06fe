"""The ids by which a message can be searched for.

===========  ===========================================  ===================================
id           form                                         contains
===========  ===========================================  ===================================
offset id    32 or 56 hex digits, a port of 1 to 65535    broker address, physical offset
unique id    32 or 56 hex digits                          producer's address and process, the
                                                          time since the month began
key          anything else                                one of the keys of a message
===========  ===========================================  ===================================

Offset ids and unique ids have the same lengths. The four bytes that are the port in an offset id
contain the process id in a unique id, which is hardly ever 0, so they tell the two apart.
"""

from __future__ import annotations

import struct
from enum import Enum

from attrs import define

from rmqpy.client.core.unique_id import month_start_ms
from rmqpy.codec.message import parse_offset_msg_id
from rmqpy.model.message import Host

__all__ = ["IdKind", "MessageId", "parse_message_id"]

_PORT_MAX = 65_535
_TAIL = struct.Struct(">IH")
"""Time and counter. The time overflows the signed field of producers after 24 days of a month."""


class IdKind(Enum):
    OFFSET = "offset id"
    UNIQUE = "unique id"
    KEY = "key"


@define(slots=True, frozen=True, kw_only=True)
class MessageId:
    """A parsed id. ``host`` and ``physical_offset`` are those of an offset id.

    ``sent_ms`` is the time at which a unique id was created, if it was created in the month that
    contains the time of the search, or in the month before.
    """

    text: str
    kind: IdKind
    host: Host | None = None
    physical_offset: int = -1
    sent_ms: int = -1


def parse_message_id(text: str, now_ms: int) -> MessageId:
    """Return what ``text`` is; any text is at least a key."""
    try:
        host, offset = parse_offset_msg_id(text)
    except ValueError:
        return MessageId(text=text, kind=IdKind.KEY)
    if 0 < host[1] <= _PORT_MAX and offset >= 0:
        upper = text.upper()
        return MessageId(text=upper, kind=IdKind.OFFSET, host=host, physical_offset=offset)
    return MessageId(text=text.upper(), kind=IdKind.UNIQUE, sent_ms=_sent_ms(text, now_ms))


def _sent_ms(text: str, now_ms: int) -> int:
    since_ms, _ = _TAIL.unpack(bytes.fromhex(text)[-_TAIL.size :])
    begin_ms, _ = month_start_ms(now_ms)
    if begin_ms + since_ms > now_ms:
        begin_ms, _ = month_start_ms(begin_ms - 1)
    return int(begin_ms + since_ms)
