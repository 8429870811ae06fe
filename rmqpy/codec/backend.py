"""The functions that exist in C and in Python, chosen once at import: C if the extension is
available, otherwise Python.

Functions that only audits need are in :mod:`rmqpy.codec.tally.backend`.

``RMQPY_PURE=1`` in the environment selects Python. ``implementation`` is ``"c"`` or ``"pure"``, and
``reason`` explains the choice.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from rmqpy.codec import columns, entry_batch, hashes, packing, received, scan
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.model.values import define

__all__ = [
    "PushDecoder",
    "content_end",
    "crc32",
    "decode_run",
    "encode_run",
    "find_queue_ends",
    "gather",
    "implementation",
    "magic_places",
    "number_parts",
    "pack_records",
    "part_views",
    "property_parts",
    "push_taker",
    "put_packed_keys",
    "read_run",
    "reason",
    "received_records",
    "record_parts",
    "run_units",
    "scan_records",
    "walk_records",
]


class _ScanRecords(Protocol):
    def __call__(
        self,
        view: memoryview,
        base_offset: int,
        *,
        dledger: bool,
        check_crc: bool,
        max_records: int = ...,
        topics: bool = ...,
    ) -> scan.Scan: ...


class _WalkRecords(Protocol):
    def __call__(
        self, view: memoryview, base_offset: int, stop: int, *, dledger: bool
    ) -> tuple[int, scan.StopReason]: ...


_ReceivedRecords = Callable[[bytes], tuple[received.ReceivedRecords, InvalidRecordError | None]]


class _ContentEnd(Protocol):
    def __call__(self, view: memoryview, position: int = ...) -> int: ...


_MagicPlaces = Callable[[memoryview, int, int], Iterator[int]]


class _RecordParts(Protocol):
    def __call__(
        self, view: memoryview, frames: Sequence[int], *, check_crc: bool, shift: int = ...
    ) -> columns.RecordColumns: ...


_Gather = Callable[[memoryview, Sequence[int], Sequence[int]], bytes | memoryview]
_PropertyParts = Callable[[memoryview, Sequence[int], Sequence[int]], columns.PropertyParts | None]


class _PackRecords(Protocol):
    def __call__(
        self, view: memoryview, scan: scan.Scan, count: int, *, with_keys: bool
    ) -> packing.PackedUnits: ...


_PutPackedKeys = Callable[[memoryview, int, bytes | memoryview], None]


class _FindQueueEnds(Protocol):
    def __call__(
        self, view: memoryview, base_offset: int, *, dledger: bool
    ) -> packing.QueueEnds: ...


class _ReadRun(Protocol):
    def __call__(
        self, view: memoryview, index: int, position: int, *, count_max: int, size_max: int
    ) -> tuple[entry_batch.RunSpan, bytes] | None: ...


_EncodeRun = Callable[[entry_batch.RunSpan, bytes], bytes]
_RunUnits = Callable[[memoryview, int, int], tuple[entry_batch.RunSpan, bytes] | None]


class PushDecoder(Protocol):
    """A decoder that stages batch pushes directly after the end of a log; available in C only.

    Each data file of the log has ``file_size`` bytes.
    """

    def __init__(self, file_size: int) -> None: ...

    def share(self, buffer: memoryview, units: memoryview, state: array[int]) -> None:
        """Set the memory in which entries and index units are staged; for ``state`` see
        ``rmqpy.store.files.staging``.
        """

    def allow(self, group: bytes, names: bytes, members: bytes, term: int) -> None:
        """Set the text that a push must have between its first and last index, and from there to
        its size, and the names that a binary push must have; no entry may have a larger term. Call
        before the first push.
        """

    def take(self, body: bytes) -> tuple[int, int, int] | None:
        """Stage the entries of a push and return its first index, count and committed index.

        None means that the push is not allowed or does not continue the log within its file;
        nothing has changed then.
        """

    def take_run(self, body: bytes) -> tuple[int, int, int] | None:
        """Stage the entries of a binary push, as :meth:`take` does."""


_DecodeRun = Callable[[bytes, int], tuple[entry_batch.RunSpan, bytes, bytes, int] | None]


def _guards_nothing(_number: int, _view: memoryview) -> bool:
    return False


def _forgets_nothing(_number: int) -> None:
    """Do nothing."""


def _lost_nothing() -> int:
    return 0


def _without_range(_number: int) -> tuple[int, int] | None:
    return None


@define(slots=True, frozen=True, eq=False, repr=False)
class _Choice:
    implementation: str
    reason: str
    crc32: Callable[[bytes | bytearray | memoryview], int]
    scan_records: _ScanRecords
    received_records: _ReceivedRecords
    read_run: _ReadRun
    encode_run: _EncodeRun
    run_units: _RunUnits
    decode_run: _DecodeRun
    walk_records: _WalkRecords
    magic_places: _MagicPlaces
    content_end: _ContentEnd
    record_parts: _RecordParts
    gather: _Gather
    part_views: _Gather
    number_parts: scan.NumberParts
    property_parts: _PropertyParts
    pack_records: _PackRecords
    find_queue_ends: _FindQueueEnds
    put_packed_keys: _PutPackedKeys
    push_taker: type[PushDecoder] | None = None
    guard_mapping: Callable[[int, memoryview], bool] = _guards_nothing
    forget_mapping: Callable[[int], None] = _forgets_nothing
    lost_pages: Callable[[], int] = _lost_nothing
    lost_range: Callable[[int], tuple[int, int] | None] = _without_range


def _pure(reason: str) -> _Choice:
    return _Choice(
        "pure",
        reason,
        hashes.crc32,
        scan.scan_records,
        received.received_records,
        entry_batch.read_run,
        entry_batch.encode_run,
        entry_batch.run_units,
        entry_batch.decode_run,
        scan.walk_records,
        scan.magic_places,
        scan.content_end,
        columns.record_parts,
        columns.gather,
        columns.part_views,
        scan.dictionary_encode,
        columns.property_parts,
        packing.pack_records,
        packing.find_queue_ends,
        packing.put_packed_keys,
    )


def _choose(environment: str | None) -> _Choice:
    if environment == "1":
        return _pure("RMQPY_PURE=1 is set")
    try:
        from rmqpy.codec.native import binding
        from rmqpy.codec.native import entry_batch as native_entry_batch
    except ImportError as error:
        return _pure(f"the C extension cannot be used: {error}")
    return _Choice(
        "c",
        "the C extension rmqpy._native is installed",
        binding.crc32,
        binding.scan_records,
        binding.received_records,
        native_entry_batch.read_run,
        native_entry_batch.encode_run,
        native_entry_batch.run_units,
        native_entry_batch.decode_run,
        binding.walk_records,
        binding.magic_places,
        binding.content_end,
        binding.record_parts,
        binding.gather,
        binding.part_views,
        binding.number_parts,
        binding.property_parts,
        binding.pack_records,
        binding.find_queue_ends,
        binding.put_packed_keys,
        native_entry_batch.PushTaker,
        binding.guard_mapping,
        binding.forget_mapping,
        binding.lost_pages,
        binding.lost_range,
    )


_choice = _choose(os.environ.get("RMQPY_PURE"))

implementation = _choice.implementation
reason = _choice.reason
crc32 = _choice.crc32
scan_records = _choice.scan_records
received_records = _choice.received_records
read_run = _choice.read_run
encode_run = _choice.encode_run
run_units = _choice.run_units
decode_run = _choice.decode_run
walk_records = _choice.walk_records
magic_places = _choice.magic_places
content_end = _choice.content_end
record_parts = _choice.record_parts
gather = _choice.gather
part_views = _choice.part_views
number_parts = _choice.number_parts
property_parts = _choice.property_parts
pack_records = _choice.pack_records
find_queue_ends = _choice.find_queue_ends
put_packed_keys = _choice.put_packed_keys
push_taker = _choice.push_taker
guard_mapping = _choice.guard_mapping
"""Puts zeros in the place of pages of a mapping that cannot be read, instead of ending the process
with SIGBUS. Numbers are given by the caller, from 0. Returns False if the mapping is not guarded:
without the C core none is.
"""
forget_mapping = _choice.forget_mapping
"""Frees the number of a mapping that no longer exists."""
lost_pages = _choice.lost_pages
"""Returns how many pages of all mappings were replaced since the start."""
lost_range = _choice.lost_range
"""Returns the range of a mapping that contains all replaced pages, or None."""
