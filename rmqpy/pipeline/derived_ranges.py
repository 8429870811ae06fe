"""What a range of the log gives to consume queues and key index: packed, a run at a time.

Units are those of the broker's dispatch. A range writes one file, which nobody but
:mod:`.derived_files` reads:

==============  =========================================================================
units           20 bytes each, as they stand in a consume queue, one run behind the other
key entries     key hash, physical offset, store time in ms (int32, int64, int64), in the
                order of the log
==============  =========================================================================

A run is what follows without a gap in one queue; what comes back for it is one small value, so the
driver never holds a message. A queue's runs must join: where one does not begin at the queue offset
at which the one before has ended, messages are missing or there twice.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import uuid4

from attrs import define, field

from rmqpy.codec.scan import Scan
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.flags import has_queue_unit
from rmqpy.pipeline.pieces import OpenPiece, Piece, PieceResult
from rmqpy.store.dispatch import key_hashes, set_deliver_times

__all__ = ["KEY_ENTRY", "DeriveTask", "Derived", "UnitRun"]

KEY_ENTRY: Final = struct.Struct(">iqq")
"""Key hash, physical offset, store time in ms."""


@define(slots=True, frozen=True)
class UnitRun:
    """``count`` units from queue offset ``first`` on, at ``position`` of the range's file."""

    topic: bytes
    queue_id: int
    first: int
    count: int
    position: int


@define(slots=True, frozen=True, kw_only=True)
class Derived(PieceResult):
    """Units in runs; key entries stand at ``keys_position`` of the file ``path``."""

    runs: tuple[UnitRun, ...] = ()
    keys: int = 0
    keys_position: int = 0


@define(slots=True)
class _Run:
    first: int
    next: int
    units: bytearray = field(factory=bytearray)


@define(slots=True, frozen=True, kw_only=True)
class DeriveTask:
    """What is done with a range, here or on a worker. ``delay_levels``: level → delay in ms."""

    folder: str
    delay_levels: dict[int, int]
    with_keys: bool = True

    def __call__(self, piece: Piece) -> Derived:
        opened = OpenPiece(piece)
        path: str | None = None
        runs: list[UnitRun] = []
        keys = keys_position = 0
        if opened.places is not None:
            packing = _Packing(self)
            for scan, view, count in opened.walk.scans(*opened.places):
                packing.take(scan, view, count)
            path, runs, keys, keys_position = packing.write()
        return Derived(
            **opened.outcome(path), runs=tuple(runs), keys=keys, keys_position=keys_position
        )


class _Packing:
    def __init__(self, task: DeriveTask) -> None:
        self._task = task
        self._open: dict[tuple[bytes, int], _Run] = {}
        self._done: list[tuple[tuple[bytes, int], _Run]] = []
        self._keys = bytearray()

    def take(self, scan: Scan, view: memoryview, count: int) -> None:
        """The first ``count`` records of a scan."""
        set_deliver_times(scan, self._task.delay_levels)
        pack, runs = QUEUE_UNIT.pack, self._open
        rows = zip(
            *(scan.topic, scan.queue_id, scan.sys_flag, scan.queue_offset),
            *(scan.offset, scan.size, scan.tags_code),
            strict=True,
        )
        for row, (topic, queue_id, sys_flag, queue_offset, offset, size, tags) in enumerate(rows):
            if row == count:
                break
            if sys_flag and not has_queue_unit(sys_flag):
                continue
            run = runs.get((topic, queue_id))
            if run is None or run.next != queue_offset:
                run = self._begin((topic, queue_id), queue_offset)
            run.units += pack(offset, size, tags)
            run.next += 1
        if self._task.with_keys:
            for row, hashes in key_hashes(scan, view, count):
                offset, stored_ms = scan.offset[row], scan.store_timestamp_ms[row]
                for each in hashes:
                    self._keys += KEY_ENTRY.pack(each, offset, stored_ms)

    def _begin(self, queue: tuple[bytes, int], queue_offset: int) -> _Run:
        before = self._open.get(queue)
        if before is not None:
            self._done.append((queue, before))
        run = self._open[queue] = _Run(queue_offset, queue_offset)
        return run

    def write(self) -> tuple[str | None, list[UnitRun], int, int]:
        """The file, its runs in the order of each queue, the key entries' number and position."""
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
        return path, runs, len(self._keys) // KEY_ENTRY.size, position
