"""Compare the tables of stores: topics, subscription groups, consumer offsets, delay offsets.

==================  ======================================  =======================================
table               stores of one time                      an earlier state and a later one
==================  ======================================  =======================================
topics, groups      the same, with equal configuration      none is gone; other changes are listed
consumer offsets    equal, or behind by messages that the   none is smaller, except one that was
                    table may not contain yet               beyond the end of its queue
delay offsets       the same                                the same
==================  ======================================  =======================================

A slave or follower copies the tables of its master every 10 seconds, so its offsets may be behind
by what was consumed or delivered in the last ``LAG_MS`` before the log ends. An offset is older
than that if the first message after it was stored, or due, before then: such a table is stale. An
offset is impossible if it is beyond the end of its queue in every store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from rmqpy.model.names import SCHEDULE_TOPIC

__all__ = [
    "TableDifference",
    "compare_tables",
    "impossible_offsets",
    "overdue_delays",
    "queue_ends",
    "unjudged_tables",
]

LAG_MS: Final = 15_000
"""How far replicated tables may be behind: Java's slaves and rmqpy's copy them every 10 s."""
NAMES_MAX: Final = 5
"""The maximum number of names or places in one sentence."""
Ends = Mapping[tuple[str, int], int]
"""Topic and queue id → the queue offset after the last message."""


@define(slots=True, frozen=True, kw_only=True)
class TableDifference:
    """One difference of a table; ``harmless`` if replication explains it."""

    table: str
    text: str
    harmless: bool = False


def compare_tables(
    reference: Manifest, other: Manifest, *, is_earlier: bool
) -> Iterator[TableDifference]:
    """Yield the differences of two stores, each cause once. Yield nothing if the tables of one are
    unknown (a manifest of format 1).
    """
    one, two = reference.contents, other.contents
    if one is None or two is None:
        return
    for table, mine, theirs in ((TOPICS, one.topics, two.topics), (GROUPS, one.groups, two.groups)):
        yield from _names(table, (reference.name, mine), (other.name, theirs), is_earlier)
    for table in (OFFSETS, DELAYS):
        behind = _behind(table, reference, other, is_earlier=is_earlier)
        yield from _stale(table, other.name, reference.name, behind)
        behind = _behind(table, other, reference, is_earlier=False)
        if not is_earlier:
            yield from _stale(table, reference.name, other.name, behind)
        elif behind:
            text = f"{_count(behind, 'offset')} of {other.name} advanced since {reference.name}"
            yield TableDifference(table=table, text=text, harmless=True)


def impossible_offsets(manifest: Manifest, ends: Ends) -> Iterator[TableDifference]:
    """Yield the offsets beyond the end of their queue."""
    facts = manifest.contents or TableFacts()
    wrong: dict[str, list[str]] = {}
    for table, key, place, offset in _places(facts):
        end = ends.get(place, max(offset, 0))  # The queue of a deleted topic is gone.
        if not 0 <= offset <= end:
            wrong.setdefault(table, []).append(f"{key} is {offset}, the queue ends at {end}")
    for table, texts in wrong.items():
        text = f"{manifest.name} has {_count(texts, 'impossible offset')}: {_listed(texts)}"
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


def _names(
    table: str,
    one: tuple[str, Mapping[str, str]],
    two: tuple[str, Mapping[str, str]],
    is_earlier: bool,
) -> Iterator[TableDifference]:
    (name, mine), (other, theirs) = one, two
    lacks = sorted(mine.keys() - theirs.keys())
    if lacks:
        yield TableDifference(table=table, text=f"{other} lacks {_listed(lacks)}")
    more = sorted(theirs.keys() - mine.keys())
    if more:
        yield TableDifference(
            table=table, text=f"{name} lacks {_listed(more)}", harmless=is_earlier
        )
    changed = sorted(key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key])
    if changed:
        text = f"the configuration of {_listed(changed)} differs"
        yield TableDifference(table=table, text=text, harmless=is_earlier)


def _behind(
    table: str, leading: Manifest, lagging: Manifest, *, is_earlier: bool
) -> list[tuple[str, int, int, bool]]:
    """Return (description, smaller offset, larger offset, whether it is stale) of all offsets that
    are smaller in ``lagging``.
    """
    ahead, behind = (_positions(table, each.contents) for each in (leading, lagging))
    ends, known = queue_ends([leading if is_earlier else lagging]), queue_ends([leading, lagging])
    recent_ms = _last_stored_ms(lagging) - LAG_MS
    found = []
    for key, (offset, _) in ahead.items():
        small, time_ms = behind.get(key, (0, -1))
        place = _place(table, key)
        is_impossible = not is_earlier and offset > known.get(place, offset)
        if small >= offset or is_impossible:
            continue
        if is_earlier:
            # A plan sets an offset that was beyond the end to the end.
            stale = small < min(offset, ends.get(place, offset))
        else:
            # Where this store's queue ends, it lacks messages, not progress.
            stale = small < ends.get(place, offset) and time_ms < recent_ms
        found.append((_described(table, key), small, offset, stale))
    return found


def _stale(
    table: str, name: str, ahead: str, behind: list[tuple[str, int, int, bool]]
) -> Iterator[TableDifference]:
    for is_stale in (True, False):
        texts = [
            f"{key} is {small}, not {large}"
            for key, small, large, stale in behind
            if stale is is_stale
        ]
        if texts:
            count = _count(texts, "offset")
            why = "older than replication explains" if is_stale else "behind by the last seconds"
            yield TableDifference(
                table=table,
                text=f"{count} of {name} {'is' if len(texts) == 1 else 'are'} {why}, compared with"
                f" {ahead}: {_listed(texts)}",
                harmless=not is_stale,
            )


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


def _listed(texts: Sequence[str]) -> str:
    rest = f" and {len(texts) - NAMES_MAX} more" if len(texts) > NAMES_MAX else ""
    return ", ".join(texts[:NAMES_MAX]) + rest


def _count(texts: Sequence[object], noun: str) -> str:
    return f"{len(texts)} {noun}{'' if len(texts) == 1 else 's'}"
