"""Where much of the log waits, C gathers units and entries, and Python writes many at once: the
files are the same as without that, also after a disk that was full and after a kill.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from harness.fastpath import (
    SEND_FIELDS,
    BrokerPair,
    FallbackDriver,
    FastPathDriver,
    run_answered,
)

from rmqpy.codec import backend
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.files import disk
from rmqpy.store.files.disk import DiskFile, OsFileSystem
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.harness import BuildBroker
from rmqpy.testing.memory_files import MemoryFiles

Side = FallbackDriver | FastPathDriver

QUEUES, PLACES, PER_FILE = 8, 3, 700
Write = Callable[[DiskFile, int, bytes], None]


def send(queue_id: int, number: int) -> bytes:
    properties = f"UNIQ_KEY\1{number:032d}\2KEYS\1k{number % 50} all\2"
    fields = {**SEND_FIELDS, "b": "T", "d": str(QUEUES), "e": str(queue_id), "i": properties}
    return encode_command(RemotingCommand(310, ext_fields=fields, body=b"b" * 100))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The paths and lengths of the writes of gathered units and entries."""
    found: list[tuple[str, int]] = []
    write = DiskFile.write

    def recorded(file: DiskFile, position: int, data: bytes | bytearray | memoryview) -> None:
        found.append((file.path, len(data)))
        write(file, position, data)

    monkeypatch.setattr(DiskFile, "write", recorded)
    return found


@pytest.fixture
def pair(
    build: BuildBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BrokerPair]:
    """Two brokers on disk, the second one with the fast path, which gathers from the first record
    on, for fewer queues than there are.
    """
    if backend.implementation != "c":
        pytest.skip(f"no C to compare with: {backend.reason}")
    from rmqpy.broker.assembly.wiring import install_fast_path
    from rmqpy.broker.fastpath import dispatch

    monkeypatch.setattr(os, "fsync", lambda _file: None)  # No power is lost here.
    monkeypatch.setattr(disk, "_sync_data", lambda _file: None)
    monkeypatch.setattr(dispatch, "GATHERED_FROM_BYTES", 1)
    monkeypatch.setattr(dispatch, "GATHERED_QUEUES", PLACES)
    monkeypatch.setattr(dispatch, "GATHERED_UNITS_BYTES", 20 * 300)
    monkeypatch.setattr(dispatch, "GATHERED_ENTRIES", 1000)
    fallback, fast = (
        build(
            files=cast(MemoryFiles, OsFileSystem()),
            store_path_root_dir=str(tmp_path / name),
            store_path_commit_log=str(tmp_path / name / "commitlog"),
            mapped_file_size_consume_queue=20 * PER_FILE,
            message_index_enable=True,
            max_hash_slot_num=100,
            max_index_num=4000,
        )
        for name in ("fallback", "fast")
    )
    feed = install_fast_path(fast.broker, fast.store, fast.scheduler)
    assert feed is not None
    feed.core.frame_max = (1 << 24) - 4
    both = FallbackDriver(fallback), FastPathDriver(fast, feed)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for turn in range(3):  # C learns a queue from the first message, its file from the second.
            run_answered(side, *(send(queue_id, turn) for queue_id in range(QUEUES)))
    yield both
    feed.close()
    for side in both:
        side.harness.store.close_without_flush()


def turns(seed: int, count: int) -> Iterator[list[bytes]]:
    """Yield the messages of some turns; most are for a few of the queues."""
    choose, number = Random(seed), 0
    for _ in range(count):
        frames = []
        for _ in range(choose.choice((1, 40, 500))):
            queue_id = 1 if choose.random() < 0.9 else choose.randrange(QUEUES)
            frames.append(send(queue_id, number))
            number += 1
        yield frames


def derived_files(side: Side) -> dict[str, bytes]:
    """Return the content of the consume queues and of the index files, which are numbered."""
    root = Path(side.harness.store.settings.store_path_root_dir)
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "consumequeue").rglob("*")
        if path.is_file()
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index/{number}"] = path.read_bytes()
    return found


def assert_same(pair: BrokerPair) -> None:
    fallback, fast = (derived_files(side) for side in pair)
    assert fast.keys() == fallback.keys()
    for name, data in fallback.items():
        assert fast[name] == data, name
    ends = [
        {
            name: (q.max_offset, q.max_physical_offset)
            for name, q in side.harness.store.queues.items()
        }
        for side in pair
    ]
    assert ends[0] == ends[1]


def test_the_files_are_those_of_python(pair: BrokerPair, written: list[tuple[str, int]]) -> None:
    for frames in turns(1, 40):
        for side in pair:
            run_answered(side, *frames)
    lengths = [length for path, length in written if "/fast/consumequeue/T/1/" in path]
    assert max(lengths) >= 4096
    assert sum(length for path, length in written if "/fast/index/" in path) > 20 * 4000
    assert_same(pair)


def fail_writes_to(part: str, monkeypatch: pytest.MonkeyPatch, code: int) -> list[str]:
    """Let writes to paths with this part fail. Return the list of the paths that failed."""
    failed: list[str] = []
    write = DiskFile.write

    def failing(file: DiskFile, position: int, data: bytes | bytearray | memoryview) -> None:
        if part in file.path:
            failed.append(file.path)
            raise OSError(code, os.strerror(code), file.path)
        write(file, position, data)

    monkeypatch.setattr(DiskFile, "write", failing)
    return failed


def test_units_that_a_full_disk_refuses_are_dispatched_again(pair: BrokerPair) -> None:
    full = 0
    for number, frames in enumerate(turns(2, 40)):
        with pytest.MonkeyPatch.context() as patch:
            failed = fail_writes_to("/fast/consumequeue/T/1/", patch, errno.ENOSPC)
            if number % 3:
                patch.undo()
            for side in pair:
                side.receive(0, b"".join(frames))
                side.end_turn()
            if failed:
                full += 1
                health = pair[1].harness.store.health
                assert health.failure is None and health.disk_full_reason is not None
        for side in pair:
            side.harness.store.dispatch()
            side.harness.scheduler.run_until_idle()
            side.end_turn()
            assert side.harness.store.health.is_healthy
            side.channels[0].take()
    assert full > 3
    assert_same(pair)


def test_entries_that_the_disk_refuses_stop_the_store(pair: BrokerPair) -> None:
    """Their disk space was reserved: it is no full disk, and the slots already lead to them."""
    side = pair[1]
    with pytest.MonkeyPatch.context() as patch:
        failed = fail_writes_to("/fast/index/", patch, errno.EIO)
        side.receive(0, b"".join(next(turns(3, 1))))
        side.end_turn()
    store = side.harness.store
    assert failed and "in reserved disk space" in (store.health.failure or "")
    for queue in store.queues:
        assert None not in [queue.unit(offset) for offset in range(queue.max_offset)]


def test_everything_is_there_after_a_kill(pair: BrokerPair) -> None:
    found = []
    for frames in turns(4, 10):
        for side in pair:
            run_answered(side, *frames)
    for side in pair:
        store, scheduler = side.harness.store, side.harness.scheduler
        store.close_without_flush()
        os.remove(Path(store.settings.store_path_root_dir) / "lock")
        again = open_store(StoreContext(store.settings, OsFileSystem(), scheduler, 1 << 34))
        assert again.index is not None
        keys = [sorted(again.index.find("T", f"k{key}", 1000, 0, 1 << 60)) for key in range(50)]
        units = {
            name: [queue.unit(offset) for offset in range(queue.max_offset)]
            for name, queue in again.queues.items()
        }
        found.append((keys, units))
        again.close_without_flush()
    assert found[0] == found[1]
