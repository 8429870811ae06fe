"""Compare and merge the tables of several replicas: topics, groups, consumer and delay offsets.

=====================  =====================  =====================================================
table                  under                  merged
=====================  =====================  =====================================================
topics.json            topicConfigTable       all topics; of numbers the largest, of the rest the
                                              reference's, listed as a conflict
subscriptionGroup.json subscriptionGroupTable the same for groups
consumerOffset.json    offsetTable            the largest offset, at most the end of the queue
delayOffset.json       offsetTable            the largest offset
any other              (whole)                the reference's; listed as a conflict when different
=====================  =====================  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field

from rmqpy.audit.facts.small_files import DATA_VERSION
from rmqpy.audit.facts.table_content import (
    DELAYS,
    MEMBERS,
    OFFSETS,
    parse_content,
    split_offset_key,
)
from rmqpy.audit.replicas.table_comparison import TableDifference
from rmqpy.model.errors import RmqError
from rmqpy.remoting import fastjson

Ends = Mapping[tuple[str, int], int]
"""Topic and queue id → the queue offset after the last message."""


@define(slots=True)
class MergedTables:
    """The merged tables.

    ``tables`` has the texts to write, but only of tables that differ on some replica; ``differing``
    has the names of those replicas, by table.
    """

    tables: dict[str, bytes] = field(factory=dict)
    differing: dict[str, set[str]] = field(factory=dict)
    conflicts: list[str] = field(factory=list)


def table_differences(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[TableDifference]:
    """Yield the differences in content between two replicas' tables; formatting is ignored.

    Delay offsets are left out: how far they may be apart depends on the messages
    (:func:`rmqpy.audit.replicas.table_comparison.compare_tables`).
    """
    for name in sorted((one.keys() | two.keys()) - {DELAYS}):
        content_one, content_two = (parse_content(name, tables.get(name)) for tables in (one, two))
        if content_one == content_two:
            continue
        keys = sorted(
            key
            for key in content_one.keys() | content_two.keys()
            if content_one.get(key) != content_two.get(key)
        )
        listed = ", ".join(map(str, keys[:5])) + (f" and {len(keys) - 5} more" if keys[5:] else "")
        text = f"{len(keys)} entries differ: {listed}"
        yield TableDifference(table=name, text=text, harmless=name not in MEMBERS)


def merge_tables(
    replicas: Mapping[str, Mapping[str, str]], reference: str, ends: Ends
) -> MergedTables:
    """Return one set of tables for all replicas.

    Where no largest value decides, the value of the replica ``reference`` wins.
    """
    merged = MergedTables()
    for name in sorted({name for tables in replicas.values() for name in tables}):
        contents = {
            replica: parse_content(name, tables.get(name)) for replica, tables in replicas.items()
        }
        if name in (OFFSETS, DELAYS):
            result = _merge_offsets(name, contents, ends, merged.conflicts)
        elif name in MEMBERS:
            result = _merge_configs(name, contents, reference, merged.conflicts)
        else:
            result = contents[reference] or next((each for each in contents.values() if each), {})
            if any(each != result for each in contents.values() if each):
                merged.conflicts.append(
                    f"{name}: differs between replicas; that of {reference} is kept"
                )
        differing = {
            replica
            for replica, each in contents.items()
            if each != result or name not in replicas[replica]
        }
        if differing:
            merged.differing[name] = differing
            merged.tables[name] = _encode(name, result, replicas)
    return merged


def consumer_offsets(tables: Mapping[str, str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield (topic, group, queue id, offset) of every consumer group."""
    for key, offset in parse_content(OFFSETS, tables.get(OFFSETS)).items():
        yield (*split_offset_key(key), offset)


def _merge_offsets(
    name: str, contents: Mapping[str, dict[str, Any]], ends: Ends, conflicts: list[str]
) -> dict[str, int]:
    result: dict[str, int] = {}
    for offsets in contents.values():
        for key, offset in offsets.items():
            result[key] = max(offset, result.get(key, 0))
    if name == OFFSETS:
        for key, offset in result.items():
            topic_and_group, _, queue = key.rpartition(" ")
            end = ends.get((topic_and_group.partition("@")[0], int(queue)))
            if end is not None and offset > end:
                conflicts.append(
                    f"{name}: {topic_and_group} queue {queue} is at {offset}, the queue ends at"
                    f" {end}: set to {end}"
                )
                result[key] = end
    return result


def _merge_configs(
    name: str, contents: Mapping[str, dict[str, Any]], reference: str, conflicts: list[str]
) -> dict[str, Any]:
    order = [
        contents[reference],
        *(each for replica, each in contents.items() if replica != reference),
    ]
    result: dict[str, Any] = {}
    for table in order:
        for key, config in table.items():
            if key not in result:
                result[key] = dict(config)
                continue
            kept = result[key]
            for member, value in config.items():
                now = kept.get(member, value)
                if now == value:
                    kept[member] = value
                elif _is_number(now) and _is_number(value):
                    kept[member] = max(now, value)
                    conflicts.append(
                        f"{name}: {key} {member} is {now} and {value}: {kept[member]} is kept"
                    )
                else:
                    conflicts.append(
                        f"{name}: {key} {member} is {now} and {value}: {reference}'s is kept"
                    )
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _encode(name: str, result: dict[str, Any], replicas: Mapping[str, Mapping[str, str]]) -> bytes:
    """Return the text in the Java broker's form, with the newest data version of all replicas."""
    member = MEMBERS.get(name)
    if member is None:
        return fastjson.dumps(result, pretty=True)
    table: dict[Any, Any] = {}
    if name == OFFSETS:
        for key, offset in result.items():
            topic_and_group, _, queue = key.rpartition(" ")
            table.setdefault(topic_and_group, {})[int(queue)] = offset
    elif name == DELAYS:
        table = {int(level): offset for level, offset in result.items()}
    else:
        table = result
    value: dict[str, Any] = {}
    version = _newest_version(tables.get(name) for tables in replicas.values())
    if version is not None:
        value[DATA_VERSION] = version
    return fastjson.dumps({**value, member: table}, pretty=True)


def _newest_version(texts: Iterator[str | None]) -> dict[str, Any] | None:
    versions = []
    for text in texts:
        try:
            value = fastjson.loads(text) if text else None
        except (RmqError, ValueError):
            continue
        if isinstance(value, dict) and isinstance(value.get(DATA_VERSION), dict):
            versions.append(value[DATA_VERSION])
    return max(versions, key=_version_order, default=None)


def _version_order(version: dict[str, Any]) -> tuple[int, int]:
    return int(version.get("counter", 0)), int(version.get("timestamp", 0))
