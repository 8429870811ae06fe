"""Compare and merge the tables of several replicas: topics, groups, consumer and delay offsets.

=====================  =====================  =====================================================
table                  under                  merged
=====================  =====================  =====================================================
topics.json            topicConfigTable       all topics. Of different configurations that of the
                                              later version; if neither is later, of numbers the
                                              largest, of the rest the reference's, as a conflict
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
    TableVersion,
    parse_content,
    split_offset_key,
    version_of,
)
from rmqpy.audit.replicas.table_comparison import TableDifference
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text
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


def other_tables(one: Mapping[str, str], two: Mapping[str, str]) -> Iterator[TableDifference]:
    """Yield the differences in content of the tables that
    :func:`rmqpy.audit.replicas.table_comparison.compare_tables` does not judge, such as filters;
    formatting is ignored.
    """
    for name in sorted((one.keys() | two.keys()) - MEMBERS.keys()):
        content_one, content_two = (parse_content(name, tables.get(name)) for tables in (one, two))
        keys = sorted(
            key
            for key in content_one.keys() | content_two.keys()
            if content_one.get(key) != content_two.get(key)
        )
        if keys:
            more = f" and {len(keys) - 5} more" if keys[5:] else ""
            differ = count_text(len(keys), "entry differs", "entries differ")
            text = f"{differ}: {', '.join(map(str, keys[:5]))}{more}"
            yield TableDifference(table=name, text=text, harmless=True)


def merge_tables(
    replicas: Mapping[str, Mapping[str, str]], reference: str, ends: Ends
) -> MergedTables:
    """Return one set of tables for all replicas.

    Where neither a later version nor a largest value decides, the value of the replica
    ``reference`` wins.
    """
    merged = MergedTables()
    for name in sorted({name for tables in replicas.values() for name in tables}):
        contents = {
            replica: parse_content(name, tables.get(name)) for replica, tables in replicas.items()
        }
        if name in (OFFSETS, DELAYS):
            result = _merge_offsets(name, contents, ends, merged.conflicts)
        elif name in MEMBERS:
            versions = {replica: _version(each.get(name)) for replica, each in replicas.items()}
            result = _merge_configs(name, contents, versions, reference, merged.conflicts)
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
    name: str,
    contents: Mapping[str, dict[str, Any]],
    versions: Mapping[str, TableVersion | None],
    reference: str,
    conflicts: list[str],
) -> dict[str, Any]:
    order = [reference, *(replica for replica in contents if replica != reference)]
    result: dict[str, Any] = {}
    source: dict[str, str] = {}
    for replica in order:
        for key, config in contents[replica].items():
            kept_by = source.get(key)
            if kept_by is None or _is_earlier(versions[kept_by], versions[replica]):
                result[key], source[key] = dict(config), replica
            elif not _is_earlier(versions[replica], versions[kept_by]):
                _merge_config(f"{name}: {key}", result[key], config, reference, conflicts)
    return result


def _is_earlier(one: TableVersion | None, two: TableVersion | None) -> bool:
    return one is not None and two is not None and one.is_earlier(two)


def _merge_config(
    what: str,
    kept: dict[str, Any],
    config: dict[str, Any],
    reference: str,
    conflicts: list[str],
) -> None:
    for member, value in config.items():
        now = kept.get(member, value)
        if now == value:
            kept[member] = value
        elif _is_number(now) and _is_number(value):
            kept[member] = max(now, value)
            conflicts.append(f"{what} {member} is {now} and {value}: {kept[member]} is kept")
        else:
            conflicts.append(f"{what} {member} is {now} and {value}: {reference}'s is kept")


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
    found = [_parsed(tables.get(name)) for tables in replicas.values()]
    newest = max(found, key=_version_order, default=None)
    if isinstance(newest, dict) and version_of(newest) is not None:
        value[DATA_VERSION] = newest[DATA_VERSION]
    return fastjson.dumps({**value, member: table}, pretty=True)


def _version(text: str | None) -> TableVersion | None:
    return version_of(_parsed(text))


def _version_order(value: object) -> tuple[int, int]:
    version = version_of(value)
    return (version.counter, version.timestamp_ms) if version is not None else (-1, -1)


def _parsed(text: str | None) -> object:
    """Return the value of a table's text, or None if there is none that can be parsed."""
    try:
        return fastjson.loads(text) if text else None
    except (RmqError, ValueError):
        return None
