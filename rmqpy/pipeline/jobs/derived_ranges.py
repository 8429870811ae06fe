"""Extract from a range of the log the entries of consume queues and key index, packed in runs.

The units are the same as those of the broker's dispatch. For each range one file is written, which
only :mod:`.derived_files` reads: units and then keys, in the format of :mod:`rmqpy.codec.packing`.

A run is a gapless sequence in one queue. It is described by three numbers, so the driver never
holds a message. The runs of a queue must join: if one does not start at the queue offset at which
the previous one ended, messages are missing or duplicated.

With 50,000 queues there are as many runs in a range. They travel between processes as one array,
because pickling as many objects takes longer than packing their units.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from attrs import define, field

from rmqpy.codec.backend import pack_records
from rmqpy.codec.packing import KEY
from rmqpy.codec.scan import Scan
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.spark.work_units import OpenWorkUnit, WorkUnit, WorkUnitResult
from rmqpy.store.dispatcher import set_deliver_times
from rmqpy.store.files.disk import OsFileSystem

__all__ = ["DeriveTask", "DerivedRange", "Queue"]

Queue = tuple[bytes, int]
"""(topic, queue id)."""


@define(slots=True, frozen=True, kw_only=True)
class DerivedRange(WorkUnitResult):
    """The runs of units in a range; ``keys`` key entries are at ``keys_position`` of ``path``.

    ``queues`` has the queue of each run, and ``numbers`` has three numbers for each.
    """

    queues: tuple[Queue, ...] = ()
    numbers: array[int] = field(factory=lambda: array("q"))
    keys: int = 0
    keys_position: int = 0

    def runs(self) -> Iterator[tuple[Queue, int, int, int]]:
        """Yield (queue, queue offset of the first unit, number of units, their position in the
        file of the range) of each run; those of a queue are in the order of the log.
        """
        numbers = iter(self.numbers)
        return zip(self.queues, numbers, numbers, numbers, strict=True)


@define(slots=True)
class _UnitRun:
    first: int
    next: int
    units: bytearray = field(factory=bytearray)


@define(slots=True, frozen=True, kw_only=True)
class DeriveTask:
    """Extracts one range, in this process or on a worker.

    ``delay_levels`` maps levels to delays in ms.
    """

    folder: str
    delay_levels: dict[int, int]
    with_keys: bool = True
    files: FileSystem = field(factory=OsFileSystem)

    def __call__(self, unit: WorkUnit) -> DerivedRange:
        opened = OpenWorkUnit(unit, self.files)
        if opened.places is None:
            return DerivedRange(**opened.outcome(None))
        packing = _Packing(self)
        for scan, view, count in opened.walk.scans(*opened.places):
            packing.take(scan, view, count)
        written = packing.write()
        return DerivedRange(**opened.outcome(written.pop("path", None)), **written)


class _Packing:
    def __init__(self, task: DeriveTask) -> None:
        self._task = task
        self._open: dict[Queue, _UnitRun] = {}
        self._done: list[tuple[Queue, _UnitRun]] = []
        self._keys = bytearray()

    def take(self, scan: Scan, view: memoryview, count: int) -> None:
        """Add the first ``count`` records of a scan."""
        set_deliver_times(scan, self._task.delay_levels)
        packed = pack_records(view, scan, count, with_keys=self._task.with_keys)
        # With many queues, there is a run for almost every record.
        topics, queue_ids, opened = scan.topic, scan.queue_id, self._open.get
        size, data = QUEUE_UNIT.size, packed.units
        for row, first, units, position in packed.runs:
            queue = topics[row], queue_ids[row]
            run = opened(queue)
            if run is None or run.next != first:
                run = self._begin(queue, first)
            start = position * size
            run.units += data[start : start + units * size]
            run.next += units
        self._keys += packed.keys

    def _begin(self, queue: Queue, queue_offset: int) -> _UnitRun:
        before = self._open.get(queue)
        if before is not None:
            self._done.append((queue, before))
        run = self._open[queue] = _UnitRun(queue_offset, queue_offset)
        return run

    def write(self) -> dict[str, Any]:
        """Write the file and return its path, and the fields of a :class:`DerivedRange`; nothing if
        there is nothing to write.
        """
        done = [*self._done, *self._open.items()]
        if not done and not self._keys:
            return {}
        path = f"{self._task.folder}/{uuid4().hex}"
        numbers, position = array("q"), 0
        with open(path, "xb") as file:
            for _, run in done:
                numbers.extend((run.first, run.next - run.first, position))
                position += len(run.units)
            file.writelines(run.units for _, run in done)
            file.write(self._keys)
        return {
            "path": path,
            "queues": tuple(queue for queue, _ in done),
            "numbers": numbers,
            "keys": len(self._keys) // KEY.size,
            "keys_position": position,
        }
