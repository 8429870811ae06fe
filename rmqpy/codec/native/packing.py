"""The C functions of :mod:`rmqpy.codec.packing`. Imported by :mod:`rmqpy.codec.backend` only.

There is one call per scan, and one for all keys.
"""

from __future__ import annotations

from typing import Final

from attrs import fields

from rmqpy._native import ffi, lib
from rmqpy.codec import packing
from rmqpy.codec.packing import KEY, PackedUnits
from rmqpy.codec.scan import COLUMN_COUNT, Scan
from rmqpy.codec.units import QUEUE_UNIT

__all__ = ["pack_records", "put_packed_keys"]

KEYS_A_RECORD: Final = 8
"""The average number of keys per record that fit; scans with more are packed in Python."""
_COLUMNS: Final = tuple(field.name for field in fields(Scan)[:COLUMN_COUNT])


def pack_records(view: memoryview, scan: Scan, count: int, *, with_keys: bool) -> PackedUnits:
    """See :func:`rmqpy.codec.packing.pack_records`."""
    if not count:
        return PackedUnits([], b"", b"")
    columns = [ffi.from_buffer("int64_t[]", getattr(scan, name)) for name in _COLUMNS]
    assert all(len(column) >= count for column in columns), "more rows than the scan has"
    data, places = ffi.from_buffer("uint8_t[]", view), 1 << count.bit_length() + 1
    rows = ffi.new("int64_t*[]", columns)
    table, run_of = ffi.new("int32_t[]", places), ffi.new("int32_t[]", count)
    runs, units = ffi.new("rmq_pack_run[]", count), ffi.new("uint8_t[]", count * QUEUE_UNIT.size)
    state = ffi.new("rmq_pack_state *")
    state.view, state.length, state.columns, state.count = data, len(data), rows, count
    state.table, state.table_mask, state.run_of = table, places - 1, run_of
    state.runs, state.units = runs, units
    if with_keys:
        state.key_room = KEYS_A_RECORD * count
        state.keys = keys = ffi.new("uint8_t[]", state.key_room * KEY.size)
    if not lib.rmq_pack(state):
        return packing.pack_records(view, scan, count, with_keys=with_keys)
    found = [(run.row, run.first, run.count, run.position) for run in runs[0 : state.run_count]]
    total = sum(run[2] for run in found)
    return PackedUnits(
        found,
        memoryview(ffi.buffer(units, total * QUEUE_UNIT.size)),
        bytes(ffi.buffer(keys, state.key_count * KEY.size)) if with_keys else b"",
    )


def put_packed_keys(index: memoryview, slot_count: int, keys: bytes) -> None:
    """See :func:`rmqpy.codec.packing.put_packed_keys`."""
    data, raw = ffi.from_buffer("uint8_t[]", index), ffi.from_buffer("uint8_t[]", keys)
    count = len(keys) // KEY.size
    done = lib.rmq_put_keys(data, len(data), slot_count, raw, count)
    del data, raw
    assert done == count, f"{count - done} keys for which there is no room"
