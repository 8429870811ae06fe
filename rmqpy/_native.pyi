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
    RMQ_PART_COUNT: int
    RMQ_PROPERTIES_ROOM: int
    RMQ_VIEW_SIZE: int
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
    def rmq_scan(self, state: _Scan) -> int: ...
    def rmq_find_magic(self, view: Any, length: int, start: int, stop: int) -> int: ...
    def rmq_content_end(self, view: Any, length: int, position: int) -> int: ...
    def rmq_record_parts(
        self,
        view: Any,
        length: int,
        frames: Any,
        count: int,
        shift: int,
        check_crc: int,
        cells: Any,
    ) -> int: ...
    def rmq_part_views(
        self, view: Any, length: int, positions: Any, lengths: Any, count: int, data: Any
    ) -> int: ...
    def rmq_number_parts(
        self,
        view: Any,
        length: int,
        positions: Any,
        lengths: Any,
        count: int,
        table: Any,
        mask: int,
        numbers: Any,
        firsts: Any,
    ) -> int: ...
    def rmq_gather(
        self,
        view: Any,
        length: int,
        positions: Any,
        lengths: Any,
        count: int,
        data: Any,
        room: int,
    ) -> int: ...
    def rmq_property_parts(
        self,
        view: Any,
        length: int,
        positions: Any,
        lengths: Any,
        count: int,
        starts: Any,
        cells: Any,
    ) -> int: ...
    def rmq_pack(self, state: Any) -> int: ...
    def rmq_put_keys(
        self, index: Any, length: int, slots: int, keys: Any, count: int
    ) -> int: ...
    def rmq_tally(self, state: Any) -> int: ...
    def rmq_tally_add_queue(self, state: Any, number: int) -> None: ...
    def rmq_find_slot(self, table: Any, key: Any, length: int) -> Any: ...
    def rmq_take_blocks(self, state: Any, at: Any, count: int) -> None: ...
    def rmq_take_blocks_portable(self, state: Any, at: Any, count: int) -> None: ...
    def rmq_set_secret(self, account: Any, secret: Any, length: int) -> None: ...
    def rmq_feed(self, core: Any, peer: int) -> int: ...
    def rmq_receive(self, core: Any, peer: int, have: int) -> int: ...
    def rmq_send(self, core: Any) -> int: ...
    def rmq_dispatch(self, core: Any, state: Any) -> None: ...
    def rmq_run_encode(self, run: Any) -> None: ...
    def rmq_run_decode(self, run: Any) -> int: ...
    def rmq_push_take(self, grant: Any, body: bytes, length: int) -> int: ...

class _Ffi:
    def from_buffer(self, ctype: str, data: Any, /, require_writable: bool = ...) -> Any: ...
    NULL: Any
    def new(self, ctype: str, init: Any = ...) -> Any: ...
    def addressof(self, cdata: Any) -> Any: ...
    def new_allocator(self, *, should_clear_after_alloc: bool) -> Any: ...
    def buffer(self, cdata: Any, size: int = ...) -> Any: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def sizeof(self, ctype: str) -> int: ...

ffi: _Ffi
lib: _Lib
