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
    RMQ_OPAQUE: int
    RMQ_MSG_ID: int
    RMQ_QUEUE_NUMBER: int
    RMQ_QUEUE_START: int
    RMQ_NEXT_OFFSET: int
    RMQ_LOW_OFFSET: int
    RMQ_HIGH_OFFSET: int
    RMQ_SEND_JSON: int
    RMQ_SEND_BINARY: int
    RMQ_PULL_JSON: int
    RMQ_PULL_BINARY: int
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
    def rmq_find_slot(self, table: Any, key: Any, length: int) -> Any: ...
    def rmq_feed(self, core: Any, peer: int) -> int: ...
    def rmq_receive(self, core: Any, peer: int, have: int) -> int: ...
    def rmq_send(self, core: Any) -> int: ...
    def rmq_dispatch(self, core: Any, state: Any) -> None: ...

class _Ffi:
    def from_buffer(self, ctype: str, data: Any, /, require_writable: bool = ...) -> Any: ...
    NULL: Any
    def new(self, ctype: str, init: Any = ...) -> Any: ...
    def addressof(self, cdata: Any) -> Any: ...
    def buffer(self, cdata: Any) -> Any: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def sizeof(self, ctype: str) -> int: ...

ffi: _Ffi
lib: _Lib
