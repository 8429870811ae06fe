"""Compare the tables of stores: topics, subscription groups, consumer offsets, delay offsets.

==================  ======================================  =======================================
table               stores of one time                      an earlier state and later ones
==================  ======================================  =======================================
topics, groups      the same, with equal configuration, or  none is gone from all of them; other
                    one table is an earlier state of the    changes are listed
                    other, which replication explains
consumer offsets,   any: the smaller ones are listed        none is smaller in all of them, except
delay offsets                                               one that was beyond the end of its queue
==================  ======================================  =======================================

A slave or follower copies the tables of its master every 10 seconds, so it may lack what was
changed since. For topics and groups the store has evidence: the versions say which table is an
earlier state of the other, and when the later one was changed last
(:class:`rmqpy.audit.facts.table_content.TableVersion`). If that was more than ``LAG_MS`` before a
message that the store with the earlier table has received, replication does not explain it.

For offsets there is none. A file does not say when an offset was committed; it cannot have been
before its message was stored, but a consumer that works off a backlog commits offsets of messages
of any age in one second. So a smaller offset is never a difference of its own: the store is
*behind*, and the text says by how much. What one fetch explains, and what none explains, looks the
same. A table that is missing although the other store has offsets is a difference, because brokers
write it at every stop. A delay offset whose next message was due more than ``LAG_MS`` before the
log ends is not ``harmless``: the broker delivers by time, unless it had been stopped.

An offset is impossible if it is beyond the end of its queue in every store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from attrs import define

from rmqpy.audit.facts.table_content import (
    DELAYS,
    GROUPS,
    MEMBERS,
    OFFSETS,
    TOPICS,
    Position,
    TableFacts,
    delay_queue_id,
    split_offset_key,
)
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.replicas.verdict import DIFFERENT, EQUAL, Containment, Verdict, Word
from rmqpy.model.names import INITIAL_GROUPS, SCHEDULE_TOPIC
from rmqpy.model.text import count_text

__all__ = [
    "TableDifference",
    "compare_tables",
    "compare_with_earlier",
    "impossible_offsets",
    "overdue_delays",
    "queue_ends",
    "unjudged_tables",
    "verdict_on_tables",
]

LAG_MS: Final = 15_000
"""How far replicated tables may be behind: Java's slaves and rmqpy's copy them every 10 s."""
NAMES_MAX: Final = 5
"""The maximum number of names or places in one sentence."""
Ends = Mapping[tuple[str, int], int]
"""Topic and queue id → the queue offset after the last message."""


@define(slots=True, frozen=True, kw_only=True)
class TableDifference:
    """One difference of a table; ``harmless`` if replication explains it.

    ``behind`` names the store whose table is only an earlier state of that of ``ahead``; both are
    empty if that is not so, or not known.
    """

    table: str
    text: str
    harmless: bool = False
    behind: str = ""
    ahead: str = ""


def compare_tables(one: Manifest, two: Manifest) -> Iterator[TableDifference]:
    """Yield the differences of two stores of one time, each cause once. Yield nothing if the tables
    of one are unknown (a manifest of format 1).
    """
    if one.contents is None or two.contents is None:
        return
    for table in (TOPICS, GROUPS):
        yield from _different_settings(table, one, two)
    for table in (OFFSETS, DELAYS):
        for ahead, behind in ((one, two), (two, one)):
            yield from _behind(table, ahead, behind)


def verdict_on_tables(differences: Sequence[TableDifference]) -> Verdict:
    """Return the verdict on two stores of one time that have the same messages.

    Tables of which one is behind the other make its store CONTAINED. If each is behind in one
    table, or in one queue, each is contained in the other.
    """
    if not all(each.harmless or each.behind for each in differences):
        return DIFFERENT
    behind = sorted({(each.behind, each.ahead) for each in differences if each.behind})
    if not behind:
        return EQUAL
    return Verdict(Word.CONTAINED, tuple(Containment(inner, outer, 0) for inner, outer in behind))


def compare_with_earlier(
    earlier: Manifest, later: Manifest, present: Sequence[Manifest]
) -> Iterator[TableDifference]:
    """Yield what has changed in ``later`` since an earlier state. ``present`` are all stores of the
    later time: what one of them still has is not gone, and :func:`compare_tables` reports that
    ``later`` lacks it.
    """
    was, now = earlier.contents, later.contents
    if was is None or now is None:
        return
    known = [each.contents for each in present if each.contents is not None]
    for table in (TOPICS, GROUPS):
        before, after = _settings(table, was), _settings(table, now)
        gone = before.keys() - after.keys()
        gone -= _created_at_start(table).union(*(_settings(table, each) for each in known))
        if gone:
            yield TableDifference(table=table, text=f"{later.name} lacks {_listed(sorted(gone))}")
        added = sorted(after.keys() - before.keys())
        if added:
            text = f"{earlier.name} lacks {_listed(added)}"
            yield TableDifference(table=table, text=text, harmless=True)
        changed = _changed(before, after)
        if changed:
            text = f"the configuration of {_listed(changed)} differs"
            yield TableDifference(table=table, text=text, harmless=True)
    for table in (OFFSETS, DELAYS):
        yield from _since(table, earlier, later, known)


def impossible_offsets(manifest: Manifest, ends: Ends) -> Iterator[TableDifference]:
    """Yield the offsets beyond the end of their queue."""
    facts = manifest.contents or TableFacts()
    wrong: dict[str, list[str]] = {}
    for table, key, place, offset in _places(facts):
        end = ends.get(place, max(offset, 0))  # The queue of a deleted topic is gone.
        if not 0 <= offset <= end:
            wrong.setdefault(table, []).append(f"{key} is {offset}, the queue ends at {end}")
    for table, texts in wrong.items():
        text = (
            f"{manifest.name} has {count_text(len(texts), 'impossible offset')}: {_listed(texts)}"
        )
        yield TableDifference(table=table, text=text)


def overdue_delays(manifest: Manifest) -> Iterator[str]:
    """Yield a text for each delay level whose next message was due long before the log ends."""
    facts, end_ms = manifest.contents or TableFacts(), _last_stored_ms(manifest)
    for level, (offset, due_ms) in facts.delays.items():
        if 0 < due_ms < end_ms - LAG_MS:
            late_s = (end_ms - due_ms) // 1000
            yield (
                f"delay level {level} is at {offset}, whose message was due {late_s} s before the"
                " last message was stored"
            )


def queue_ends(manifests: Sequence[Manifest]) -> dict[tuple[str, int], int]:
    """Return the largest end of each queue in any of the stores."""
    ends: dict[tuple[str, int], int] = {}
    for manifest in manifests:
        found = [(each.topic, each.queue_id, each.max_offset) for each in manifest.queues]
        for each in manifest.facts.get("queues", ()):
            found.append((each["topic"], each["queue_id"], each["max_offset"]))
        for topic, queue_id, end in found:
            ends[topic, queue_id] = max(end, ends.get((topic, queue_id), 0))
    return ends


def unjudged_tables(manifests: Sequence[Manifest]) -> list[str]:
    """Return the names of tables that are not compared by content."""
    names = {table.name for manifest in manifests for table in manifest.tables}
    return sorted(names - set(MEMBERS))


def _places(facts: TableFacts) -> Iterator[tuple[str, str, tuple[str, int], int]]:
    """Yield (table, description, queue, offset) of every offset."""
    for table in (OFFSETS, DELAYS):
        for key, (offset, _) in _positions(table, facts).items():
            yield table, _described(table, key), _place(table, key), offset


def _settings(table: str, facts: TableFacts) -> Mapping[str, str]:
    return facts.topics if table == TOPICS else facts.groups


def _created_at_start(table: str) -> frozenset[str]:
    """Return the rows that every start creates. A Java member that has not written its table yet
    lacks them.
    """
    return frozenset(INITIAL_GROUPS if table == GROUPS else ())


def _changed(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return sorted(key for key in one.keys() & two.keys() if one[key] != two[key])


def _different_settings(table: str, one: Manifest, two: Manifest) -> Iterator[TableDifference]:
    assert one.contents is not None and two.contents is not None, "checked by the caller"
    versions = [each.contents.versions.get(table) for each in (one, two) if each.contents]
    first, second = versions
    if first is not None and second is not None and first.is_earlier(second):
        yield from _different_settings(table, two, one)
        return
    mine, theirs = _settings(table, one.contents), _settings(table, two.contents)
    initial = _created_at_start(table)
    parts = []
    if lacks := sorted(mine.keys() - theirs.keys() - initial):
        parts.append(f"{two.name} lacks {_listed(lacks)}")
    if more := sorted(theirs.keys() - mine.keys() - initial):
        parts.append(f"{one.name} lacks {_listed(more)}")
    if changed := _changed(mine, theirs):
        parts.append(f"the configuration of {_listed(changed)} differs")
    if first is None or second is None or not second.is_earlier(first):
        yield from (TableDifference(table=table, text=text) for text in parts)
        return
    if not parts:
        return
    explained = first.timestamp_ms >= _last_stored_ms(two) - LAG_MS
    why = (
        f"{two.name} has an earlier version of the table, of {_time(second.timestamp_ms)}; that of"
        f" {one.name} was changed last at {_time(first.timestamp_ms)}"
    )
    if not explained:
        why += f", {_before(first.timestamp_ms, two)}: older than replication explains"
    yield TableDifference(
        table=table,
        text=f"{', '.join(parts)}: {why}; the next plan (leave, apply, join) takes the later one",
        harmless=explained,
        behind=two.name if explained else "",
        ahead=one.name if explained else "",
    )


def _behind(table: str, ahead: Manifest, behind: Manifest) -> Iterator[TableDifference]:
    """Yield a sentence on the offsets that are smaller in ``behind``."""
    large, small = (_positions(table, each.contents) for each in (ahead, behind))
    known = queue_ends([ahead, behind])
    texts, messages, oldest_ms = [], 0, -1
    for key, (offset, _) in large.items():
        own, time_ms = small.get(key, (0, -1))
        place = _place(table, key)
        if own >= offset or offset > known.get(place, offset):
            continue
        texts.append(f"{_described(table, key)} is {own}, not {offset}")
        messages += offset - own
        if time_ms > 0:
            oldest_ms = min(time_ms, oldest_ms) if oldest_ms > 0 else time_ms
    if not texts:
        return
    text = (
        f"{behind.name} is behind {ahead.name} by {count_text(messages, 'message')} in"
        f" {count_text(len(texts), 'offset')}: {_listed(texts)}"
    )
    if table not in {each.name for each in behind.tables if each.source != "nothing"}:
        yield TableDifference(table=table, text=f"{text}; {behind.name} does not have this table")
        return
    overdue = table == DELAYS and 0 < oldest_ms < _last_stored_ms(behind) - LAG_MS
    if overdue:
        text += f"; the first of these was due {_before(oldest_ms, behind)}"
    elif table == OFFSETS and oldest_ms > 0:
        text += f"; the first of these was stored {_before(oldest_ms, behind)}"
    yield TableDifference(
        table=table, text=text, harmless=not overdue, behind=behind.name, ahead=ahead.name
    )


def _since(
    table: str, earlier: Manifest, later: Manifest, known: Sequence[TableFacts]
) -> Iterator[TableDifference]:
    was, now = (_positions(table, each.contents) for each in (earlier, later))
    largest = {
        key: max(_positions(table, each).get(key, (0, 0))[0] for each in known) for key in was
    }
    ends = queue_ends([earlier])
    gone = [
        f"{_described(table, key)} is {now.get(key, (0, 0))[0]}, not {offset}"
        for key, (offset, _) in was.items()
        # A plan sets an offset that was beyond the end to the end.
        if largest[key] < min(offset, ends.get(_place(table, key), offset))
    ]
    if gone:
        count = count_text(len(gone), "offset")
        text = f"{count} of {later.name} went back since {earlier.name}: {_listed(gone)}"
        yield TableDifference(table=table, text=text)
    advanced = [key for key, (offset, _) in now.items() if offset > was.get(key, (0, 0))[0]]
    if advanced:
        text = (
            f"{count_text(len(advanced), 'offset')} of {later.name} advanced since {earlier.name}"
        )
        yield TableDifference(table=table, text=text, harmless=True)


def _positions(table: str, facts: TableFacts | None) -> Mapping[str, Position]:
    if facts is None:
        return {}
    return facts.offsets if table == OFFSETS else facts.delays


def _place(table: str, key: str) -> tuple[str, int]:
    if table == DELAYS:
        return SCHEDULE_TOPIC, delay_queue_id(key)
    topic, _, queue_id = split_offset_key(key)
    return topic, queue_id


def _described(table: str, key: str) -> str:
    if table == DELAYS:
        return f"level {key}"
    topic, group, queue_id = split_offset_key(key)
    return f"{group} in {topic} queue {queue_id}"


def _last_stored_ms(manifest: Manifest) -> int:
    """Return the store time in ms of the newest message at an end of the logs."""
    logs = [manifest.facts.get(kind) or {} for kind in ("classic", "ledger")]
    ends = [log.get(end) or {} for log in logs for end in ("first", "last")]
    return max(int(message.get("store_timestamp_ms", 0)) for message in ends)


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _before(time_ms: int, manifest: Manifest) -> str:
    seconds = max(0, _last_stored_ms(manifest) - time_ms) // 1000
    return f"{seconds} s before the last message of {manifest.name}"


def _listed(texts: Sequence[str]) -> str:
    rest = f" and {len(texts) - NAMES_MAX} more" if len(texts) > NAMES_MAX else ""
    return ", ".join(texts[:NAMES_MAX]) + rest
