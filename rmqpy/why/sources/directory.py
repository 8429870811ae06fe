"""A store directory as a source of facts about messages. Nothing in it is changed.

The directory of a running broker can be read too: what the broker has written so far is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from rmqpy.audit.checks.key_check import IndexTable, open_index
from rmqpy.audit.checks.message_lookup import index_gaps, offsets_with_hash
from rmqpy.audit.checks.messages import (
    MessageSelection,
    MessageWalk,
    each_message,
    file_view,
)
from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.facts.small_files import read_ledger_state, read_table
from rmqpy.audit.facts.table_content import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    content_of,
    split_offset_key,
)
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.queue_units import QueueUnits, read_ends, unit_at
from rmqpy.codec import layout
from rmqpy.codec.entry import decode_entry_header
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.hashes import java_text
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.properties import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from rmqpy.codec.units import index_key_hash
from rmqpy.config.loading import BrokerConfiguration, effective_values
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.model.names import TRANSACTION_OP_HALF_TOPIC
from rmqpy.store.files.framing import Framing
from rmqpy.store.unread.pop import PopReceipt, read_rocks_receipts
from rmqpy.store.unread.rocksdb import POP_FOLDER, is_rocksdb
from rmqpy.store.unread.rocksdb_reader import can_read_rocksdb
from rmqpy.why.sources.accounts import accounts_of_files
from rmqpy.why.sources.interface import (
    AccessAccounts,
    ClientGroup,
    LogPlace,
    QueueUnitPlace,
    StoreRange,
)

__all__ = ["DEFAULT_SETTINGS", "StoreDirectorySource"]

DEFAULT_SETTINGS = "default"
FILTERS = "consumerFilter.json"


class StoreDirectorySource:
    """The messages, queues, index, and tables of one directory.

    ``configuration`` is that of broker.conf, and ``settings_from`` names the file; without it,
    Java's defaults are assumed. ``others`` are the pairs of the file that only Java knows.
    """

    is_live = False

    def __init__(
        self,
        files: FileSystem,
        root: str,
        configuration: BrokerConfiguration | None = None,
        settings_from: str = DEFAULT_SETTINGS,
        others: Mapping[str, str] | None = None,
    ) -> None:
        self.files = files
        self.root = root
        self.configuration = configuration
        self.settings_from = settings_from
        self.others = others or {}
        store = configuration.store if configuration is not None else None
        self.directory = read_directory(files, root, store)
        self._units = QueueUnits(files, self.directory)
        self._log = LogReader(files, self.directory)

    @property
    def name(self) -> str:
        return self.root

    def settings(self) -> tuple[Mapping[str, str], str]:
        known = effective_values(self.configuration or BrokerConfiguration())
        return {**self.others, **known}, self.settings_from

    def range(self) -> StoreRange | None:
        logs = self.directory.logs
        if not logs:
            return None
        begin = logs[0].first_offset
        shift = layout.ENTRY_HEADER_SIZE if logs[0].framing is Framing.DLEDGER else 0
        first = self._log.message(begin + shift)
        end, last_ms = begin, -1
        for queue in self.directory.queues:
            bounds = self._bounds(queue.topic, queue.queue_id)
            if bounds is None or bounds[1] <= bounds[0]:
                continue
            unit = self.unit(queue.topic, queue.queue_id, bounds[1] - 1)
            message = self._log.message(unit.physical_offset) if unit is not None else None
            if unit is not None and message is not None:
                end = max(end, unit.physical_offset + unit.size)
                last_ms = max(last_ms, message.store_timestamp_ms)
        first_ms = first.store_timestamp_ms if first is not None else -1
        return StoreRange(begin=begin, end=end, first_ms=first_ms, last_ms=last_ms)

    # -- tables

    def _table(self, name: str) -> dict[str, Any] | None:
        value = read_table(self.files, f"{self.directory.paths.config}/{name}")
        try:
            return None if value is None else content_of(name, value)
        except ValueError:
            return None

    def topics(self) -> Mapping[str, Mapping[str, Any]] | None:
        return self._table(TOPICS)

    def groups(self) -> Mapping[str, Mapping[str, Any]] | None:
        return self._table(GROUPS)

    def consumer_offsets(self) -> Mapping[tuple[str, str], Mapping[int, int]] | None:
        content = self._table(OFFSETS)
        if content is None:
            return None
        found: dict[tuple[str, str], dict[int, int]] = {}
        for key, offset in content.items():
            topic, group, queue_id = split_offset_key(key)
            found.setdefault((topic, group), {})[queue_id] = offset
        return found

    def delay_offsets(self) -> Mapping[int, int] | None:
        content = self._table(DELAYS)
        return (
            None if content is None else {int(level): offset for level, offset in content.items()}
        )

    def filters(self) -> Mapping[tuple[str, str], tuple[str, bool]] | None:
        value = read_table(self.files, f"{self.directory.paths.config}/{FILTERS}")
        if not isinstance(value, dict):
            return None
        found = {}
        for topic, of_topic in (value.get("filterDataByTopic") or {}).items():
            for group, entry in (of_topic.get("groupFilterData") or {}).items():
                in_use = not entry.get("deadTime")
                found[str(topic), str(group)] = (str(entry.get("expression")), in_use)
        return found

    # -- queues and log

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        return self._bounds(topic, queue_id)

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        for queue in self.directory.queues:
            if (queue.topic, queue.queue_id) == (topic, queue_id):
                units = self._units(topic.encode("utf-8", "surrogateescape"), queue_id)
                begin = self.directory.logs[0].first_offset if self.directory.logs else 0
                ends = read_ends(queue, units, begin)
                return ends.min_offset, ends.max_offset
        return None

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> QueueUnitPlace | None:
        units = self._units(topic.encode("utf-8", "surrogateescape"), queue_id)
        found = unit_at(units, queue_offset) if units is not None and queue_offset >= 0 else None
        if found is None or found[1] <= 0 or found[1] == layout.QUEUE_FILLER_SIZE:
            return None
        position = queue_offset * QUEUE_UNIT_SIZE
        file = next(
            segment
            for queue in self.directory.queues
            if (queue.topic, queue.queue_id) == (topic, queue_id)
            for segment in queue.segments.files
            if segment.first_offset <= position < segment.end_offset
        )
        return QueueUnitPlace(
            physical_offset=found[0],
            size=found[1],
            tags_code=found[2],
            file=self.directory.relative(file.path),
            position=position - file.first_offset,
        )

    def message(self, physical_offset: int) -> StoredMessage | None:
        return self._log.message(physical_offset)

    def place(self, message: StoredMessage) -> LogPlace:
        offset = message.physical_offset
        for log in reversed(self.directory.logs):
            file = log.file_at(offset)
            if file is None:
                continue
            position = offset - file.first_offset
            name = self.directory.relative(file.path)
            if log.framing is Framing.CLASSIC:
                return LogPlace(log="classic", file=name, position=position)
            index, term = self._entry(offset)
            return LogPlace(
                log="DLedger",
                file=name,
                position=position,
                index=index,
                term=term,
                committed=index <= self._committed_index if index >= 0 else None,
            )
        return LogPlace(log="none", file="", position=-1)

    def _entry(self, body_offset: int) -> tuple[int, int]:
        offset = body_offset - layout.ENTRY_HEADER_SIZE
        found = self._log.place_of(offset)
        if found is None:
            return -1, -1
        file, position = found
        try:
            header = decode_entry_header(file[position:], 0, offset)
        except InvalidRecordError:
            return -1, -1
        return header.index, header.term

    @cached_property
    def _committed_index(self) -> int:
        ledger = self.directory.ledger
        return read_ledger_state(self.files, ledger).committed_index if ledger else -1

    # -- search

    @cached_property
    def _index(self) -> list[IndexTable]:
        store = self.configuration.store if self.configuration is not None else None
        return open_index(self.files, self.directory, store)[0]

    def with_key(self, topic: str, key: str, *, unique: bool) -> list[tuple[StoredMessage, str]]:
        key_hash = index_key_hash(topic, key)
        found: dict[int, tuple[StoredMessage, str]] = {}
        for table in self._index:
            for offset in offsets_with_hash(table, key_hash):
                message = self._log.message(offset)
                if message is not None and message.topic == topic and has_key(message, key, unique):
                    found.setdefault(offset, (message, table.file))
        return [found[offset] for offset in sorted(found)]

    def scan(self, key: str) -> list[StoredMessage] | None:
        selection = MessageSelection(key=key)
        return [each.message for each in each_message(self.files, self.directory, selection)]

    def unindexed(self, key: str) -> list[StoredMessage]:
        selection = MessageSelection(key=key)
        found = []
        for begin, end in index_gaps(self.directory, self._index):
            for log in self.directory.logs:
                shift = layout.ENTRY_HEADER_SIZE if log.framing is Framing.DLEDGER else 0
                for file in log.files:
                    if file.end_offset <= begin or file.first_offset >= end:
                        continue
                    walk = MessageWalk(file_view(self.files, file, log.framing), selection)
                    start = max(begin - file.first_offset - shift, 0)
                    stop = min(end - file.first_offset, file.size)
                    found += [each.message for each in walk.run(start, stop)]
        return found

    def resolved_halves(self, queue_id: int) -> set[int] | None:
        bounds = self._bounds(TRANSACTION_OP_HALF_TOPIC, queue_id)
        if bounds is None:
            return set()
        found: set[int] = set()
        for queue_offset in range(*bounds):
            unit = self.unit(TRANSACTION_OP_HALF_TOPIC, queue_id, queue_offset)
            message = self._log.message(unit.physical_offset) if unit is not None else None
            if message is not None:  # 5.x writes several offsets, separated by commas
                texts = java_text(message.body).split(",")
                found |= {int(text) for text in texts if text.isascii() and text.isdigit()}
        return found

    def pop_records_in_rocksdb(self) -> list[PopReceipt] | None:
        folder = f"{self.root}/{POP_FOLDER}"
        if not is_rocksdb(self.files, folder):
            return []
        if not can_read_rocksdb():
            raise StoreError(
                folder, "a RocksDB", "the library that reads it", "pip install 'rmqpy[rocksdb]'"
            )
        return list(read_rocks_receipts(folder))

    def members(self, group: str, topic: str) -> ClientGroup | None:
        return None

    def accounts(self) -> AccessAccounts | None:
        if self.configuration is None or not self.configuration.broker.acl_enable:
            return None
        return accounts_of_files(self.files, self.configuration)


def has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    """Return whether a message has the unique id, or one of the keys, that is searched for."""
    properties = message.properties
    if properties.get(PROPERTY_UNIQ_KEY, "") == key:
        return True
    return not unique and key in properties.get(PROPERTY_KEYS, "").split(" ")
