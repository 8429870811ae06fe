"""Rebuild the consume queues and the key index of a store from its logs, in a separate folder.

Ranges of the log are packed (:mod:`.derived_ranges`), the driver proves that they join and sorts
their runs by queue, and then each queue and each index file is written by one task
(:mod:`.derived_files`). The result is byte for byte what the broker's dispatch would have written;
index files have the same entries in the order of the log.

Queues whose messages have all expired define the next queue offset but cannot be rebuilt from the
log, so their files are copied. Queues of deleted topics are not rebuilt.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from rmqpy.audit.facts.reader import read_confirmed_end
from rmqpy.audit.facts.small_files import existing_topics
from rmqpy.audit.scan.directory import StoreDirectory, read_directory
from rmqpy.audit.scan.queue_units import map_file, map_units, read_ends
from rmqpy.audit.scan.ranges import RANGE_BYTES
from rmqpy.codec.hashes import java_text
from rmqpy.codec.layout import INDEX_ENTRY_SIZE
from rmqpy.codec.packing import KEY
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.config.loading import StoreSettings
from rmqpy.model.progress import NoProgress, ProgressSink
from rmqpy.pipeline.jobs.derived_files import (
    BuiltFile,
    ByteRange,
    FileContent,
    FileTask,
    IndexFileUnit,
    QueueBatch,
    QueueFileUnit,
    content_of,
)
from rmqpy.pipeline.jobs.derived_ranges import DerivedRange, DeriveTask, Queue
from rmqpy.pipeline.spark.work_units import (
    Chain,
    SkippedRange,
    WorkUnit,
    partition_store,
    remove_temporary,
)
from rmqpy.store.files.disk import OsFileSystem, sync_file_system
from rmqpy.store.index.index_file import index_file_name
from rmqpy.store.queues.table import is_queue_name

__all__ = ["INDEX", "QUEUES", "QueueBreak", "Rebuild", "RebuildPlan"]

TEMPORARY: Final = "_temporary"
QUEUES: Final = "consumequeue"
INDEX: Final = "index"
BATCH_QUEUES: Final = 8192
BATCH_UNITS: Final = 1 << 22
"""The limits of the queues that one task writes."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A function that executes all work units of a kind and yields the results in order."""


@define(slots=True, frozen=True)
class QueueBreak:
    """A message whose queue offset does not follow the previous one in its queue."""

    topic: str
    queue_id: int
    found: int
    expected: int

    def __str__(self) -> str:
        what = "are missing" if self.found > self.expected else "are duplicated"
        count = abs(self.found - self.expected)
        return (
            f"{self.topic} queue {self.queue_id}: queue offset {self.found} where {self.expected}"
            f" follows: {count} {what}"
        )


@define(slots=True, frozen=True, kw_only=True)
class RebuildPlan:
    """The options of a rebuild.

    ``target`` is a folder that is deleted and created again. ``settings`` has sizes and delay
    levels. ``packing`` receives the progress in bytes of the log, ``writing`` in bytes of consume
    queues and key index.
    """

    root: str
    target: str
    settings: StoreSettings
    range_bytes: int = RANGE_BYTES
    packing: ProgressSink = field(factory=NoProgress)
    writing: ProgressSink = field(factory=NoProgress)


def run_here(task: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
    """Execute the work units one after the other in this process."""
    return map(task, units)


@define(slots=True)
class Rebuild:
    """One rebuild; afterwards the fields have its results.

    Queues with breaks are built as the broker would build them: missing units become fillers,
    duplicates count once.
    """

    plan: RebuildPlan
    run_units: Run = run_here
    queues: int = 0
    units: int = 0
    index_files: int = 0
    keys: int = 0
    copied: int = 0
    breaks: list[QueueBreak] = field(factory=list)
    skipped: list[SkippedRange] = field(factory=list)
    contents: list[FileContent] = field(factory=list)
    """All files below ``consumequeue``."""
    _paths: list[str] = field(factory=list)
    """The files of the ranges."""
    _spans: dict[Queue, list[int]] = field(factory=dict)
    """The spans of each queue, as :class:`QueueFileUnit` has them."""
    _key_spans: list[ByteRange] = field(factory=list)
    _built: set[tuple[str, int]] = field(factory=set)

    @property
    def is_whole(self) -> bool:
        return not (self.breaks or self.skipped)

    def run(self) -> None:
        """Build everything into the target folder."""
        plan = self.plan
        target = Path(plan.target)
        shutil.rmtree(target, ignore_errors=True)
        for name in (TEMPORARY, QUEUES, INDEX):
            (target / name).mkdir(parents=True)
        directory = read_directory(OsFileSystem(), plan.root, plan.settings)
        self._pack(directory)
        self._build(directory)
        self._copy_expired(directory)
        remove_temporary(target / TEMPORARY)
        sync_file_system(plan.target)

    def _pack(self, directory: StoreDirectory) -> None:
        plan = self.plan
        limit = read_confirmed_end(OsFileSystem(), directory)
        levels = plan.settings.delay_levels_ms
        task = DeriveTask(
            folder=f"{plan.target}/{TEMPORARY}",
            delay_levels={number: delay for number, delay in enumerate(levels, 1)},
            with_keys=plan.settings.message_index_enable,
        )
        ranges, excluded = partition_store(directory, plan.range_bytes, limit)
        self.skipped += excluded
        plan.packing.expect(sum(work.stop - work.start for work in ranges))
        chain: Chain[DerivedRange] = Chain(task)
        for derived in self.run_units(task, map(WorkUnit, ranges)):
            proven = chain.take(derived)
            if proven is not None:
                self._take(proven)
            plan.packing.advance(derived.work.stop - derived.work.start)

    def _take(self, derived: DerivedRange) -> None:
        self.skipped += derived.skipped
        if derived.path is None:
            return
        number, known = len(self._paths), self._spans
        self._paths.append(derived.path)
        for queue, first, count, position in derived.runs():
            spans = known.get(queue)
            if spans is None:
                known[queue] = [number, position, count, first]
                continue
            expected = spans[-1] + spans[-2]
            if first != expected:
                self.breaks.append(QueueBreak(java_text(queue[0]), queue[1], first, expected))
            spans += number, position, count, first
        if derived.keys:
            self._key_spans.append(ByteRange(derived.path, derived.keys_position, derived.keys))

    def _build(self, directory: StoreDirectory) -> None:
        plan = self.plan
        task = FileTask(folder=f"{plan.target}/{TEMPORARY}", logs=directory.logs)
        size, paths = plan.settings.mapped_file_size_consume_queue, tuple(self._paths)
        batches = _batches(self._queue_units(directory))
        units: list[QueueBatch | IndexFileUnit] = [QueueBatch(b, size, paths) for b in batches]
        units += self._index_units()
        newest = ""
        plan.writing.expect(sum(map(_unit_bytes, units)))
        for unit, built in zip(units, self.run_units(task, units), strict=True):
            if isinstance(unit, QueueBatch):
                self._place_queues(built, unit)
            else:
                newest = index_file_name(built.begin_ms, newest)
                os.rename(built.path, f"{plan.target}/{INDEX}/{newest}")
                self.index_files += 1
                self.keys += built.items
            plan.writing.advance(_unit_bytes(unit))

    def _place_queues(self, built: BuiltFile, batch: QueueBatch) -> None:
        """Move the queues of a batch to their places, those of a new topic at once."""
        for number, (topic, queues) in enumerate(batch.by_topic()):
            source, folder = f"{built.path}/{number}", f"{self.plan.target}/{QUEUES}/{topic}"
            if not os.path.exists(folder):
                os.rename(source, folder)
            else:  # An earlier batch has its first queues.
                for queue in queues:
                    os.rename(f"{source}/{queue.queue_id}", f"{folder}/{queue.queue_id}")
            self._built.update((topic, queue.queue_id) for queue in queues)
        self.contents += built.contents
        self.queues += len(batch.queues)
        self.units += built.items

    def _queue_units(self, directory: StoreDirectory) -> Iterator[QueueFileUnit]:
        existing = existing_topics(
            OsFileSystem(), directory.paths.config, directory.paths.consume_queue
        )
        for (topic, queue_id), spans in sorted(self._spans.items()):
            name = java_text(topic)
            if not is_queue_name(topic, queue_id) or (
                existing is not None and name not in existing
            ):
                continue
            yield QueueFileUnit(
                topic=name,
                queue_id=queue_id,
                spans=spans,
            )

    def _index_units(self) -> Iterator[IndexFileUnit]:
        settings = self.plan.settings
        per_file = settings.max_index_num - 1
        before: ByteRange | None = None
        for number, spans in enumerate(_parts(self._key_spans, per_file)):
            yield IndexFileUnit(
                number=number,
                spans=spans,
                before=before,
                slot_count=settings.max_hash_slot_num,
                entry_count=settings.max_index_num,
            )
            last = spans[-1]
            before = ByteRange(last.path, last.position + (last.count - 1) * KEY.size, 1)

    def _copy_expired(self, directory: StoreDirectory) -> None:
        files = OsFileSystem()
        begin = min((log.first_offset for log in directory.logs), default=0)
        for queue in directory.queues:
            if (queue.topic, queue.queue_id) in self._built:
                continue
            units = map_units(files, queue.segments)
            if units is None:
                continue
            if read_ends(queue, units, 0).end_physical > begin:
                continue
            folder = Path(self.plan.target, QUEUES, queue.topic, str(queue.queue_id))
            shutil.copytree(queue.segments.files[0].path.rpartition("/")[0], folder)
            for file in sorted(folder.iterdir()):
                view = map_file(files, str(file))
                path = f"{queue.topic}/{queue.queue_id}/{file.name}"
                self.contents.append(content_of(path, len(view), view))
            self.copied += 1


def _unit_bytes(unit: QueueBatch | IndexFileUnit) -> int:
    """Return the size in bytes of the units or keys in the files."""
    if isinstance(unit, QueueBatch):
        return QUEUE_UNIT.size * unit.units
    return INDEX_ENTRY_SIZE * sum(span.count for span in unit.spans)


def _batches(queues: Iterable[QueueFileUnit]) -> Iterator[tuple[QueueFileUnit, ...]]:
    """Yield the queues in batches of a limited number of queues and units."""
    batch: list[QueueFileUnit] = []
    units = 0
    for queue in queues:
        count = queue.units
        if batch and (len(batch) == BATCH_QUEUES or units + count > BATCH_UNITS):
            yield tuple(batch)
            batch, units = [], 0
        batch.append(queue)
        units += count
    if batch:
        yield tuple(batch)


def _parts(spans: list[ByteRange], size: int) -> Iterator[tuple[ByteRange, ...]]:
    """Yield groups of spans with ``size`` entries each; the last group may have fewer."""
    part: list[ByteRange] = []
    remaining = size
    for span in spans:
        while span.count:
            count = min(remaining, span.count)
            part.append(ByteRange(span.path, span.position, count))
            span = ByteRange(span.path, span.position + count * KEY.size, span.count - count)
            remaining -= count
            if not remaining:
                yield tuple(part)
                part, remaining = [], size
    if part:
        yield tuple(part)
