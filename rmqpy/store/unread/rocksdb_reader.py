"""Reads a RocksDB of a store, if the optional library ``rocksdict`` is installed.

RocksDB never changes a file that it has closed, and a reader replays its log without writing. The
library keeps a file of its own beside what it opens, so it opens a folder of links instead: nothing
is written to a store.

Consume queues (``storeType=defaultRocksDB``), big-endian:

=========  ======================================================================================
family     content
=========  ======================================================================================
default    key: i32 length, 1, topic, 1, i32 queue id, 1, i64 queue offset; value: i64 physical
           offset, i32 size, i64 tags code, i64 store time
offset     key: i32 length, 1, topic, 1, ``max`` or ``min``, 1, i32 queue id; value: i64 physical
           offset, i64 queue offset
=========  ======================================================================================

Tables in ``config/``: the name of a topic or group, and its JSON.

Source: RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable, ConfigRocksDBStorage of 5.3.3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from rmqpy.model.errors import StoreError
from rmqpy.model.values import define

DEFAULT_FAMILY: Final = "default"
_UNIT: Final = Struct(">qiqq")
_LENGTH: Final = Struct(">i")
_QUEUE: Final = Struct(">BiBq")
"""What follows the topic in a key: 1, queue id, 1, queue offset."""
_SEPARATOR: Final = 1


@define(slots=True, frozen=True)
class RocksUnit:
    """A unit of a consume queue in RocksDB."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


def can_read_rocksdb() -> bool:
    """Return whether the library is installed."""
    try:
        import rocksdict  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def read_rocksdb(folder: str, family: str = DEFAULT_FAMILY) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a family in the order of the keys.

    Raises StoreError if the library cannot read it.
    """
    import tempfile  # It imports much, and few stores have such data.

    from rocksdict import AccessType, Options, Rdict

    with tempfile.TemporaryDirectory(prefix="rmqpy-rocksdb-") as links:
        for name in os.listdir(folder):
            if name != "LOCK":
                os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(links, name))
        try:
            options = Options(raw_mode=True)
            families = {name: options for name in Rdict.list_cf(links, options)}
            if family not in families:
                return
            database = Rdict(
                links,
                options=options,
                column_families=families,
                access_type=AccessType.read_only(),
            )
            try:
                yield from database.get_column_family(family).items()
            finally:
                database.close()
        except Exception as error:  # The library raises no class of its own.
            raise StoreError(
                folder,
                f"a RocksDB that cannot be read: {error}",
                "one that RocksDB opens",
                "restore it from a replica, or move it away, so that 5.x builds it again",
            ) from error


def read_rocks_units(folder: str) -> Iterator[RocksUnit]:
    """Yield the units of all queues by topic, queue, and queue offset. Raises StoreError."""
    for key, value in read_rocksdb(folder):
        unit = _unit(key, value)
        if unit is None:
            raise StoreError(
                folder,
                f"the key {key[:60]!r} with {len(value)} bytes",
                f"a topic, a queue, an offset, and {_UNIT.size} bytes",
                "read the queues with the version of RocketMQ that wrote them",
            )
        yield unit


def _unit(key: bytes, value: bytes) -> RocksUnit | None:
    if len(key) < _LENGTH.size + 1 or len(value) != _UNIT.size:
        return None
    (length,) = _LENGTH.unpack_from(key)
    begin = _LENGTH.size + 1
    if length < 0 or len(key) != begin + length + _QUEUE.size:
        return None
    one, queue_id, two, queue_offset = _QUEUE.unpack_from(key, begin + length)
    if not key[_LENGTH.size] == one == two == _SEPARATOR:
        return None
    topic = key[begin : begin + length].decode("utf-8", "replace")
    physical_offset, size, _, _ = _UNIT.unpack(value)
    return RocksUnit(topic, queue_id, queue_offset, physical_offset, size)
