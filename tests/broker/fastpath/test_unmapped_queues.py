"""C writes the units of queues that are not mapped through a descriptor, as Python writes them, and
a flush makes them durable.
"""

from __future__ import annotations

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

from rmqpy.broker.fastpath.tables import FastPathTables
from rmqpy.codec import backend
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.files import disk
from rmqpy.store.files.disk import DiskFile, OsFileSystem
from rmqpy.testing.harness import BuildBroker
from rmqpy.testing.memory_files import MemoryFiles

Side = FallbackDriver | FastPathDriver

QUEUES, PER_FILE, MAPPED_MAX = 8, 10, 2


def send(queue_id: int, topic: str = "T") -> bytes:
    fields = {**SEND_FIELDS, "b": topic, "d": str(QUEUES), "e": str(queue_id)}
    return encode_command(RemotingCommand(310, ext_fields=fields, body=b"b" * 100))


@pytest.fixture
def pair(
    build: BuildBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BrokerPair]:
    """Two brokers on disk, the second one with the fast path, in which MAPPED_MAX queues fit."""
    if backend.implementation != "c":
        pytest.skip(f"no C to compare with: {backend.reason}")
    from rmqpy.broker.assembly.wiring import install_fast_path

    monkeypatch.setattr(os, "fsync", lambda _file: None)  # No power is lost here.
    monkeypatch.setattr(disk, "_sync_data", lambda _file: None)
    fallback, fast = (
        build(
            files=cast(MemoryFiles, OsFileSystem()),
            store_path_root_dir=str(tmp_path / name),
            store_path_commit_log=str(tmp_path / name / "commitlog"),
            mapped_file_size_consume_queue=20 * PER_FILE,
        )
        for name in ("fallback", "fast")
    )
    fast.store.queues.shared_max = MAPPED_MAX
    feed = install_fast_path(fast.broker, fast.store, fast.scheduler)
    assert feed is not None
    feed.core.frame_max = (1 << 24) - 4
    both = FallbackDriver(fallback), FastPathDriver(fast, feed)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(2):  # C learns a queue from the first message, and its file from the second.
            for queue_id in range(QUEUES):
                run_answered(side, send(queue_id))
    both[1].handed_back.clear()
    yield both
    feed.close()
    for side in both:
        side.harness.store.close_without_flush()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The queues that C reports to have written through descriptors."""
    numbers: list[int] = []
    wrote = FastPathTables.wrote

    def recorded(tables: FastPathTables, found: list[int]) -> None:
        numbers.extend(found)
        wrote(tables, found)

    monkeypatch.setattr(FastPathTables, "wrote", recorded)
    return numbers


def queue_files(side: Side) -> dict[str, bytes]:
    """Return the content of the files of the consume queues."""
    root = Path(side.harness.store.settings.store_path_root_dir) / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def assert_same(pair: BrokerPair) -> None:
    fallback, fast = pair
    assert queue_files(fast) == queue_files(fallback)
    for (name, expected), (_, queue) in zip(
        sorted(fallback.harness.store.queues.items()),
        sorted(fast.harness.store.queues.items()),
        strict=True,
    ):
        assert queue.max_offset == expected.max_offset, name
        assert queue.max_physical_offset == expected.max_physical_offset, name


def test_units_are_those_of_python_in_any_order(pair: BrokerPair, written: list[int]) -> None:
    choose = Random(1)
    for _ in range(40):
        frames = [send(choose.randrange(QUEUES)) for _ in range(choose.choice((1, 3, 20)))]
        for side in pair:
            run_answered(side, *frames)
        assert len(pair[1].harness.store.queues.shared) <= MAPPED_MAX
    assert not pair[1].handed_back, "C has stored all of these"
    assert len(written) > 100
    assert_same(pair)


def test_queues_in_turn_take_no_mappings(pair: BrokerPair, written: list[int]) -> None:
    fast = pair[1]
    shared = set(fast.harness.store.queues.shared)
    for side in pair:
        for queue_id in range(QUEUES):
            run_answered(side, send(queue_id))
    assert len(set(written)) == len(written) == QUEUES - MAPPED_MAX
    assert set(fast.harness.store.queues.shared) == shared
    opened = {queue for queue in fast.harness.store.queues if queue.is_open}
    assert opened - shared == set(fast.harness.store.queues.touched._open) - shared
    assert_same(pair)


def test_a_queue_with_several_messages_at_once_is_mapped(
    pair: BrokerPair, written: list[int]
) -> None:
    queues = pair[1].harness.store.queues
    unmapped = next(queue for queue in queues if queue not in queues.shared)
    for side in pair:
        run_answered(side, send(unmapped.name[1]), send(unmapped.name[1]))
    assert unmapped in queues.shared and len(queues.shared) == MAPPED_MAX
    written.clear()
    for side in pair:
        run_answered(side, send(unmapped.name[1]))
    assert not written
    assert_same(pair)


def test_a_flush_syncs_what_was_written(
    pair: BrokerPair, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = pair[1]
    store = fast.harness.store
    for _ in range(3):  # The files of queues without traffic are closed.
        store.flush_tracker.flush_queues()
    assert not store.queues.touched
    for queue_id in range(QUEUES):
        run_answered(fast, send(queue_id))
    assert len(written) == QUEUES - MAPPED_MAX
    assert len(store.queues.touched) == QUEUES - MAPPED_MAX
    synced: list[str] = []
    monkeypatch.setattr(DiskFile, "sync", lambda file: synced.append(file.path))
    store.flush_tracker.flush_queues()
    assert {path.rpartition("/")[0].rpartition("/")[2] for path in synced if "/T/" in path} == {
        str(number) for number in range(QUEUES)
    }
    assert not store.queues.touched
    assert all(queue.is_durable for queue in store.queues)


def test_everything_is_there_after_a_kill(pair: BrokerPair, written: list[int]) -> None:
    for _ in range(2 * PER_FILE):
        for side in pair:
            for queue_id in range(QUEUES):
                run_answered(side, send(queue_id))
    assert written
    ends = []
    for side in pair:
        harness = side.harness
        harness.store.close_without_flush()
        os.remove(Path(harness.store.settings.store_path_root_dir) / "lock")
        from rmqpy.store.message_store import StoreContext, open_store

        context = StoreContext(harness.store.settings, OsFileSystem(), harness.scheduler, 1 << 34)
        again = open_store(context)
        ends.append(
            {
                name: [queue.unit(offset) for offset in range(queue.max_offset)]
                for name, queue in again.queues.items()
            }
        )
        again.close_without_flush()
    assert ends[0] == ends[1]
    assert {len(units) for name, units in ends[0].items() if name[0] == "T"} == {2 + 2 * PER_FILE}


def empty_folder(core: object, tmp_path: Path) -> None:
    """Let every write through a descriptor fail."""
    (tmp_path / "empty").mkdir()
    os.dup2(os.open(tmp_path / "empty", os.O_RDONLY), core.queue_folder)  # type: ignore[attr-defined]


def no_space(core: object, tmp_path: Path) -> None:
    """Let C open a file on a full disk."""
    for queue_id in range(QUEUES):
        folder = tmp_path / "full" / "T" / str(queue_id)
        folder.mkdir(parents=True)
        for first in range(0, 200 * PER_FILE, 20 * PER_FILE):
            (folder / f"{first:020d}").symlink_to("/dev/full")
    os.dup2(os.open(tmp_path / "full", os.O_RDONLY), core.queue_folder)  # type: ignore[attr-defined]


@pytest.mark.parametrize("break_it", [empty_folder, no_space], ids=lambda each: each.__name__)
def test_what_c_cannot_write_is_written_in_python(
    pair: BrokerPair,
    written: list[int],
    tmp_path: Path,
    break_it: Callable[[object, Path], None],
) -> None:
    break_it(pair[1].feed.core, tmp_path)
    for side in pair:
        for queue_id in (*range(QUEUES), *range(QUEUES)):
            run_answered(side, send(queue_id))
    assert not written
    assert_same(pair)


def test_a_topic_that_was_deleted_begins_again(pair: BrokerPair) -> None:
    for side in pair:
        side.harness.store.delete_topic_queues("T")
        for _ in range(3):
            for queue_id in range(QUEUES):
                run_answered(side, send(queue_id))
    queues = pair[1].harness.store.queues
    assert {int(queue.max_offset) for name, queue in queues.items() if name[0] == "T"} == {3}
    assert_same(pair)
