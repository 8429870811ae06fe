"""MessageQueue, and the bodies that lock queues or map them to offsets."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.body import REQUEST_BYTES_MAX, Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, frozen=True, order=True)
class MessageQueue(Body):
    """A queue of a broker, ordered as in Java: by topic, broker name, and queue id."""

    topic: str
    broker_name: str
    queue_id: int


@lazy_define()
class LockBatchRequestBody(Body):
    """The request body of LOCK_BATCH_MQ (41)."""

    BYTES_MAX = REQUEST_BYTES_MAX

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(factory=list)


@lazy_define()
class UnlockBatchRequestBody(Body):
    """The request body of UNLOCK_BATCH_MQ (42)."""

    BYTES_MAX = REQUEST_BYTES_MAX

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(factory=list)


@lazy_define()
class LockBatchResponseBody(Body):
    """The response body of LOCK_BATCH_MQ (41)."""

    lock_ok_mq_set: list[MessageQueue] = field(factory=list, metadata={"wire_name": "lockOKMQSet"})


@lazy_define()
class ResetOffsetBody(Body):
    """The request body of 220 and response body of 222: the new offsets of a client."""

    offset_table: dict[MessageQueue, Int64] = field(factory=dict)


@lazy_define()
class MessageQueueForC(Body):
    topic: str
    broker_name: str
    queue_id: int
    offset: Int64


@lazy_define()
class ResetOffsetBodyForC(Body):
    """The request body of 220 in the form that is used if the language of the admin tool is CPP."""

    offset_table: list[MessageQueueForC] = field(factory=list)


@lazy_define()
class GetConsumerStatusBody(Body):
    """The response body of 221 and 223."""

    message_queue_table: dict[MessageQueue, Int64] = field(factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(factory=dict)


@lazy_define()
class OffsetMovedEvent(Body):
    """The body of the messages in the topic OFFSET_MOVED_EVENT."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: Int64
    offset_new: Int64
