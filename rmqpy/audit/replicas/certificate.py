"""The equality certificate: evidence that every message of one store is the same in others.

A certificate is computed from manifests. The first one is the reference; every message of it must
be in each of the other stores: with the same content (queue offset, message id, body CRC and size,
times, hosts, flags, properties), at the same physical offset unless it was moved on purpose, and
reachable through its consume queue, by its keys, and by its id. Messages that have expired are
counted.

Stores of one time must contain the same messages, in whatever order they are given. An earlier
state must be contained in each later one, which may have more messages; the later ones are then
compared with each other, too. So the verdict is one of these:

================  ================================================================================
EQUAL             all stores contain the same messages, apart from those that have expired
CONTAINED         an earlier state is contained in stores that are equal and have more
NOT EQUAL         a message is missing, different, undecided, damaged or unreachable in one of
                  them, or a store of the same time has more
NOTHING COMPARED  two of the stores have no message in common, and no difference
================  ================================================================================

Messages are compared in buckets of 1024 queue offsets. If both stores have all messages of a
bucket, their sums decide at once. If the sums differ, or only one store has all of the messages
(the queue has grown since), messages are read one after the other through the consume queue, if the
files of both stores are available (:class:`rmqpy.audit.facts.log_reader.QueueMessages`). An earlier
state of a store is known only by its sums: then the other store's messages with the same queue
offsets are summed, too. The same applies to a store on another host (:class:`MessageSummer`).
Messages for which neither is possible are reported as undecided.

If an earlier manifest has the name of a later one, it describes the same directory at an earlier
time: the present files are not its files. Its subject is called ``NAME before``.

The JSON form can be signed: with HMAC-SHA-256 and a key of the operator, over everything else in
it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import asdict, define, evolve, field, fields

from rmqpy.audit.facts.log_reader import MessageValue, QueueMessages
from rmqpy.audit.replicas.manifest import Bucket, Manifest, QueueDigest
from rmqpy.audit.scan.findings import FindingCode, Severity
from rmqpy.codec.layout import ENTRY_HEADER_SIZE
from rmqpy.codec.tally.kernel import BUCKET_SHIFT
from rmqpy.model.errors import RmqError
from rmqpy.store.ledger.classic_prefix import digest_of_blocks

__all__ = [
    "Certificate",
    "Comparison",
    "MessageDifference",
    "MessageSummer",
    "Subject",
    "certify",
    "check_signature",
    "is_signed",
    "signature_of",
]

KIND: Final = "rmqpy-certificate"
CERTIFICATE_FORMAT: Final = 1
DIFFERENCES_MAX: Final = 100
"""The maximum number of differences that a comparison lists; all are counted."""
_BUCKET = 1 << BUCKET_SHIFT


@define(slots=True, frozen=True, kw_only=True)
class Subject:
    """One store of a certificate.

    ``by_queue`` and ``by_id`` count the messages that are reachable that way. ``keys`` is the
    number of (message, key) pairs that must be in the key index, ``keys_found`` the number of those
    that are. ``digest`` is the digest of the manifest's content
    (:meth:`rmqpy.audit.replicas.manifest.Manifest.content_digest`).
    """

    name: str
    digest: str
    begin: int
    end: int
    messages: int
    queued: int
    by_queue: int
    by_id: int
    keys: int
    keys_found: int
    divided_offset: int = -1
    """The end of the last file of the old log, where the DLedger log starts or would start; -1
    without an old log.
    """
    old_log_end: int = -1
    old_log_digest: str = ""
    """The digests of the old log's files, as a member sends them to others
    (:mod:`rmqpy.store.ledger.classic_prefix`).
    """
    findings: dict[str, int] = field(factory=dict)
    first_findings: tuple[dict[str, Any], ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class MessageDifference:
    """One message that is not the same in both stores.

    ``field`` is "missing", "bucket" (messages that could not be compared individually), or the name
    of the field that differs.
    """

    topic: str
    queue_id: int
    queue_offset: int
    field: str
    reference: str
    other: str


@define(slots=True, frozen=True, kw_only=True)
class Comparison:
    """The comparison of the reference with one other store, in messages.

    ``undecided`` counts messages in buckets whose sums differ if the files were not available to
    find the differing message; ``moved`` is a lower bound then.
    """

    other: str
    same: int
    moved: int
    missing: int
    different: int
    undecided: int
    expired: int
    more: int
    reference: str = ""
    """The name of the store that ``other`` is compared with; "" for the first subject."""
    may_have_more: bool = True
    """True if the reference is an earlier state: messages have been added since."""
    tables: tuple[str, ...] = ()
    """Configuration tables with different content."""
    differences: tuple[MessageDifference, ...] = ()

    @property
    def is_equal(self) -> bool:
        """True if the other store contains the same messages, or more if it may."""
        is_excess = self.more > 0 and not self.may_have_more
        return not (self.missing or self.different or self.undecided or is_excess)

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in _COUNTS}
        text = ", ".join(f"{value} {name}" for name, value in counts.items() if value)
        return f"{self.reference} compared with {self.other}: {text or 'nothing to compare'}"


_COUNTS: Final = ("same", "moved", "missing", "different", "undecided", "expired", "more")


@define(slots=True, frozen=True, kw_only=True)
class Certificate:
    """The certificate; ``subjects[0]`` is the reference."""

    made_ms: int
    subjects: tuple[Subject, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def is_equal(self) -> bool:
        """True if the stores contain the same messages, or an earlier state is contained in them,
        and every message is intact and reachable through its queue and by its id.
        """
        intact = not any(
            name.startswith(("RECORD_", "ENTRY_"))
            and name in FindingCode.__members__
            and FindingCode[name].severity is Severity.DAMAGE
            for subject in self.subjects
            for name in subject.findings
        )
        reached = all(
            subject.by_queue == subject.queued and subject.by_id == subject.messages
            for subject in self.subjects
        )
        same = all(comparison.is_equal for comparison in self.comparisons)
        return intact and reached and same and not self._is_vacuous

    @property
    def _is_vacuous(self) -> bool:
        return any(each.is_equal and not each.same for each in self.comparisons)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report."""
        for each in self.subjects:
            yield (
                f"{each.name}: {each.messages} messages, {each.by_queue} of {each.queued} by queue,"
                f" {each.by_id} by id, {each.keys_found} of {each.keys} keys"
            )
        for compared in self.comparisons:
            yield str(compared)
            if compared.more and not compared.may_have_more:
                lacking = f"{compared.more} messages that {compared.reference} lacks"
                yield f"  {compared.other} has {lacking}"
            for sentence in _sentences(compared):
                yield f"  {sentence}"
        yield self.verdict

    @property
    def verdict(self) -> str:
        """EQUAL, CONTAINED, NOT EQUAL, or NOTHING COMPARED. See the text of the module."""
        if not self.is_equal:
            compared = all(each.is_equal for each in self.comparisons)
            return "NOTHING COMPARED" if compared and self._is_vacuous else "NOT EQUAL"
        return "CONTAINED" if any(compared.more for compared in self.comparisons) else "EQUAL"

    def encode(self, key: bytes | None = None) -> bytes:
        """Return the JSON form, signed if ``key`` is given."""
        tree = {
            "kind": KIND,
            "format": CERTIFICATE_FORMAT,
            "equal": self.is_equal,
            "verdict": self.verdict,
            **asdict(self),
        }
        if key:
            tree["signature"] = signature_of(tree, key)
        return json.dumps(tree, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes) -> Certificate:
        """Return the certificate in ``raw``. Raise RmqError if it is not a certificate.

        The signature is not checked here, but by :func:`check_signature`.
        """
        tree = _tree(raw)
        try:
            return cls(
                made_ms=tree["made_ms"],
                subjects=tuple(
                    Subject(**{**each, "first_findings": tuple(each["first_findings"])})
                    for each in tree["subjects"]
                ),
                comparisons=tuple(map(_comparison_of, tree["comparisons"])),
            )
        except (KeyError, TypeError) as error:
            raise RmqError(f"not a certificate: {error!r}") from error


def _sentences(compared: Comparison) -> Iterator[str]:
    """Yield a sentence for the differences of each queue in each field."""
    groups: dict[tuple[str, int, str], list[MessageDifference]] = {}
    for each in compared.differences:
        groups.setdefault((each.topic, each.queue_id, each.field), []).append(each)
    for (topic, queue_id, name), group in groups.items():
        first, last = group[0], group[-1]
        where = f"topic {topic}, queue {queue_id}"
        if len(group) > 1:
            where += f", {len(group)} times from offset {first.queue_offset} to {last.queue_offset}"
        elif first.queue_offset >= 0:
            where += f", offset {first.queue_offset}"
        other = f"{first.other or 'nothing'} in {compared.other}"
        values = f"{first.reference} in {compared.reference}, {other}"
        what = {"missing": "missing", "bucket": "not compared message by message"}
        yield f"{where}: {what.get(name, f'{name} differs')}: {values}"
    left = compared.missing + compared.different + compared.undecided - len(compared.differences)
    if len(compared.differences) == DIFFERENCES_MAX and left > 0:
        yield f"and {left} more"


def _comparison_of(tree: dict[str, Any]) -> Comparison:
    differences = tuple(MessageDifference(**each) for each in tree["differences"])
    return Comparison(**{**tree, "tables": tuple(tree["tables"]), "differences": differences})


def _tree(raw: bytes) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(raw)
        if tree["kind"] != KIND or tree["format"] > CERTIFICATE_FORMAT:
            raise RmqError(f"not a certificate of a known format: {tree['kind']}")
    except (KeyError, TypeError, ValueError) as error:
        raise RmqError(f"not a certificate: {error!r}") from error
    return tree


def signature_of(tree: Mapping[str, Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 over everything in a JSON object except its signature."""
    content = {name: value for name, value in tree.items() if name != "signature"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_signature(raw: bytes, key: bytes) -> bool:
    """Return whether the holder of ``key`` signed exactly this certificate."""
    tree = _tree(raw)
    given = str(tree.get("signature", ""))
    return hmac.compare_digest(given, signature_of(tree, key))


def is_signed(raw: bytes) -> bool:
    """Return whether ``raw`` is a certificate with a signature."""
    try:
        return "signature" in _tree(raw)
    except RmqError:
        return False


class MessageSummer(Protocol):
    """A store that sums messages on request; its files need not be available."""

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int]:
        """Return sums like :meth:`rmqpy.audit.facts.log_reader.QueueMessages.sums`."""


def certify(
    manifests: Sequence[Manifest],
    now_ms: int,
    available: Mapping[str, MessageSummer] | None = None,
    *,
    earlier: int = 0,
) -> Certificate:
    """Compare the stores of these manifests, the first ``earlier`` of which are earlier states.

    ``available`` maps names of manifests to stores whose files can be read.
    """
    named = list(_distinctly_named(manifests))
    past, present = named[:earlier], named[earlier:]
    pairs = [(before, after, True) for before in past for after in present]
    pairs += [(present[0], other, False) for other in present[1:]]
    return Certificate(
        made_ms=now_ms,
        subjects=tuple(map(_subject, named)),
        comparisons=tuple(
            _Compare(reference, other, available or {}, may_have_more=grown).run()
            for reference, other, grown in pairs
        ),
    )


def _distinctly_named(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    for number, manifest in enumerate(manifests, 1):
        if manifest.name in {later.name for later in manifests[number:]}:
            manifest = evolve(manifest, name=f"{manifest.name} before")
        yield manifest


def _subject(manifest: Manifest) -> Subject:
    messages = manifest.messages
    old_log = manifest.log("classic")
    files = () if old_log is None else old_log.files
    return Subject(
        name=manifest.name,
        digest=manifest.content_digest(),
        begin=manifest.begin,
        end=manifest.end,
        messages=messages,
        queued=sum(queue.count for queue in manifest.queues),
        by_queue=sum(queue.right_units for queue in manifest.queues),
        by_id=messages - manifest.findings.get("RECORD_PLACE", 0),
        keys=manifest.keys,
        keys_found=manifest.keys_found,
        divided_offset=files[-1].end_offset if files else -1,
        old_log_end=files[-1].end if files else -1,
        old_log_digest=",".join(
            digest_of_blocks(file.blocks) for file in reversed(files) if file.blocks
        ),
        findings=manifest.findings,
        first_findings=manifest.first_findings,
    )


@define(slots=True)
class _Compare:
    reference: Manifest
    other: Manifest
    available: Mapping[str, MessageSummer]
    may_have_more: bool
    same: int = 0
    moved: int = 0
    missing: int = 0
    different: int = 0
    undecided: int = 0
    expired: int = 0
    differences: list[MessageDifference] = field(factory=list)

    def run(self) -> Comparison:
        others = {(queue.topic, queue.queue_id): queue for queue in self.other.queues}
        for queue in self.reference.queues:
            self._queue(queue, others.get((queue.topic, queue.queue_id)))
        return Comparison(
            other=self.other.name,
            same=self.same,
            moved=self.moved,
            missing=self.missing,
            different=self.different,
            undecided=self.undecided,
            expired=self.expired,
            more=self._more(others),
            reference=self.reference.name,
            may_have_more=self.may_have_more,
            tables=tuple(self._tables()),
            differences=tuple(self.differences),
        )

    def _more(self, others: Mapping[tuple[str, int], QueueDigest]) -> int:
        """Return how many messages only the other store has, those without a queue offset
        included.
        """
        mine = {(queue.topic, queue.queue_id): queue for queue in self.reference.queues}
        more = 0
        for key, queue in others.items():
            known = mine.get(key)
            max_offset, unqueued = (known.max_offset, known.unqueued) if known else (0, 0)
            more += max(0, queue.max_offset - max(max_offset, queue.min_offset))
            more += max(0, queue.unqueued - unqueued)
        return more

    def _tables(self) -> Iterator[str]:
        mine = {table.name: table.digest for table in self.reference.tables}
        theirs = {table.name: table.digest for table in self.other.tables}
        yield from (n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n))

    def _queue(self, mine: QueueDigest, theirs: QueueDigest | None) -> None:
        if theirs is None:
            if mine.count + mine.unqueued:
                self.missing += mine.count + mine.unqueued
                self._add_difference(
                    mine, mine.min_offset, "missing", f"{mine.count} messages", "no queue"
                )
            return
        buckets = {bucket[0]: bucket for bucket in theirs.buckets}
        for bucket in mine.buckets:
            number = bucket[0]
            self._bucket(mine, theirs, bucket, buckets.get(number, (number, 0, 0, 0)))

    def _bucket(
        self, mine: QueueDigest, theirs: QueueDigest, bucket: Bucket, other: Bucket
    ) -> None:
        number, count, _, positions = bucket
        if bucket[:3] == other[:3]:
            self.same += count
            if positions != other[3]:
                self._places(mine, number)
            return
        if number < 0:
            self._unqueued(mine, count, other[1])
            return
        first = max(number * _BUCKET, mine.min_offset)
        end = min((number + 1) * _BUCKET, mine.max_offset)
        expired = min(max(theirs.min_offset - first, 0), end - first)
        self.expired += expired
        before = self.different + self.missing + self.undecided
        self._messages(mine, bucket, first + expired, end)
        is_reported = self.different + self.missing + self.undecided > before
        if count == other[1] and not expired and not is_reported:
            # The messages that the queues lead to are equal, so the log contains others as well.
            self.undecided += 1
            self._add_difference(mine, first, "bucket", "digest", "another digest")

    def _unqueued(self, queue: QueueDigest, count: int, other: int) -> None:
        """Count messages without a queue offset, which cannot be compared."""
        if other < count:
            self.missing += count - other
        self.undecided += min(count, other)
        self._add_difference(queue, -1, "bucket", f"{count} messages", f"{other} messages")

    def _pairs(
        self, queue: QueueDigest, first: int, end: int
    ) -> Iterator[tuple[int, MessageValue | None, MessageValue | None]] | None:
        one = self.available.get(self.reference.name)
        two = self.available.get(self.other.name)
        if not isinstance(one, QueueMessages) or not isinstance(two, QueueMessages):
            return None
        mine = one.read(queue.topic, queue.queue_id, first, end)
        theirs = two.read(queue.topic, queue.queue_id, first, end)
        return ((at, a, b) for (at, a), (_, b) in zip(mine, theirs, strict=True))

    def _places(self, queue: QueueDigest, number: int) -> None:
        """Compare the positions of a bucket's messages, whose content is equal."""
        first = max(number * _BUCKET, queue.min_offset)
        end = min((number + 1) * _BUCKET, queue.max_offset)
        pairs = self._pairs(queue, first, end) if number >= 0 else None
        if pairs is None:
            self.moved += 1
            return
        for _, mine, theirs in pairs:
            if mine is not None and theirs is not None:
                self.same -= 1
                self._message(queue, mine, theirs)

    def _sum(self, queue: QueueDigest, bucket: Bucket, first: int, end: int) -> None:
        """Compare by sums: one of the stores is known only by the sums of its messages."""
        span = queue.topic, queue.queue_id, first, end
        one, two = self.available.get(self.reference.name), self.available.get(self.other.name)
        is_complete = end - first == bucket[1]
        mine = bucket[1:] if is_complete else one.sums(*span) if one is not None else None
        if mine is None or two is None:
            self.undecided += end - first
            self._add_difference(
                queue, first, "bucket", f"{end - first} messages", "files not available"
            )
            return
        theirs = two.sums(*span)
        if theirs[:2] == mine[:2]:
            self.same += mine[0]
            # Sums show that messages have moved, but not how many.
            self.moved += theirs[2] != mine[2]
        elif theirs[0] < mine[0]:
            self.missing += mine[0] - theirs[0]
            self.undecided += theirs[0]
            self._add_difference(
                queue, first, "missing", f"{mine[0]} messages", f"{theirs[0]} messages"
            )
        else:
            self.undecided += mine[0]
            self._add_difference(queue, first, "bucket", "digest", "another digest")

    def _messages(self, queue: QueueDigest, bucket: Bucket, first: int, end: int) -> None:
        pairs = self._pairs(queue, first, end)
        if pairs is None:
            if end > first:
                self._sum(queue, bucket, first, end)
            return
        for queue_offset, mine, theirs in pairs:
            if mine is None:
                self.undecided += 1
                self._add_difference(queue, queue_offset, "missing", "not reachable", "")
            elif theirs is None:
                self.missing += 1
                self._add_difference(queue, queue_offset, "missing", mine.message_id, "nothing")
            else:
                self._message(queue, mine, theirs)

    def _message(self, queue: QueueDigest, mine: MessageValue, theirs: MessageValue) -> None:
        names = [name for name in CONTENT_FIELDS if getattr(mine, name) != getattr(theirs, name)]
        moved = theirs.physical_offset != mine.physical_offset
        pointer_shift = abs(theirs.prepared_transaction_offset - mine.prepared_transaction_offset)
        if pointer_shift not in (0, ENTRY_HEADER_SIZE):
            # The offset can only have changed if it refers to the first message of a DLedger file
            # that was converted: that message moves down by the size of the entry header.
            names.append("prepared_transaction_offset")
        if not names:
            self.same += 1
            self.moved += moved or pointer_shift > 0
            return
        self.different += 1
        for name in names:
            values = str(getattr(mine, name)), str(getattr(theirs, name))
            self._add_difference(queue, mine.queue_offset, name, *values)

    def _add_difference(
        self, queue: QueueDigest, queue_offset: int, what: str, one: str, two: str
    ) -> None:
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


PLACE_FIELDS: Final = frozenset(
    ("physical_offset", "offset_id", "message_id", "prepared_transaction_offset")
)
"""The fields that depend on a message's position. A unique id is compared as a property."""
CONTENT_FIELDS: Final = tuple(
    attribute.name for attribute in fields(MessageValue) if attribute.name not in PLACE_FIELDS
)
