"""The C core as cffi presents it: native/rmqpy_native.h has the declarations."""

from typing import Any

class _Scan:
    view: Any
    length: int
    base_offset: int
    dledger: int
    check_crc: int
    cells: Any
    max_records: int
    count: int
    position: int

class _Lib:
    RMQ_COLUMN_COUNT: int
    def rmq_crc32(self, data: Any, length: int) -> int: ...
    def rmq_crc32_portable(self, data: Any, length: int) -> int: ...
    def rmq_crc32_is_accelerated(self) -> int: ...
    def rmq_encode(
        self,
        drafts: Any,
        count: int,
        payload: Any,
        payload_length: int,
        out: Any,
        out_length: int,
        ends: Any,
    ) -> int: ...
    def rmq_scan(self, state: _Scan) -> int: ...

class _Ffi:
    def from_buffer(self, ctype: str, data: Any, /, require_writable: bool = ...) -> Any: ...
    def new(self, ctype: str) -> Any: ...
    def sizeof(self, ctype: str) -> int: ...

ffi: _Ffi
lib: _Lib
