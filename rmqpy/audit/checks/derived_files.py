"""The sums of a store's derived files, per log file to which they lead.

Sums of sealed files may have been learned earlier (:mod:`rmqpy.audit.facts.learned`).
"""

from __future__ import annotations

from typing import Any

from attrs import define, evolve, field

from rmqpy.audit.checks.index_heads import EVERYWHERE, IndexHeads, add_sums
from rmqpy.audit.facts.learned import INDEX, UNITS, Learned
from rmqpy.audit.scan.directory import LogFile, LogSegments, StoreDirectory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.codec import layout
from rmqpy.codec.tally.backend import sum_units, walk_index
from rmqpy.codec.tally.derived_sums import IndexSums, UnitSums
from rmqpy.codec.tally.kernel import QueueTally, Tally
from rmqpy.codec.units import index_entry_position
from rmqpy.model.files import FileSystem
from rmqpy.model.names import SCHEDULE_TOPIC

__all__ = ["EVERYWHERE", "DerivedFiles"]


@define(slots=True, eq=False)
class DerivedFiles:
    """Compares sums of a log file with those of the files that are derived from it."""

    files: FileSystem
    directory: StoreDirectory
    learned: Learned
    sealed: frozenset[str]
    _queues: dict[tuple[bytes, int], LogSegments] = field(init=False)
    _sums: dict[str, UnitSums] = field(factory=dict)
    _heads: IndexHeads = field(init=False)

    @classmethod
    def of(cls, files: FileSystem, directory: StoreDirectory, learned: Learned) -> DerivedFiles:
        return cls(files, directory, learned, sealed_files(files, directory))

    def __attrs_post_init__(self) -> None:
        self._queues = {
            (queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id): queue.segments
            for queue in self.directory.queues
        }
        self._heads = IndexHeads(self.files, self.learned)

    def learn_queues(self, log_file_size: int) -> None:
        """Learn the sums of all sealed queue files."""
        for segments in self._queues.values():
            self._row_sums(segments, layout.QUEUE_UNIT_SIZE, log_file_size)

    def has_units(self, queue: QueueTally, number: int, log_file_size: int) -> bool:
        """Return whether a queue's units of log file ``number`` are exactly those of its messages.

        Also return True for a queue without files, whose units are not checked.
        """
        segments = self._queues.get((queue.topic, queue.queue_id))
        if not segments:
            return True
        found = self._row_sums(segments, layout.QUEUE_UNIT_SIZE, log_file_size)
        count, units, tags = found.get(number, (0, 0, 0))
        is_delayed = queue.topic == SCHEDULE_TOPIC.encode()  # Its tags codes are times.
        return (count, units) == (queue.unit_count, queue.unit_sum) and (
            is_delayed or tags == queue.tags_sum
        )

    def has_entry_units(self, tally: Tally, number: int, log_file_size: int) -> bool:
        """Return whether the DLedger index has exactly the units of the entries of a log file."""
        ledger = self.directory.ledger
        assert ledger is not None, "the tally has entries"
        found = self._row_sums(ledger.index, layout.INDEX_UNIT_SIZE, log_file_size)
        return found.get(number) == (tally.records, tally.entry_sum, tally.term_sum)

    def _row_sums(self, segments: LogSegments, unit_size: int, log_file_size: int) -> UnitSums:
        """Return the sums of a queue or index over all of its files."""
        known = self._sums.get(segments.name)
        if known is not None:
            return known
        total: UnitSums = {}
        for file in segments.files:
            if file.size != segments.file_size or file.size % unit_size:
                continue
            total = add_sums(total, self._file_sums(file, unit_size, log_file_size))
        self._sums[segments.name] = total
        return total

    def _file_sums(self, file: LogFile, unit_size: int, log_file_size: int) -> UnitSums:
        if file.path not in self.sealed and unit_size == layout.INDEX_UNIT_SIZE:
            return self._heads.unit_sums(file, log_file_size)
        known = self.learned.known(file.path, UNITS)
        if known is not None and known["log_file_size"] == log_file_size:
            self.learned.used(file.path, UNITS)
            return {number: (count, one, two) for number, count, one, two in known["sums"]}
        identity = self.learned.identity(file.path)
        data = map_log(self.files, file.path)
        end = -(-data.content_end() // unit_size) * unit_size
        sums = sum_units(data.view[:end], unit_size, file.first_offset // unit_size, log_file_size)
        self.learned.read(file.path, end)
        if file.path in self.sealed:
            rows = [[number, *each] for number, each in sums.items()]
            value = {"log_file_size": log_file_size, "sums": rows}
            self.learned.keep(file.path, UNITS, value, identity)
        return sums

    def walk_index(
        self, path: str, walk: tuple[int, int], span: tuple[int, int], log_file_size: int
    ) -> IndexSums:
        """Walk a key index file; ``walk`` is (slots, end of the entries), ``span`` the offsets that
        count.
        """
        low, high = span
        known = self.learned.known(path, INDEX)
        expected = [*walk, log_file_size]
        if known is not None and known["walk"] == expected and low % log_file_size == 0:
            sums = _index_sums(known)
            if sums.max_offset < high:
                self.learned.used(path, INDEX)
                return _from(sums, low // log_file_size)
        identity = self.learned.identity(path)
        if low % log_file_size:
            sums = walk_index(self._view(path), *walk, log_file_size, *span)
            self.learned.read(path, index_entry_position(walk[1], walk[0]))
            return sums
        if path not in self.sealed:
            sums = self._heads.index_sums(path, walk, log_file_size)
            return self._within(path, sums, walk, span, log_file_size)
        sums = walk_index(self._view(path), *walk, log_file_size, *EVERYWHERE)
        self.learned.read(path, index_entry_position(walk[1], walk[0]))
        if sums.wrong == sums.wrong_slots == 0:
            value = {
                "walk": expected,
                "used_slots": sums.used_slots,
                "max_offset": sums.max_offset,
                "files": [[number, *each] for number, each in sums.files.items()],
            }
            self.learned.keep(path, INDEX, value, identity)
        return self._within(path, sums, walk, span, log_file_size)

    def _within(
        self,
        path: str,
        sums: IndexSums,
        walk: tuple[int, int],
        span: tuple[int, int],
        log_file_size: int,
    ) -> IndexSums:
        """Return the sums of the entries in ``span``; ``sums`` are those of all entries."""
        if sums.max_offset >= span[1]:
            return walk_index(self._view(path), *walk, log_file_size, *span)
        return _from(sums, span[0] // log_file_size)

    def _view(self, path: str) -> memoryview:
        """Return the bytes of a file, mapped to be read from its start to its end."""
        return map_log(self.files, path).view


def _index_sums(value: dict[str, Any]) -> IndexSums:
    files = {number: (count, total) for number, count, total in value["files"]}
    return IndexSums(used_slots=value["used_slots"], max_offset=value["max_offset"], files=files)


def _from(sums: IndexSums, first: int) -> IndexSums:
    """Return the sums without log files before number ``first``."""
    return evolve(sums, files={n: each for n, each in sums.files.items() if n >= first})
