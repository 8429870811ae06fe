"""The text of a certificate: counts, then one sentence for each cause, then the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rmqpy.audit.facts.proof_age import age_sentences
from rmqpy.audit.replicas.certificate import Certificate, Comparison, Subject
from rmqpy.audit.replicas.message_comparison import DifferenceGroup
from rmqpy.audit.replicas.table_comparison import TableDifference
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.model.text import count_text

__all__ = [
    "certificate_lines",
    "comparison_sentences",
    "listed_sentences",
    "missing_sentence",
    "moved_text",
    "table_sentence",
]

SENTENCES_MAX: Final = 20
"""The maximum number of sentences on one comparison; the JSON form has all of them."""
PLACES_MAX: Final = 4
"""The maximum number of queues in one sentence."""
VALUE_MAX: Final = 80

JAVA_NAMES: Final = {
    "body_crc": "BODYCRC",
    "body_bytes": "BODYLENGTH",
    "flag": "FLAG",
    "sys_flag": "SYSFLAG",
    "born_timestamp_ms": "BORNTIMESTAMP",
    "born_host": "BORNHOST",
    "store_timestamp_ms": "STORETIMESTAMP",
    "store_host": "STOREHOST",
    "reconsume_times": "RECONSUMETIMES",
    "physical_offset": "PHYSICALOFFSET",
    "prepared_transaction_offset": "PREPAREDTRANSACTIONOFFSET",
    "properties": "properties",
}
COUNTS: Final = {
    "same": "the same",
    "moved": "of them moved",
    "missing": "missing",
    "different": "different",
    "undecided": "undecided",
    "more": "more",
    "expired": "expired",
    "expired_in_reference": "more that have expired",
    "uncommitted": "not known to be committed",
}


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """Yield the lines of a report. The last one is the verdict."""
    for each in certificate.subjects:
        yield (
            f"{each.name}: {count_text(each.messages, 'message')}, {_by_queue(each)}, {each.by_id}"
            " by id,"
            f" {each.keys_found} of {count_text(each.keys, 'key')}"
        )
        yield from (f"  {sentence}" for sentence in _subject_sentences(each))
        yield from (f"  {text}" for text in age_sentences(each.age, certificate.made_ms))
    for compared in certificate.comparisons:
        yield f"{compared.reference} compared with {compared.other}: {_counts(compared)}"
        yield from listed_sentences([*comparison_sentences(compared)])
    if certificate.not_examined:
        yield f"not examined: {'; '.join(certificate.not_examined)}"
    yield str(certificate.verdict)


def listed_sentences(sentences: Sequence[str]) -> Iterator[str]:
    """Yield indented lines of at most ``SENTENCES_MAX`` sentences."""
    yield from (f"  {sentence}" for sentence in sentences[:SENTENCES_MAX])
    if sentences[SENTENCES_MAX:]:
        yield f"  and {len(sentences) - SENTENCES_MAX} more sentences, in --format json"


def _by_queue(subject: Subject) -> str:
    text = f"{subject.by_queue} of {subject.queued - subject.elsewhere} by queue"
    return text + f" ({subject.elsewhere} in queues of 5.x)" if subject.elsewhere else text


def _counts(compared: Comparison) -> str:
    counts = ((name, getattr(compared, name), text) for name, text in COUNTS.items())
    parts = [
        f"{moved_text(compared) if name == 'moved' else count} {text}"
        for name, count, text in counts
        if count
    ]
    return ", ".join(parts) or "no messages"


def moved_text(compared: Comparison) -> str:
    """Return how many messages have moved: "4", or "at least 4"."""
    return f"{'at least ' if compared.moved_at_least else ''}{compared.moved}"


def _subject_sentences(subject: Subject) -> Iterator[str]:
    if subject.running:
        yield f"its broker is running: read up to offset {subject.end}"
    firsts = {each["code"]: each for each in reversed(subject.first_findings)}
    for name, count in subject.severe_findings.items():
        code, first = FindingCode[name], firsts.get(name)
        yield f"{name}, {_times(count)}: {code.text}{_place(first) if first else ''}"
    if subject.key_holes:
        count = sum(hole[2] for hole in subject.key_holes)
        yield f"{count_text(count, 'message')} with keys in no index file"
    for each in subject.impossible_offsets:
        yield f"{each.table}: {each.text}"


def _place(finding: dict[str, object]) -> str:
    text = f"; first in {finding['file']}"
    if "offset" in finding:
        text += f" at offset {finding['offset']}"
    if "topic" in finding:
        text += f", topic {finding['topic']}, queue {finding.get('queue_id')}"
    return text


def comparison_sentences(compared: Comparison) -> Iterator[str]:
    """Yield one sentence for each cause for which two stores are not equal."""
    by_cause: dict[tuple[str, str], list[DifferenceGroup]] = {}
    for group in compared.groups:
        by_cause.setdefault((group.field, group.topic), []).append(group)
    for (name, topic), groups in by_cause.items():
        yield _sentence(name, topic, groups, compared)
    excess = compared.more + compared.expired_in_reference
    if excess and not compared.may_have_more:
        surplus = count_text(excess, "message")
        yield f"{compared.other} has {surplus} that {compared.reference} lacks"
    if compared.expired:
        expired = count_text(compared.expired, "message")
        yield f"{expired} of {compared.reference} expired in {compared.other}"
    if compared.expired_in_reference:
        expired = count_text(compared.expired_in_reference, "message")
        yield f"{expired} of {compared.other} expired in {compared.reference}"
    for first, last, count in compared.key_holes:
        place = f"from offset {first} to {last}"
        found = count_text(count, f"message {place} is", f"messages {place} are")
        yield (
            f"{found} found by their keys in only one store: rmqpy pipeline rebuild builds the"
            " index"
        )
    for each in compared.table_differences:
        yield table_sentence(each)


def table_sentence(difference: TableDifference) -> str:
    harmless = " (harmless)" if difference.harmless else ""
    return f"{difference.table}: {difference.text}{harmless}"


def missing_sentence(name: str, topic: str, groups: Sequence[DifferenceGroup]) -> str:
    """Return a sentence on the messages of one topic that the store ``name`` lacks."""
    count = count_text(sum(group.count for group in groups), "message")
    return f"{count} missing in {name}: topic {topic}, {_queues(groups)}"


def _sentence(name: str, topic: str, groups: list[DifferenceGroup], compared: Comparison) -> str:
    count = sum(group.count for group in groups)
    where = f"topic {topic}, {_queues(groups)}"
    first = groups[0]
    values = f"{_short(first.reference)} in {compared.reference}"
    values += f", {_short(first.other) or 'nothing'} in {compared.other}"
    if name == "missing":
        return f"{missing_sentence(compared.other, topic, groups)}; first {values}"
    if name == "unreachable":
        return f"{count_text(count, 'message')} not reachable in {compared.reference}: {where}"
    if name == "message":
        return (
            f"another message in {compared.other} than in {compared.reference}: {where}; {values}"
        )
    if name == "bucket":
        return f"not compared message by message: {where}; {values}"
    differs = f"{JAVA_NAMES.get(name, name)} differs in {count_text(count, 'message')}"
    return f"{differs}: {where}; first {values}"


def _queues(groups: Iterable[DifferenceGroup]) -> str:
    texts = []
    for group in groups:
        text = f"queue {group.queue_id}"
        if group.first >= 0:
            text += f" offset {group.first}"
            text += f" to {group.last}" if group.last != group.first else ""
        texts.append(text)
    rest = f" and {count_text(len(texts) - PLACES_MAX, 'more queue')}" if texts[PLACES_MAX:] else ""
    return ", ".join(texts[:PLACES_MAX]) + rest


def _short(text: str) -> str:
    return text if len(text) <= VALUE_MAX else f"{text[:VALUE_MAX]}..."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
