"""Compare the messages of two stores: by the sums of their manifests, then message by message.

Messages are compared in buckets of 1024 queue offsets. If both stores have all messages of a
bucket, their sums decide at once. If the sums differ, or only one store has all of the messages
(the queue has grown since), messages are read one after the other through the consume queue, if the
files of both stores are available (:class:`rmqpy.audit.facts.log_reader.QueueMessages`). An earlier
state of a store is known only by its sums: then the other store's messages with the same queue
offsets are summed, too. The same applies to a store on another host (:class:`MessageSummer`).
Messages for which neither is possible are reported as undecided.

Every field of a message is compared. Two fields contain offsets, PHYSICALOFFSET and
PREPAREDTRANSACTIONOFFSET: they must be equal, too, unless one store has the message in a DLedger
entry and the other in a classic record. Between the two, the first message of each file moves by 48
(:func:`rmqpy.codec.tally.kernel.classic_offset`); after that mapping they must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from attrs import define, evolve, field, fields

from rmqpy.audit.facts.log_reader import MessageValue, QueueMessages
from rmqpy.audit.replicas.manifest import NOT_MAPPED, Bucket, Manifest, QueueDigest
from rmqpy.codec.tally.kernel import BUCKET_SHIFT, classic_offset
from rmqpy.model.names import LEADER_MARKER_TOPIC
from rmqpy.model.text import count_text

__all__ = [
    "DifferenceGroup",
    "MessageComparison",
    "MessageCounts",
    "MessageDifference",
    "MessageSummer",
]

DIFFERENCES_MAX: Final = 100
"""The maximum number of differences that a comparison lists; all are counted."""
GROUPS_MAX: Final = 1000
"""The maximum number of groups of differences."""
_BUCKET: Final = 1 << BUCKET_SHIFT
OFFSET_FIELDS: Final = ("physical_offset", "prepared_transaction_offset")
_NOT_COMPARED: Final = frozenset((*OFFSET_FIELDS, "offset_id", "message_id"))
"""The ids follow from other fields: the unique id is a property, the other one has the offset."""
CONTENT_FIELDS: Final = tuple(
    attribute.name for attribute in fields(MessageValue) if attribute.name not in _NOT_COMPARED
)

Sums = tuple[int, int, int, int]
"""(count, content, positions, mapped positions)."""
QueueKey = tuple[str, int]


class MessageSummer(Protocol):
    """A store that sums messages on request; its files need not be available."""

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> Sums:
        """Return sums like :meth:`rmqpy.audit.facts.log_reader.QueueMessages.sums`."""


@define(slots=True, frozen=True, kw_only=True)
class MessageDifference:
    """One message that is not the same in both stores.

    ``field`` is "missing", "unreachable" (in the reference), "message" (the other store has another
    message with this queue offset), "bucket" (messages that could not be compared individually), or
    the name of the field that differs.
    """

    topic: str
    queue_id: int
    queue_offset: int
    field: str
    reference: str
    other: str


@define(slots=True, frozen=True, kw_only=True)
class DifferenceGroup:
    """All differences of one field in one queue; the values are those of the first."""

    topic: str
    queue_id: int
    field: str
    count: int
    first: int
    last: int
    reference: str
    other: str


@define(slots=True, kw_only=True)
class MessageCounts:
    """The counts of a comparison, in messages.

    ``undecided`` counts messages in buckets whose sums differ if the files were not available to
    find the differing message. ``expired`` and ``expired_in_reference`` count messages that the
    other store still has.
    """

    same: int = 0
    moved: int = 0
    moved_at_least: bool = False
    """Whether more than ``moved`` may have moved: sums show that some messages of a bucket have."""
    missing: int = 0
    different: int = 0
    undecided: int = 0
    expired: int = 0
    more: int = 0
    expired_in_reference: int = 0
    uncommitted: int = 0
    """Messages in entries that one of the stores does not know to be committed: not compared."""


class MessageComparison:
    """The comparison of the messages of two stores; :meth:`run` fills ``counts`` and the lists."""

    def __init__(
        self, reference: Manifest, other: Manifest, available: Mapping[str, MessageSummer]
    ) -> None:
        self.counts = MessageCounts()
        self.differences: list[MessageDifference] = []
        self.groups: dict[tuple[str, int, str], DifferenceGroup] = {}
        self._reference, self._other = reference, other
        self._available = available
        self._mine = _Extent.of(reference)
        self._theirs = _Extent.of(other)
        self._uncommitted = {*reference.uncommitted, *other.uncommitted}

    def run(self) -> None:
        others = {(queue.topic, queue.queue_id): queue for queue in self._other.queues}
        for queue in self._reference.queues:
            self._queue(queue, others.get((queue.topic, queue.queue_id)))
        mine = {(queue.topic, queue.queue_id): queue for queue in self._reference.queues}
        for key, queue in others.items():
            self._only_theirs(queue, mine.get(key))

    @property
    def is_mapped(self) -> bool:
        """Whether all positions could be compared: earlier manifests have no mapped sums."""
        queues = (*self._reference.queues, *self._other.queues)
        return all(bucket[4] != NOT_MAPPED for queue in queues for bucket in queue.buckets)

    def _only_theirs(self, theirs: QueueDigest, mine: QueueDigest | None) -> None:
        """Count the messages that only the other store has, also those without a queue offset."""
        counts, key = self.counts, (theirs.topic, theirs.queue_id)
        begin, end = self._mine.span(key)
        counts.expired_in_reference += max(0, min(begin, theirs.max_offset) - theirs.min_offset)
        first = max(end, theirs.min_offset)
        more = max(0, theirs.max_offset - first)
        pending = sum(
            slot[:2] == key and slot[2] >= first for slot in self._other.uncommitted if more
        )
        counts.more += more - pending
        counts.uncommitted += pending
        if theirs.topic != LEADER_MARKER_TOPIC:
            counts.more += max(0, theirs.unqueued - (mine.unqueued if mine is not None else 0))

    def _queue(self, mine: QueueDigest, theirs: QueueDigest | None) -> None:
        buckets = {} if theirs is None else {bucket[0]: bucket for bucket in theirs.buckets}
        for bucket in mine.buckets:
            number = bucket[0]
            self._bucket(mine, bucket, buckets.get(number, (number, 0, 0, 0, 0)))

    def _bucket(self, mine: QueueDigest, bucket: Bucket, other: Bucket) -> None:
        number, count = bucket[:2]
        if bucket[:3] == other[:3]:
            self.counts.same += count
            if bucket[3] != other[3]:
                self._places(mine, bucket, other)
            return
        if number < 0:
            self._unqueued(mine, count, other[1])
            return
        first = max(number * _BUCKET, mine.min_offset)
        end = min((number + 1) * _BUCKET, mine.max_offset)
        their_begin = self._theirs.span((mine.topic, mine.queue_id))[0]
        expired = min(max(their_begin - first, 0), end - first)
        self.counts.expired += expired
        before = self._found
        self._messages(mine, bucket, first + expired, end, is_absent=not other[1])
        if count == other[1] and not expired and self._found == before:
            # The messages that the queues lead to are equal, so the log contains others as well.
            self.counts.undecided += 1
            self._add(mine, first, "bucket", "digest", "another digest")

    @property
    def _found(self) -> int:
        counts = self.counts
        return counts.different + counts.missing + counts.undecided + counts.uncommitted

    def _unqueued(self, queue: QueueDigest, count: int, other: int) -> None:
        """Count messages without a queue offset, which cannot be compared one by one.

        A leader's marker is nobody's message. A classic slave does not have the last one, so that
        another number of them is no difference.
        """
        if queue.topic == LEADER_MARKER_TOPIC and other != count:
            return
        if other < count:
            self.counts.missing += count - other
        self.counts.undecided += min(count, other)
        self._add(queue, -1, "bucket", count_text(count, "message"), count_text(other, "message"))

    def _pairs(
        self, queue: QueueDigest, first: int, end: int
    ) -> Iterator[tuple[int, MessageValue | None, MessageValue | None]] | None:
        one = self._available.get(self._reference.name)
        two = self._available.get(self._other.name)
        if not isinstance(one, QueueMessages) or not isinstance(two, QueueMessages):
            return None
        mine = one.read(queue.topic, queue.queue_id, first, end)
        theirs = two.read(queue.topic, queue.queue_id, first, end)
        return ((at, a, b) for (at, a), (_, b) in zip(mine, theirs, strict=True))

    def _places(self, queue: QueueDigest, bucket: Bucket, other: Bucket) -> None:
        """Compare the positions of a bucket's messages, whose content is equal."""
        number = bucket[0]
        is_mapped = NOT_MAPPED not in (bucket[4], other[4])
        reframed = self._mine.ledger_begin != self._theirs.ledger_begin
        first = max(number * _BUCKET, queue.min_offset)
        end = min((number + 1) * _BUCKET, queue.max_offset)
        pairs = self._pairs(queue, first, end) if number >= 0 else None
        if pairs is not None:
            for _, mine, theirs in pairs:
                if mine is not None and theirs is not None:
                    self.counts.same -= 1
                    self._message(queue, mine, theirs)
        elif reframed and (bucket[4] == other[4] or not is_mapped):
            self.counts.moved += 1
            self.counts.moved_at_least = True
        else:
            self.counts.same -= bucket[1]
            self.counts.undecided += bucket[1]
            self._add(queue, first, "physical_offset", "digest", "another digest")

    def _sum(self, queue: QueueDigest, bucket: Bucket, first: int, end: int) -> None:
        """Compare by sums: one of the stores is known only by the sums of its messages."""
        span = queue.topic, queue.queue_id, first, end
        one = self._available.get(self._reference.name)
        two = self._available.get(self._other.name)
        is_complete = end - first == bucket[1]
        mine = bucket[1:] if is_complete else one.sums(*span) if one is not None else None
        if mine is None or two is None:
            self.counts.undecided += end - first
            self._add(
                queue, first, "bucket", count_text(end - first, "message"), "files not available"
            )
            return
        theirs = two.sums(*span)
        if theirs[:2] == mine[:2]:
            self.counts.same += mine[0]
            if theirs[2] != mine[2]:
                self._places(queue, (bucket[0], *mine), (bucket[0], *theirs))
        elif theirs[0] < mine[0]:
            self.counts.missing += mine[0] - theirs[0]
            self.counts.undecided += theirs[0]
            values = count_text(mine[0], "message"), count_text(theirs[0], "message")
            self._add(queue, first, "missing", *values, messages=mine[0] - theirs[0])
        else:
            self.counts.undecided += mine[0]
            self._add(queue, first, "bucket", "digest", "another digest")

    def _messages(
        self, queue: QueueDigest, bucket: Bucket, first: int, end: int, *, is_absent: bool
    ) -> None:
        pairs = self._pairs(queue, first, end)
        if pairs is None:
            common = first if is_absent else self._common_end(queue, first, end)
            if common > first:
                self._sum(queue, bucket, first, common)
            if end > common:
                self.counts.missing += end - common
                text = count_text(end - common, "message")
                self._add(queue, common, "missing", text, "nothing", messages=end - common)
            return
        for queue_offset, mine, theirs in pairs:
            if (queue.topic, queue.queue_id, queue_offset) in self._uncommitted:
                self.counts.uncommitted += 1
            elif mine is None:
                self.counts.undecided += 1
                self._add(queue, queue_offset, "unreachable", "", "")
            elif theirs is None:
                self.counts.missing += 1
                self._add(queue, queue_offset, "missing", mine.message_id, "nothing")
            else:
                self._message(queue, mine, theirs)

    def _common_end(self, queue: QueueDigest, first: int, end: int) -> int:
        """Return the end of what both stores have of a bucket, so that the sums of that part decide
        if the other store lags. An earlier state cannot be summed anew: then its end.
        """
        if self._available.get(self._reference.name) is None:
            return end
        return min(max(self._theirs.span((queue.topic, queue.queue_id))[1], first), end)

    def _message(self, queue: QueueDigest, mine: MessageValue, theirs: MessageValue) -> None:
        names = [name for name in CONTENT_FIELDS if getattr(mine, name) != getattr(theirs, name)]
        reframed = self._mine.is_entry(mine) != self._theirs.is_entry(theirs)
        moved = False
        for name in OFFSET_FIELDS:
            one, two = getattr(mine, name), getattr(theirs, name)
            if one == two:
                continue
            moved = True
            # A message that has moved, or one that refers to such a message, which may be in a
            # part of the log that differs in its frames although this message's part does not.
            refers = name == OFFSET_FIELDS[1] and self._mine.differs_in_frames(self._theirs, one)
            one = classic_offset(one, self._mine.file_size)
            two = classic_offset(two, self._theirs.file_size)
            if one != two or not (reframed or refers):
                names.append(name)
        if not names:
            self.counts.same += 1
            self.counts.moved += moved
            return
        self.counts.different += 1
        if mine.message_id != theirs.message_id and {"body_crc", "born_timestamp_ms"} & {*names}:
            self._add(queue, mine.queue_offset, "message", mine.message_id, theirs.message_id)
            return
        for name in names:
            self._add(queue, mine.queue_offset, name, *_values(name, mine, theirs))

    def _add(
        self,
        queue: QueueDigest,
        queue_offset: int,
        what: str,
        one: str,
        two: str,
        *,
        messages: int = 1,
    ) -> None:
        key = queue.topic, queue.queue_id, what
        group = self.groups.get(key)
        if group is not None:
            self.groups[key] = evolve(group, count=group.count + messages, last=queue_offset)
        elif len(self.groups) < GROUPS_MAX:
            self.groups[key] = DifferenceGroup(
                topic=queue.topic,
                queue_id=queue.queue_id,
                field=what,
                count=messages,
                first=queue_offset,
                last=queue_offset,
                reference=one,
                other=two,
            )
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(
                MessageDifference(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=queue_offset,
                    field=what,
                    reference=one,
                    other=two,
                )
            )


@define(slots=True, frozen=True)
class _Extent:
    """What a store's manifest says on the place of its messages.

    ``ledger_begin`` is the offset at which its entries start, or -1 without entries.
    """

    file_size: int
    ledger_begin: int
    spans: dict[QueueKey, tuple[int, int]] = field(factory=dict)

    @classmethod
    def of(cls, manifest: Manifest) -> _Extent:
        ledger = manifest.log("dledger")
        sizes = [log.file_size for log in manifest.logs if log.file_size]
        spans = {
            (each["topic"], each["queue_id"]): (each["max_offset"], each["max_offset"])
            for each in manifest.facts.get("queues", ())
        }
        for queue in manifest.queues:
            if queue.count:
                spans[queue.topic, queue.queue_id] = queue.min_offset, queue.max_offset
        begin = ledger.begin if ledger is not None and ledger.files else -1
        return cls(sizes[-1] if sizes else 0, begin, spans)

    def span(self, key: QueueKey) -> tuple[int, int]:
        """Return (smallest queue offset, the one after the largest) of a queue.

        If all of its messages have expired, both are where the queue continues.
        """
        return self.spans.get(key, (0, 0))

    def is_entry(self, message: MessageValue) -> bool:
        return 0 <= self.ledger_begin <= message.physical_offset

    def differs_in_frames(self, other: _Extent, offset: int) -> bool:
        """Return whether only one of two stores has an entry at ``offset``."""
        mine, theirs = (0 <= each.ledger_begin <= offset for each in (self, other))
        return mine != theirs


def _values(name: str, mine: MessageValue, theirs: MessageValue) -> tuple[str, str]:
    """Return both values of a field; of the properties only those that differ."""
    one, two = getattr(mine, name), getattr(theirs, name)
    if name != "properties":
        return str(one), str(two)
    mine_only, theirs_only = set(one) - set(two), set(two) - set(one)
    return _properties(mine_only), _properties(theirs_only)


def _properties(pairs: set[tuple[str, str]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(pairs)) or "none"
