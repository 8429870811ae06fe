"""``rmqpy store backup``: the copy of a broker that runs has everything that was acknowledged."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rmqpy.audit import backup
from rmqpy.audit.backup import back_up
from rmqpy.cli import main
from rmqpy.client import Message, Producer, PullConsumer
from rmqpy.model.errors import StoreError
from rmqpy.store.files.file_copy import copy_sparse
from rmqpy.store.files.paths import StorePaths
from rmqpy.testing.in_process import InProcess, name_server_and_broker
from rmqpy.upgrade.plan import pace
from rmqpy.upgrade.plan.pace import Pace

Place = tuple[int, int]
"""Queue id and queue offset."""
SMALL = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
TOPIC = "TBW102"


def paths_of(root: Path) -> StorePaths:
    return StorePaths(str(root), str(root / "commitlog"))


def in_halves(wait: Callable[[], None]) -> Callable[[Path, Path, Callable[[int], None]], int]:
    """Return a copy that reads the second half of a file later than the first, when the broker has
    written more: the worst that can happen to it.
    """

    def copy(source: Path, target: Path, advance: Callable[[int], None]) -> int:
        with source.open("rb") as reader, target.open("wb") as writer:
            size = os.fstat(reader.fileno()).st_size
            writer.write(reader.read(size // 2))
            if "commitlog" in source.parts or "consumequeue" in source.parts:
                wait()
            writer.write(reader.read())
        advance(size)
        return size

    return copy


class Load:
    """A producer that sends until it is cancelled. ``acknowledged`` is what it knows."""

    def __init__(self) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.number = 0

    async def send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            self.number += 1
            body = b"%d " % self.number * 20
            sent = await producer.send(Message(topic=TOPIC, body=body))
            self.acknowledged[sent.queue.queue_id, sent.queue_offset] = body

    async def send_always(self, producer: Producer) -> None:
        while True:
            await self.send(producer, 10)


async def stored(running: InProcess) -> dict[Place, bytes]:
    found = {}
    async with PullConsumer("readers", running.name_server) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                for message in (result := await consumer.pull(queue, offset)).messages:
                    found[queue.queue_id, message.queue_offset] = message.body
                offset = result.next_begin_offset
    return found


@pytest.mark.slow
@pytest.mark.parametrize("worst", [False, True])
def test_everything_acknowledged_before_a_backup_is_in_it(
    tmp_path: Path, worst: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"

    async def under_load() -> tuple[dict[Place, bytes], dict[Place, bytes]]:
        async with name_server_and_broker(tmp_path, SMALL) as running:
            load = Load()
            async with Producer("writers", running.name_server) as producer:
                await load.send(producer, 400)
                before = dict(load.acknowledged)
                loop = asyncio.get_running_loop()

                def more() -> None:
                    asyncio.run_coroutine_threadsafe(load.send(producer, 7), loop).result(60)

                if worst:
                    monkeypatch.setattr(backup, "clone", lambda _source, _target: False)
                    monkeypatch.setattr(backup, "copy_sparse", in_halves(more))
                    await asyncio.to_thread(back_up, paths_of(store), copy)
                else:
                    sending = asyncio.create_task(load.send_always(producer))
                    done = await asyncio.to_thread(back_up, paths_of(store), copy)
                    assert done.was_running
                    sending.cancel()
                    with suppress(asyncio.CancelledError):
                        await sending
            return before, load.acknowledged

    async def restored() -> dict[Place, bytes]:
        (tmp_path / "restored").mkdir()
        settings = {**SMALL, "storePathRootDir": str(copy)}
        settings["storePathCommitLog"] = str(copy / "commitlog")
        async with name_server_and_broker(tmp_path / "restored", settings) as running:
            return await stored(running)

    before, acknowledged = asyncio.run(under_load())
    found = asyncio.run(restored())
    assert len(before) == 400
    assert {place: found.get(place) for place in before} == before
    assert all(acknowledged.get(place, body) == body for place, body in found.items())
    assert main(["store", "fsck", str(copy)]) == 0
    assert not (copy / "rmqpy" / "boot").exists() or (copy / "abort").exists() is False


def test_the_copy_of_a_stopped_store_is_the_same(
    copy_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy = copy_of("A-classic-clean-v497"), tmp_path / "copy"
    assert main(["store", "backup", str(store), str(copy), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    files = {path.relative_to(store): path for path in store.rglob("*") if path.is_file()}
    files.pop(Path("lock"), None)
    assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == set(files)
    assert all((copy / name).read_bytes() == path.read_bytes() for name, path in files.items())
    assert (found["files"], found["running"]) == (len(files), False)


def test_a_copy_that_was_interrupted_is_begun_again(
    copy_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = copy_of("A-classic-killed-v497"), tmp_path / "copy"
    calls = []

    def full(source: Path, _target: Path, _advance: Callable[[int], None]) -> int:
        calls.append(source)
        raise OSError(errno.ENOSPC, "No space left on device", str(copy))

    with monkeypatch.context() as patch:
        patch.setattr(backup, "clone", lambda _source, _target: False)
        patch.setattr(backup, "copy_sparse", full)
        with pytest.raises(OSError, match="No space"):
            back_up(paths_of(store), copy)
    assert calls and not copy.exists()
    (tmp_path / "copy.partial" / "left").touch()
    copy.mkdir()
    assert back_up(paths_of(store), copy).was_running
    assert (copy / "abort").exists() and not (copy / "left").exists()
    assert not (tmp_path / "copy.partial").exists()


def test_a_full_disk_is_one_sentence(
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = copy_of("A-classic-clean-v497")

    def full(_source: Path, target: Path) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(backup, "clone", full)
    assert main(["store", "backup", str(store), str(tmp_path / "copy")]) == 1
    error = capsys.readouterr().err
    assert "found no space or no inode left on the file system" in error
    assert "Traceback" not in error


def test_what_cannot_be_copied_is_refused_with_its_remedy(
    copy_of: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copy_of("A-classic-clean-v497")
    for target, found in (
        (store / "backup", "a path inside of the store"),
        (Path(__file__), "something that exists already"),
        (store.parent, "something that exists already"),
    ):
        with pytest.raises(StoreError, match=found):
            back_up(paths_of(store), target)
    (store / "dledger-n0" / "data").mkdir(parents=True)
    (store / "dledger-n0" / "data" / "00000000000000000000").touch()
    with pytest.raises(StoreError, match=r"data of a DLedger log.*haServeEntries"):
        back_up(paths_of(store), tmp_path / "copy")


def test_a_log_with_a_gap_is_refused(
    copy_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = copy_of("A-classic-clean-v497"), tmp_path / "copy"
    second = sorted((store / "commitlog").iterdir())[1]
    monkeypatch.setattr(backup, "clone", lambda _source, _target: False)

    def expiring(source: Path, target: Path, advance: Callable[[int], None]) -> int:
        if source == second:
            raise FileNotFoundError(str(source))
        return copy_sparse(source, target, advance)

    with monkeypatch.context() as patch:
        patch.setattr(backup, "copy_sparse", expiring)
        with pytest.raises(StoreError, match="repeat the copy"):
            back_up(paths_of(store), copy)
        assert not copy.exists()
    back_up(paths_of(store), copy)
    assert len(list((copy / "commitlog").iterdir())) > 1


def test_a_limited_copy_takes_as_long_as_the_rate_says(
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, copy = copy_of("A-classic-clean-v497"), tmp_path / "copy"
    slept: list[float] = []
    monkeypatch.setattr(backup, "clone", lambda _source, _target: False)
    monkeypatch.setattr(pace, "Pace", lambda rate: Pace(rate, lambda: sum(slept), slept.append))
    words = ["store", "backup", str(store), str(copy), "--rate", "0.5", "--format", "json"]
    assert main(words) == 0
    copied = json.loads(capsys.readouterr().out)["bytes"]
    assert copied and sum(slept) == pytest.approx(copied / (1 << 19))
    assert max(slept) <= 2.01, "a whole file at once"
