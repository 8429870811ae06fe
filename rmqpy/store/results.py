"""The results of puts, reads and queries."""

from __future__ import annotations

from attrs import field

from rmqpy.model.codes import GetMessageStatus, PutMessageStatus
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.values import define


@define(slots=True, frozen=True)
class PutResult:
    """The result of one put. ``physical_offsets`` has one element per message (one, or those of a
    batch).

    ``end`` is the log offset after the last byte: the reply may leave when the watermarks of
    :meth:`MessageAppender.acknowledged` have passed it. It is valid only if ``status`` is PUT_OK.
    """

    status: PutMessageStatus
    queue_offset: QueueOffset = QueueOffset(0)
    physical_offsets: tuple[PhysicalOffset, ...] = ()
    end: PhysicalOffset = PhysicalOffset(0)
    remark: str = ""


@define(slots=True, eq=False, repr=False)
class GetMessageResult:
    """The result of one read of a queue (Java GetMessageResult). ``messages`` are views of the log,
    which must be copied before the next turn.
    """

    status: GetMessageStatus
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    messages: list[memoryview] = field(factory=list)
    suggest_pulling_from_slave: bool = False
    behind_bytes: int = 0
    """The bytes from the last message examined to the end of the log; 0 if none was examined."""

    @property
    def size(self) -> int:
        """The number of bytes of all messages."""
        return sum(map(len, self.messages))


@define(slots=True, eq=False, repr=False)
class QueryMessageResult:
    """The messages whose key hash and time match, newest index file first (the client filters by
    exact key).
    """

    messages: list[memoryview] = field(factory=list)
    index_last_update_timestamp_ms: int = 0
    index_last_update_physical_offset: int = 0


@define(slots=True, frozen=True)
class Arrival:
    """A message that has become readable, for long polling."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    physical_offset: int
    store_timestamp_ms: int
