"""MessageQueue and the bodies that map queues to offsets; order locks."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.body import REQUEST_BYTES_MAX, Body
from rmqpy.remoting.lazy_attrs import Int64, lazy_define


@define(slots=True, frozen=True, order=True)
class MessageQueue(Body):
    """One queue of one broker. Orders as in Java: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


@lazy_define()
class LockBatchRequestBody(Body):
    """Code 41."""

    BYTES_MAX = REQUEST_BYTES_MAX

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(factory=list)


@lazy_define()
class UnlockBatchRequestBody(Body):
    """Code 42."""

    BYTES_MAX = REQUEST_BYTES_MAX

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = field(factory=list)


@lazy_define()
class LockBatchResponseBody(Body):
    """Answer of code 41."""

    lock_ok_mq_set: list[MessageQueue] = field(factory=list, metadata={"wire_name": "lockOKMQSet"})


@lazy_define()
class ResetOffsetBody(Body):
    """Codes 220 and 222: the offsets that a client shall take."""

    offset_table: dict[MessageQueue, Int64] = field(factory=dict)


@lazy_define()
class MessageQueueForC(Body):
    topic: str
    broker_name: str
    queue_id: int
    offset: Int64


@lazy_define()
class ResetOffsetBodyForC(Body):
    """Code 220 in the form that is pushed when the asking admin's language is CPP."""

    offset_table: list[MessageQueueForC] = field(factory=list)


@lazy_define()
class GetConsumerStatusBody(Body):
    """Codes 221 and 223."""

    message_queue_table: dict[MessageQueue, Int64] = field(factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(factory=dict)


@lazy_define()
class OffsetMovedEvent(Body):
    """Body of the messages on OFFSET_MOVED_EVENT."""

    consumer_group: str
    message_queue: MessageQueue
    offset_request: Int64
    offset_new: Int64
