"""Extract from a range of the log the entries of consume queues and key index, packed in runs.

The units are the same as those of the broker's dispatch. For each range one file is written, which
only :mod:`.derived_files` reads: units and then keys, in the format of :mod:`rmqpy.codec.packing`.

A run is a gapless sequence in one queue. It is described by one small value, so the driver never
holds a message. The runs of a queue must join: if one does not start at the queue offset at which
the previous one ended, messages are missing or duplicated.
"""

from __future__ import annotations

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

__all__ = ["DeriveTask", "DerivedRange", "UnitRun"]


@define(slots=True, frozen=True)
class UnitRun:
    """``count`` units from queue offset ``first`` on, at ``position`` of the range's file."""

    topic: bytes
    queue_id: int
    first: int
    count: int
    position: int


@define(slots=True, frozen=True, kw_only=True)
class DerivedRange(WorkUnitResult):
    """The runs of units in a range; ``keys`` key entries are at ``keys_position`` of ``path``."""

    runs: tuple[UnitRun, ...] = ()
    keys: int = 0
    keys_position: int = 0


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
        path: str | None = None
        runs: list[UnitRun] = []
        keys = keys_position = 0
        if opened.places is not None:
            packing = _Packing(self)
            for scan, view, count in opened.walk.scans(*opened.places):
                packing.take(scan, view, count)
            path, runs, keys, keys_position = packing.write()
        return DerivedRange(
            **opened.outcome(path), runs=tuple(runs), keys=keys, keys_position=keys_position
        )


class _Packing:
    def __init__(self, task: DeriveTask) -> None:
        self._task = task
        self._open: dict[tuple[bytes, int], _UnitRun] = {}
        self._done: list[tuple[tuple[bytes, int], _UnitRun]] = []
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

    def _begin(self, queue: tuple[bytes, int], queue_offset: int) -> _UnitRun:
        before = self._open.get(queue)
        if before is not None:
            self._done.append((queue, before))
        run = self._open[queue] = _UnitRun(queue_offset, queue_offset)
        return run

    def write(self) -> tuple[str | None, list[UnitRun], int, int]:
        """Write the file and return (path, runs, number of keys, position of the keys).

        The runs of each queue are in order. The path is None if there is nothing to write.
        """
        done = [*self._done, *self._open.items()]
        if not done and not self._keys:
            return None, [], 0, 0
        path = f"{self._task.folder}/{uuid4().hex}"
        runs, position = [], 0
        with open(path, "xb") as file:
            for (topic, queue_id), run in done:
                runs.append(UnitRun(topic, queue_id, run.first, run.next - run.first, position))
                position += file.write(run.units)
            file.write(self._keys)
        return path, runs, len(self._keys) // KEY.size, position
