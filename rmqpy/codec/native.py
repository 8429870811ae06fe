"""The C core behind the signatures of the Python functions. Imported by :mod:`rmqpy.codec.chosen`
only; ``ffi`` and ``lib`` themselves by the hot path of the broker.

One call a batch and one a range, never one a message. All memory is allocated here and kept alive
over the call.
"""

from __future__ import annotations

from array import array
from typing import Final

from rmqpy._native import ffi, lib
from rmqpy.codec import hashes, layout
from rmqpy.codec.scan import (
    BASE_OFFSET_MAX,
    COLUMN_COUNT,
    SCAN_LIMIT,
    Scan,
    StopReason,
    scan_of_columns,
)

__all__ = ["crc32", "ffi", "lib", "scan_records"]

_CRC_MIN: Final = 2048
"""Below so many bytes the call costs more than it saves."""

if lib.RMQ_COLUMN_COUNT != COLUMN_COUNT:
    raise ImportError("rmqpy._native was built from other sources than this rmqpy: build it again")


def crc32(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 (IEEE) as RocketMQ stores it: the sign bit cleared."""
    if len(data) < _CRC_MIN:
        return hashes.crc32(data)
    return lib.rmq_crc32(ffi.from_buffer("uint8_t[]", data), len(data))


def scan_records(
    view: memoryview,
    base_offset: int,
    *,
    dledger: bool,
    check_crc: bool,
    max_records: int = SCAN_LIMIT,
) -> Scan:
    """Walk ``view``, which begins at ``base_offset`` with a record (with an entry: ``dledger``),
    within one file.
    """
    assert max_records > 0, "a scan that may find nothing"
    assert 0 <= base_offset <= BASE_OFFSET_MAX, f"base offset {base_offset}"
    rows = min(max_records, len(view) // layout.RECORD_SIZE_MIN + 1)
    cells = array("q", bytes(8 * COLUMN_COUNT * rows))
    state = ffi.new("rmq_scan_state *")
    state.view = data = ffi.from_buffer("uint8_t[]", view)
    state.length = len(data)
    state.base_offset = base_offset
    state.dledger = dledger
    state.check_crc = check_crc
    state.cells = room = ffi.from_buffer("int64_t[]", cells)
    state.max_records = rows
    stop = StopReason(lib.rmq_scan(state))
    end = state.position + base_offset
    filled = state.count * COLUMN_COUNT
    columns = [cells[column:filled:COLUMN_COUNT] for column in range(COLUMN_COUNT)]
    del data, room
    return scan_of_columns(columns, view, end, stop)
