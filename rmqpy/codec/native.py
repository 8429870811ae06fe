"""The C core behind the signatures of the Python functions. Imported by :mod:`rmqpy.codec.chosen`
only; ``ffi`` and ``lib`` themselves by the hot path of the broker.

One call a batch and one a range, never one a message. All memory is allocated here and kept alive
over the call.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final

from rmqpy._native import ffi, lib
from rmqpy.codec import hashes, layout, message
from rmqpy.codec.scan import (
    BASE_OFFSET_MAX,
    COLUMN_COUNT,
    SCAN_LIMIT,
    Scan,
    StopReason,
    scan_of_columns,
)
from rmqpy.model.message import MessageDraft

__all__ = ["crc32", "encode_messages", "ffi", "lib", "scan_records"]

_DRAFT: Final = struct.Struct("=qqiiiiiiIIII16s16s")
"""rmq_draft, field by field."""

# Measured: below so many drafts (bytes to check) the call costs more than it saves, and above so
# many bytes copying them into one buffer and out of it again does.
_BATCH_MIN: Final = 8
_COPY_MAX: Final = 512 * 1024
_CRC_MIN: Final = 2048

if ffi.sizeof("rmq_draft") != _DRAFT.size or lib.RMQ_COLUMN_COUNT != COLUMN_COUNT:
    raise ImportError("rmqpy._native was built from other sources than this rmqpy: build it again")


def crc32(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 (IEEE) as RocketMQ stores it: the sign bit cleared."""
    if len(data) < _CRC_MIN:
        return hashes.crc32(data)
    return lib.rmq_crc32(ffi.from_buffer("uint8_t[]", data), len(data))


def encode_messages(drafts: Sequence[MessageDraft]) -> list[bytearray]:
    """One version 1 record a draft. Queue and physical offset and store timestamp are left 0."""
    if len(drafts) < _BATCH_MIN:
        return message.encode_messages(drafts)
    descriptors: list[bytes] = []
    parts: list[bytes | memoryview] = []
    pack = _DRAFT.pack
    room = 0
    for draft in drafts:
        message.check_limits(draft)
        topic, body, properties = draft.topic, draft.body, draft.properties
        lengths = len(body), len(topic), len(properties)
        born_ip, born_port = draft.born_host
        store_ip, store_port = draft.store_host
        descriptors.append(
            pack(
                draft.born_timestamp_ms,
                draft.prepared_transaction_offset,
                draft.queue_id,
                draft.flag,
                draft.sys_flag,
                draft.reconsume_times,
                born_port,
                store_port,
                *lengths,
                0,
                born_ip,
                store_ip,
            )
        )
        parts += (body, topic, properties)
        room += layout.record_size(draft.sys_flag, *lengths)
    if room > _COPY_MAX:
        return message.encode_messages(drafts)
    return _encode(b"".join(descriptors), b"".join(parts), room)


def _encode(descriptors: bytes, payload: bytes, room: int) -> list[bytearray]:
    count = len(descriptors) // _DRAFT.size
    records = bytearray(room)
    ends = array("q", bytes(8 * count))
    done = lib.rmq_encode(
        ffi.from_buffer("rmq_draft[]", descriptors),
        count,
        ffi.from_buffer("uint8_t[]", payload),
        len(payload),
        ffi.from_buffer("uint8_t[]", records),
        room,
        ffi.from_buffer("int64_t[]", ends),
    )
    assert done == count, f"draft {done} of {count} breaks a limit"
    if count == 1:
        return [records]
    return [records[start:end] for start, end in zip([0, *ends], ends, strict=False)]


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
