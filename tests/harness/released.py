"""What a reader must find again in the stores of released versions (tests/golden/released)."""

from __future__ import annotations

from typing import Any

from rmqpy.client.core.message import MessageExt


def described(message: MessageExt) -> dict[str, Any]:
    """Return what a reader must find again."""
    stored = message.stored
    return {
        "topic": stored.topic,
        "queue": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "physicalOffset": stored.physical_offset,
        "size": stored.size,
        "id": message.msg_id,
        "bodyCRC": stored.body_crc,
        "storeTimestamp": stored.store_timestamp_ms,
        "properties": dict(stored.properties),
        "body": message.body.hex(),
    }
