"""What a message must be to be stored (Java's checks before the append, in its order)."""

from __future__ import annotations

from rmqpy.codec.layout import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, record_size
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage
from rmqpy.store.queues.table import is_queue_name
from rmqpy.store.results import PutResult

_ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL


def validate_message(draft: OutgoingMessage, size_limit: int) -> PutResult | None:
    """Why ``draft`` is refused; None when it is not. ``size_limit`` is maxMessageSize."""
    if len(draft.topic) > TOPIC_BYTES_MAX:
        return PutResult(_ILLEGAL, remark=f"topic length above {TOPIC_BYTES_MAX}")
    if not is_queue_name(draft.topic, draft.queue_id):
        remark = f"no queue can be named {draft.topic!r}, {draft.queue_id}"
        return PutResult(_ILLEGAL, remark=remark)
    if len(draft.properties) > PROPERTIES_BYTES_MAX:
        remark = f"properties above {PROPERTIES_BYTES_MAX} bytes"
        return PutResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, remark=remark)
    sizes = (len(draft.body), len(draft.topic), len(draft.properties))
    if record_size(draft.sys_flag, *sizes) > size_limit:
        return PutResult(_ILLEGAL, remark=f"message above {size_limit} bytes")
    return None
