"""The sentences on the differences of two stores: of their logs, by offset; of their messages, one
sentence for each topic; and of their tables, as in a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rmqpy.audit.facts.facts import RecordFacts
from rmqpy.audit.facts.table_content import MEMBERS
from rmqpy.audit.replicas.certificate_text import missing_sentence, table_sentence
from rmqpy.audit.replicas.compare import Difference, DifferenceKind
from rmqpy.audit.replicas.manifest import Manifest, QueueDigest
from rmqpy.audit.replicas.message_comparison import DifferenceGroup
from rmqpy.audit.replicas.table_comparison import compare_tables
from rmqpy.audit.replicas.verdict import Verdict

__all__ = ["difference_sentences"]

_KIND = DifferenceKind
_LOGS: Final = {"classic": "classic log", "dledger": "DLedger log"}


def difference_sentences(
    differences: Sequence[Difference], left: Manifest, right: Manifest, verdict: Verdict
) -> Iterator[str]:
    """Yield one sentence for each cause. The first is on the offset at which the logs diverge."""
    in_logs = [each for each in differences if each.kind is not _KIND.TABLE]
    for each in sorted(in_logs, key=lambda each: (each.begin < 0, each.begin)):
        yield _log_sentence(each, left, right)
    for store in (left, right):
        if store.tails:
            yield (
                f"not compared: what {store.name} has after its last record"
                f" ({_codes(store.tails)}), the rest of an interrupted write or a damaged record"
            )
    manifests = {each.name: each for each in (left, right)}
    for pair in verdict.contained:
        if pair.more:
            yield from _missing(manifests[pair.outer], manifests[pair.inner])
    yield from _table_sentences(differences, left, right)


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _log_sentence(each: Difference, left: Manifest, right: Manifest) -> str:
    one, two, log = left.name, right.name, _LOGS.get(each.log, each.log)
    places = f"offsets {each.begin} and {each.end}"
    if each.kind is _KIND.DIVIDE:
        values = ["none" if text == "None" else text for text in (each.left, each.right)]
        return f"the divided offset is {values[0]} in {one}, {values[1]} in {two}"
    if each.kind is _KIND.LOG:
        owner, extent = (two, each.right) if each.left == "none" else (one, each.left)
        return f"only {owner} has a {log}: {extent}"
    if each.kind is _KIND.FILE_SIZE:
        return (
            f"the files of the {log} have {each.left} bytes in {one}, {each.right} in {two}:"
            " nothing else of it is compared"
        )
    if each.kind is _KIND.FILE:
        lacking = one if each.left == "missing" else two
        return f"{lacking} lacks the files of the {log} between {places}"
    if each.kind in (_KIND.BEGIN, _KIND.END):
        other = each.right.rpartition(" ")[2]
        return f"the {log} of {one} {each.left}, that of {two} at {other}" + _first(each)
    if each.kind is _KIND.UNDECIDED:
        text = f"the {log}s may differ between {places}: only the files of both can decide"
    elif each.end > each.begin:
        text = f"the {log}s differ between {places}"
    else:
        text = f"the {log}s differ at offset {each.begin}: {each.left} in {one}"
        text += f", {each.right} in {two}"
    texts = {
        name: _message(record)
        for name, record in ((one, each.record), (two, each.other))
        if record is not None
    }
    if len(set(texts.values())) == 1:
        return f"{text}; {next(iter(texts.values()))}"
    return "; ".join([text, *(f"in {name} {of_it}" for name, of_it in texts.items())])


def _first(each: Difference) -> str:
    record = each.record or each.other
    return f"; the first message after that is {_message(record)}" if record is not None else ""


def _message(record: RecordFacts) -> str:
    return f"topic {record.topic}, queue {record.queue_id} offset {record.queue_offset}"


def _missing(outer: Manifest, inner: Manifest) -> Iterator[str]:
    """Yield a sentence for each topic of which ``inner``, which is contained, lacks messages."""
    queues = {(queue.topic, queue.queue_id): queue for queue in inner.queues}
    by_topic: dict[str, list[DifferenceGroup]] = {}
    for queue in outer.queues:
        groups = _lacking(queue, queues.get((queue.topic, queue.queue_id)))
        by_topic.setdefault(queue.topic, []).extend(groups)
    for topic, found in by_topic.items():
        if found:
            yield missing_sentence(inner.name, topic, found)


def _lacking(full: QueueDigest, part: QueueDigest | None) -> Iterator[DifferenceGroup]:
    """Yield the ranges of a queue that ``part`` lacks at its start, at its end, and of messages
    without a queue offset.
    """
    begin, end = full.min_offset, full.max_offset
    if part is None or not part.count:
        ranges = [(begin, end, full.count)]
    else:
        # What both have is the same, so queue offsets that are not in use are so in both.
        after = max(0, end - part.max_offset)
        before = full.count - part.count - after
        ranges = [(begin, part.min_offset, before), (part.max_offset, end, after)]
    ranges.append((-1, 0, full.unqueued - (part.unqueued if part is not None else 0)))
    for first, stop, count in ranges:
        if count > 0:
            yield DifferenceGroup(
                topic=full.topic,
                queue_id=full.queue_id,
                field="missing",
                count=count,
                first=first,
                last=stop - 1,
                reference="",
                other="",
            )


def _table_sentences(
    differences: Sequence[Difference], left: Manifest, right: Manifest
) -> Iterator[str]:
    judged = list(compare_tables(left, right))
    tables = {each.table for each in judged}
    for each in differences:
        if each.kind is not _KIND.TABLE or each.log in tables:
            continue
        if "none" in (each.left, each.right):
            yield f"{each.log}: only {right.name if each.left == 'none' else left.name} has it"
        elif each.log in MEMBERS and left.contents is not None and right.contents is not None:
            yield f"{each.log}: the files differ, but not in what is compared (harmless)"
        else:
            yield f"{each.log}: the content differs"
    yield from map(table_sentence, judged)
