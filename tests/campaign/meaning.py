"""What a file of a store means to its readers: two contents with one meaning read the same.

A fault that does not change the meaning of any file need not be reported. The rules are those of
the Java broker, and deliberately do not use the audit, which the campaign judges.

==================  ==============================================================================
file                meaning
==================  ==============================================================================
log                 the length of the file; its records and the head of its filler (8 bytes)
consume queue       every byte: a unit after the last one would be read as a message
key index           the length; header, slots, and the entries from 1 on that the header counts
DLedger index       the length; the units of the entries that exist
configuration       the tables in the JSON value, without offsets of 0; that of its backup if it
                    cannot be read. Bytes that are not UTF-8 are read as U+FFFD. Nothing else is
                    read: ``dataVersion`` counts writes, ``groupTopicMap`` of 5.x is derived
``currterm``        term and vote
``checkpoint``      for DLedger: a committed index that is not above the end. Otherwise nothing: its
                    times only save work after an unclean stop
backup (``.bak``)   nothing, as long as the file that it backs up can be read; else its own meaning
``lock``, others    nothing
==================  ==============================================================================

`limit_of` names the changes that matter and that nothing can detect.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Hashable, Mapping
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from rmqpy.model.names import INITIAL_GROUPS

__all__ = [
    "SETTING_TABLES",
    "FileKind",
    "kind_of",
    "limit_of",
    "log_end",
    "meaning_of",
    "read_table",
]

INDEX_HEADER_BYTES = 40
INDEX_ENTRY_BYTES = 20
LEDGER_UNIT_BYTES = 32
HASH_SLOTS = 100
"""maxHashSlotNum of the stores."""

DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"

SETTING_TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
}
"""The tables of settings, and the key of their rows."""

_READ = ("offsetTable", *SETTING_TABLES.values(), "forbiddenTable")
"""What a broker reads of a table of configuration."""

_SECONDS = slice(12, 16)
_TAGS_CODE = slice(12, 20)
_TAGS_CODE_HIGH = slice(12, 16)
_MESSAGE_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK_MAGIC = 0xCBD43194
_LEDGER_BLANK_MAGIC = 0xFFFFFFFF
_FILLER_BYTES = 8
_ENTRY_PROPERTY = re.compile(rb"__RMQPY_ENTRY\x01([^\x02]+)\x02?")
"""What ``leave`` adds to each record: index and term of the entry that the record was."""

_INTEGER_KEY = re.compile(rb"([{,]\s*)(-?\d+):")


class FileKind(Enum):
    """A kind of file of a store."""

    LOG = "log"
    LEDGER = "DLedger log"
    QUEUE = "consume queue"
    INDEX = "key index"
    LEDGER_INDEX = "DLedger index"
    TABLE = "table"
    TERM = "currterm"
    CHECKPOINT = "checkpoint"
    LEDGER_CHECKPOINT = "DLedger checkpoint"
    OTHER = "other"


_TABLES = frozenset(
    {"topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"}
)


def kind_of(path: PurePosixPath) -> FileKind:
    """Return the kind of a file by its path below the store."""
    first, *rest = path.parts
    name = path.name
    if name.endswith(".bak"):
        return FileKind.OTHER
    if first.startswith("dledger-") and rest:
        folders = {"data": FileKind.LEDGER, "index": FileKind.LEDGER_INDEX}
        files = {"currterm": FileKind.TERM, "checkpoint": FileKind.LEDGER_CHECKPOINT}
        return folders.get(rest[0]) or files.get(name, FileKind.OTHER)
    if first == "config":
        return FileKind.TABLE if name in _TABLES else FileKind.OTHER
    kinds = {"commitlog": FileKind.LOG, "consumequeue": FileKind.QUEUE, "index": FileKind.INDEX}
    if first == "checkpoint":
        return FileKind.CHECKPOINT
    return kinds.get(first, FileKind.OTHER)


def log_end(data: bytes, *, ledger: bool) -> int:
    """Return where the records of a log file end, the head of its filler included."""
    position = 0
    while position + _FILLER_BYTES <= len(data):
        if ledger:
            magic, size = struct.unpack_from(">II", data, position)
            if magic == _LEDGER_BLANK_MAGIC:
                return position + _FILLER_BYTES
            if magic != 1 or not size:
                return position
        else:
            size, magic = struct.unpack_from(">II", data, position)
            if magic == _BLANK_MAGIC:
                return position + _FILLER_BYTES
            if magic not in _MESSAGE_MAGICS:
                return position
        position += size
    return position


def meaning_of(kind: FileKind, data: bytes, healthy: bytes) -> Hashable:
    """Return what ``data`` means; ``healthy`` is the content of the file without the fault."""
    match kind:
        case FileKind.LOG | FileKind.LEDGER:
            return len(data), data[: log_end(healthy, ledger=kind is FileKind.LEDGER)]
        case FileKind.QUEUE:
            return data
        case FileKind.INDEX:
            count = struct.unpack_from(">i", healthy, 36)[0]
            first = INDEX_HEADER_BYTES + 4 * HASH_SLOTS  # entry 0, which is never used
            entries = slice(first + INDEX_ENTRY_BYTES, first + INDEX_ENTRY_BYTES * count)
            return len(data), data[:first], data[entries]
        case FileKind.LEDGER_INDEX:
            used = -(-len(healthy.rstrip(b"\0")) // LEDGER_UNIT_BYTES) * LEDGER_UNIT_BYTES
            return len(data), data[:used]
        case FileKind.TABLE:
            return _table(data)
        case FileKind.TERM:
            return _properties(data)
        case FileKind.LEDGER_CHECKPOINT:
            return _committed(data, healthy)
        case FileKind.CHECKPOINT | FileKind.OTHER:
            return None


def limit_of(path: PurePosixPath, data: bytes, healthy: bytes) -> str:
    """Return why no command can detect this change of a file, or an empty string."""
    match kind_of(path):
        case FileKind.LOG if len(data) == len(healthy):
            changed = bytearray(data)
            for found in _ENTRY_PROPERTY.finditer(healthy):
                changed[slice(*found.span(1))] = found[1]
            if changed == healthy:
                return "the numbers in __RMQPY_ENTRY: nothing reads them, and only check sees them"
        case FileKind.INDEX if len(data) == len(healthy):
            begin = INDEX_HEADER_BYTES + 4 * HASH_SLOTS
            if _without(data, begin, _SECONDS) == _without(healthy, begin, _SECONDS):
                return "the seconds of an entry: Java writes some relative to an earlier file"
        case FileKind.QUEUE if path.parts[1] == DELAY_TOPIC and len(data) == len(healthy):
            if _without(data, 0, _TAGS_CODE) == _without(healthy, 0, _TAGS_CODE):
                return "the delivery time of a delayed message: it depends on messageDelayLevel"
        case FileKind.QUEUE if len(data) == len(healthy):
            if _without(data, 0, _TAGS_CODE_HIGH) == _without(healthy, 0, _TAGS_CODE_HIGH):
                return "the upper half of a tags code: readers compare the lower one"
        case FileKind.TABLE if path.name in SETTING_TABLES:
            mine, theirs = _names(path.name, data), _names(path.name, healthy)
            if mine == theirs:
                return "a setting of a topic or group: administrators change it, too"
            if isinstance(mine, frozenset) and isinstance(theirs, frozenset):
                if mine ^ theirs <= set(INITIAL_GROUPS):
                    return "a group that every start creates: it is back after the next one"
        case FileKind.TERM:
            before, after = _properties(healthy), _properties(data)
            if isinstance(before, frozenset) and isinstance(after, frozenset):
                old, new = dict(before), dict(after)
                term = new.get("currTerm", "")
                legal = new.keys() <= old.keys() and term.isascii() and term.isdigit()
                if legal and int(term) >= int(old["currTerm"]):
                    return "a later term, or a vote for another member"
        case _:
            pass
    return ""


def _names(table: str, data: bytes) -> Hashable:
    """Return the names of the rows of a table, or the bytes if it cannot be read."""
    try:
        return frozenset(read_table(data)[SETTING_TABLES[table]])
    except (ValueError, KeyError, TypeError):
        return data


def _without(data: bytes, begin: int, part: slice) -> bytes:
    """Return units of 20 bytes from ``begin`` on with this part of each zeroed."""
    changed = bytearray(data)
    for unit in range(begin, len(data), INDEX_ENTRY_BYTES):
        positions = range(unit, min(unit + INDEX_ENTRY_BYTES, len(data)))[part]
        changed[positions.start : positions.stop] = bytes(len(positions))
    return bytes(changed)


def read_table(data: bytes) -> Any:
    """Return the value of a table. Java's library writes integer keys without quotes."""
    return json.loads(_INTEGER_KEY.sub(rb'\1"\2":', data).decode("utf-8", "replace"))


def _table(data: bytes) -> str:
    try:
        value = read_table(data)
    except ValueError:
        return f"unreadable: {data!r}"
    if isinstance(value, dict):
        # Java's library skips names that it does not know, and a table that is absent is empty.
        value = {name: value[name] for name in _READ if value.get(name, {}) != {}}
        if isinstance(value.get("offsetTable"), dict):
            value["offsetTable"] = _offsets(value["offsetTable"])
    return json.dumps(value, sort_keys=True)


def _offsets(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offsets without those of 0, which mean the same as none."""
    found = {
        key: {queue: offset for queue, offset in row.items() if offset}
        if isinstance(row, dict)
        else row
        for key, row in table.items()
    }
    return {key: row for key, row in found.items() if row}


def _properties(data: bytes) -> Hashable:
    """Return the pairs of a file of Java properties, or the bytes if they are none."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        return data
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return frozenset((key.strip(), value.strip()) for key, _, value in pairs)


def _committed(data: bytes, healthy: bytes) -> Hashable:
    """Return the committed index as far as a member trusts it: up to its log's end."""
    before, after = _numbers(healthy), _numbers(data)
    if after is None or before is None:
        return data
    return after["committedIndex"] > before["endIndex"]


def _numbers(data: bytes) -> Mapping[str, int] | None:
    pairs = _properties(data)
    if not isinstance(pairs, frozenset):
        return None
    try:
        found = {key: int(value) for key, value in pairs}
    except ValueError:
        return None
    return found if {"committedIndex", "endIndex"} <= found.keys() else None
