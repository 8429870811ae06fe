"""The ends of queues that the C core finds at a start are those that Python finds, whatever is in
the folders, and a start of a store that was changed while it was stopped has the same result with
both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from harness.store import StoreRig, read_all

from rmqpy.codec import backend
from rmqpy.codec.layout import QUEUE_FILLER_SIZE
from rmqpy.codec.tally.kernel import queue_digest
from rmqpy.codec.tally.pooled import PooledUnits, pool_units_in_python
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.errors import StoreError
from rmqpy.model.files import NumberAndSum
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.files import disk, unit_folders
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.queues.consume_queue import LOAD_CHECK_FILES
from rmqpy.store.queues.table import ConsumeQueueTable

pytestmark = pytest.mark.skipif(backend.implementation != "c", reason="needs the C core")

PER_FILE = 20
FILE_SIZE = PER_FILE * QUEUE_UNIT.size
LARGE_FILE = 2 * unit_folders._PIECE_BYTES + 400
"""The size of files that are read in three pieces."""
TORN_SIZES = (0, 7, FILE_SIZE - 1, FILE_SIZE + 20)

T = TypeVar("T")
Found = dict[tuple[str, int], tuple[object, ...]] | str


def found_in(folder: Path, file_size: int = FILE_SIZE) -> Found:
    """Return what a table finds in a folder, or the text of its refusal."""
    table = ConsumeQueueTable(OsFileSystem(), str(folder), file_size)
    try:
        table.load()
    except StoreError as error:
        return str(error)
    queues: dict[tuple[str, int], tuple[object, ...]] = {
        queue.name: (
            list(queue.state),
            queue._min_physical,
            queue._dirty_from,
            queue.damaged,
            [(file.path, file.first_offset, file.wrote_position) for file in queue.segments],
        )
        for queue in table
    }
    assert not any(queue.is_open for queue in table)
    torn = {name: (str(fault),) for name, fault in table._torn.items()}
    return {**queues, **{(name, -1): fault for name, fault in torn.items()}}


def in_python(call: Callable[[], T]) -> T:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backend, "implementation", "pure")
        return call()


def left_out(folder: Path, file_size: int = FILE_SIZE) -> bool:
    """Return whether C leaves something out."""
    topics = sorted(path.name for path in folder.iterdir())
    found = unit_folders.unit_folders(str(folder), topics, file_size, LOAD_CHECK_FILES, None)
    return not all(each.is_complete for each in found)


def write(path: Path, first: int, content: bytes, size: int = FILE_SIZE) -> Path:
    """Write a file of a queue that ends with a hole."""
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{first:020d}"
    file.write_bytes(content[:size])
    os.truncate(file, size)
    return file


def units(count: int, offset: int = 0) -> bytes:
    return b"".join(QUEUE_UNIT.pack(offset + 100 * n, 100, n) for n in range(count))


def random_units(choose: Random, per_file: int) -> bytes:
    """Return the content of a file with few things wrong."""
    count = choose.choice((0, 1, per_file // 2, per_file - 1, per_file, per_file))
    content = bytearray(units(count, choose.choice((0, 7, 1 << 40))))
    for _ in range(choose.choice((0, 0, 0, 1, 2))):
        what = choose.choice(("filler", "zero", "byte", "negative", "huge", "stale"))
        place = choose.randrange(per_file) * QUEUE_UNIT.size
        if what == "stale":  # after the end, perhaps
            content.extend(bytes(max(0, place + 20 - len(content))))
            content[place + choose.randrange(20)] = 1
        elif place < len(content):
            unit = {
                "filler": QUEUE_UNIT.pack(0, QUEUE_FILLER_SIZE, 0),
                "zero": bytes(20),
                "negative": QUEUE_UNIT.pack(-5, 100, 0),
                "huge": QUEUE_UNIT.pack((1 << 63) - 10, 5, 0),
            }.get(what, choose.randbytes(20))
            content[place : place + 20] = unit
    return bytes(content)


def random_queue(choose: Random, path: Path, per_file: int = PER_FILE) -> None:
    size = per_file * QUEUE_UNIT.size
    first, count = choose.choice((0, 0, 1, 70)), choose.choice((0, 1, 1, 1, 2, 3, 4, 5))
    path.mkdir(parents=True)
    for number in range(first, first + count):
        content = random_units(choose, per_file)
        if choose.random() < 0.7 and number + 1 < first + count:
            content = units(per_file, 1000 * number)
        write(path, number * size, content, size)


def spoil(choose: Random, path: Path) -> None:
    """Do something to the files of a queue that no broker does."""
    files = sorted(path.iterdir())
    if not files:
        return
    file = choose.choice(files)
    what = choose.choice(("truncate", "remove", "rename", "link", "folder", "stray", "zeros"))
    if what == "truncate":
        os.truncate(file, choose.choice(TORN_SIZES))
    elif what == "remove":
        file.unlink()
    elif what == "rename":
        file.rename(path / f"{int(file.name) + 20:020d}")
    elif what == "link":
        moved = path.parent.parent.parent / f"moved-{choose.randrange(1 << 30)}"
        file.rename(moved)
        file.symlink_to(moved)
    elif what == "folder":
        file.unlink()
        file.mkdir()
    elif what == "stray":
        (path / choose.choice(("0", "x", ".hidden", "0" * 21, "9" * 20))).write_bytes(b"")
    else:
        write(path, int(file.name) + FILE_SIZE, b"", 0)


@pytest.mark.parametrize("seed", range(60))
def test_c_finds_what_python_finds(tmp_path: Path, seed: int) -> None:
    choose = Random(seed)
    folder = tmp_path / "consumequeue"
    for number in range(choose.choice((1, 3, 12))):
        for queue_id in range(choose.choice((1, 2, 5))):
            path = folder / f"Topic-{number}" / str(queue_id)
            random_queue(choose, path)
            if choose.random() < 0.05:
                spoil(choose, path)
    found = found_in(folder)
    assert found == in_python(lambda: found_in(folder))


@pytest.mark.parametrize("seed", range(8))
def test_c_finds_what_python_finds_in_files_of_several_pieces(tmp_path: Path, seed: int) -> None:
    choose = Random(seed)
    folder = tmp_path / "consumequeue"
    for queue_id in range(3):
        random_queue(choose, folder / "T" / str(queue_id), LARGE_FILE // QUEUE_UNIT.size)
    found = found_in(folder, LARGE_FILE)
    assert found == in_python(lambda: found_in(folder, LARGE_FILE))


def units_in_python(topic: Path, low: int) -> NumberAndSum | None:
    """Return what C must return for a topic, or None if files that it does not read may have units
    of messages from ``low`` on.
    """
    count = total = 0
    for path in topic.iterdir():
        pooled = PooledUnits(
            queue=queue_digest(topic.name.encode(), int(path.name)),
            any_tags=topic.name == SCHEDULE_TOPIC,
            low=low,
        )
        files = sorted(path.iterdir())
        read = files[-LOAD_CHECK_FILES:]
        if len(read) < len(files):
            offset, length, _ = QUEUE_UNIT.unpack_from(read[0].read_bytes())
            if offset > low or length in (0, QUEUE_FILLER_SIZE):
                return None
        for file in read:
            content = memoryview(file.read_bytes())
            pool_units_in_python(content, int(file.name) // QUEUE_UNIT.size, pooled)
        if pooled.irregular:
            return None
        count, total = count + pooled.count, (total + pooled.sum) % (1 << 64)
    return count, total


@pytest.mark.parametrize("low", [0, 7, 1000, 60_300, 1 << 40, None])
@pytest.mark.parametrize("per_file", [PER_FILE, LARGE_FILE // QUEUE_UNIT.size])
def test_c_sums_the_units_as_python_does(tmp_path: Path, low: int | None, per_file: int) -> None:
    choose = Random(per_file)
    size = per_file * QUEUE_UNIT.size
    folder = tmp_path / "consumequeue"
    topics = [folder / name for name in ("T", "Größe", SCHEDULE_TOPIC)]
    for number in range(4 if per_file > PER_FILE else 100):
        topics.append(folder / f"T{number}")
        random_queue(choose, topics[-1] / "3", per_file)
    for topic in topics[:3]:
        write(topic / "0", 0, units(per_file, 7), size)
        write(topic / "0", size, units(per_file - 3, 7 + 100 * per_file), size)
        write(topic / "12", 70 * size, QUEUE_UNIT.pack(0, QUEUE_FILLER_SIZE, 0) + units(3), size)
    topics.append(folder / "Long")
    for number in range(LOAD_CHECK_FILES + 2):
        write(topics[-1] / "0", number * size, units(per_file, 7 + 100 * per_file * number), size)
    names = [topic.name for topic in topics]
    found = list(unit_folders.unit_folders(str(folder), names, size, LOAD_CHECK_FILES, low))
    expected = [
        None if low is None else units_in_python(topic, low)
        for topic, each in zip(topics, found, strict=True)
        if each.is_complete
    ]
    assert [each.units for each in found if each.is_complete] == expected
    assert all(each.is_complete for each in (*found[:3], found[-1]))
    assert (found[-1].units is None) is (low is None or low < 7 + 200 * per_file)
    if low in (0, 7):
        assert None in expected and found[0].units != found[2].units
        assert found[0].units is not None and found[0].units[0] > 2 * per_file - 4


def test_c_leaves_out_nothing_that_brokers_write(tmp_path: Path) -> None:
    """Otherwise the comparisons would compare Python with itself."""
    folder = tmp_path / "consumequeue"
    (folder / "T" / "0").mkdir(parents=True)
    write(folder / "T" / "1", 0, b"")
    for count in (1, 19, 20):
        write(folder / "T" / str(10 + count), 0, units(count))
    for number in range(5):
        write(folder / "T" / "2", number * FILE_SIZE, units(20 if number < 4 else 3, 2000 * number))
    write(folder / "T" / "3", 40 * FILE_SIZE, QUEUE_UNIT.pack(0, QUEUE_FILLER_SIZE, 0) + units(1))
    assert not left_out(folder)
    assert found_in(folder) == in_python(lambda: found_in(folder))


@pytest.mark.parametrize(
    "name", ["x", "01", "-1", "1.5", "٣", "1234567890", ".hidden"], ids=lambda name: repr(name)
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_other_names_are_left_to_python(tmp_path: Path, name: str, is_folder: bool) -> None:
    folder = tmp_path / "consumequeue"
    write(folder / "T" / "0", 0, units(2))
    if is_folder:
        write(folder / "T" / name, 0, units(3))
    else:
        (folder / "T" / name).write_bytes(b"")
    assert left_out(folder)
    assert found_in(folder) == in_python(lambda: found_in(folder))


def test_a_file_beside_the_topics_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue"
    write(folder / "T" / "0", 0, units(2))
    (folder / "stray").write_bytes(b"")
    assert "a file" in str(found_in(folder))


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "consumequeue" / "T" / "0"
    path.mkdir(parents=True)
    os.mkfifo(path / f"{0:020d}")
    assert left_out(tmp_path / "consumequeue")


def test_any_number_of_topics_and_queues(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue"
    many = unit_folders._ROWS_FIRST * 2 + 1
    for queue_id in range(many):
        (folder / "many" / str(queue_id)).mkdir(parents=True)
    for number in range(2 * unit_folders.TOPICS_AT_ONCE + 1):
        write(folder / f"T{number}", 0, b"").parent.rename(folder / f"moved{number}")
        write(folder / f"T{number}" / "0", 0, units(number % 20))
        shutil.rmtree(folder / f"moved{number}")
    assert not left_out(folder)
    found = found_in(folder)
    assert len(found) == many + 2 * unit_folders.TOPICS_AT_ONCE + 1
    assert found == in_python(lambda: found_in(folder))


Change = Callable[[Path, Path], None]
"""A change of a store that is stopped; the second folder has it as it was a while ago."""


def nothing(_store: Path, _earlier: Path) -> None: ...


def truncate_a_queue_file(store: Path, _earlier: Path) -> None:
    os.truncate(last_file(store), 37)


def remove_a_queue_file(store: Path, _earlier: Path) -> None:
    last_file(store).unlink()


def remove_a_queue(store: Path, _earlier: Path) -> None:
    shutil.rmtree(store / "consumequeue/Topic/1")


def replace_a_queue_by_an_earlier_one(store: Path, earlier: Path) -> None:
    shutil.rmtree(store / "consumequeue/Topic/1")
    shutil.copytree(earlier / "consumequeue/Topic/1", store / "consumequeue/Topic/1")


def zero_the_last_unit(store: Path, _earlier: Path) -> None:
    file = last_file(store)
    content = file.read_bytes().rstrip(b"\0")
    position = (len(content) - 1) // 20 * 20
    file.write_bytes(content[:position].ljust(FILE_SIZE, b"\0"))


def have_another_broker_run(store: Path, earlier: Path) -> None:
    """A Java broker, or an older rmqpy: the files of rmqpy are as they were before it ran."""
    shutil.rmtree(store / "rmqpy")
    shutil.copytree(earlier / "rmqpy", store / "rmqpy")


def have_only_a_java_broker_run(store: Path, _earlier: Path) -> None:
    shutil.rmtree(store / "rmqpy")


def tear_the_recovery_point(store: Path, _earlier: Path) -> None:
    point = store / "rmqpy" / "recovery-point"
    point.write_bytes(point.read_bytes()[:-9])


def use_the_files_of_another_store(store: Path, _earlier: Path) -> None:
    for path in (store / "rmqpy").iterdir():
        if path.is_file():
            path.write_bytes(b'{"offset": 4096, "tail": 1, "queues": {"Topic": {"0": 999}}}')
    (store / "rmqpy/format").write_bytes(b"1\n")


def last_file(store: Path) -> Path:
    return max((store / "consumequeue/Topic/1").iterdir())


CHANGES: tuple[Change, ...] = (
    nothing,
    truncate_a_queue_file,
    remove_a_queue_file,
    remove_a_queue,
    replace_a_queue_by_an_earlier_one,
    zero_the_last_unit,
    have_another_broker_run,
    have_only_a_java_broker_run,
    tear_the_recovery_point,
    use_the_files_of_another_store,
)


@pytest.mark.parametrize("how", ["stopped", "killed", "killed after a start"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_store_that_was_changed_opens_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, how: str
) -> None:
    """The messages of an intact log are all found, and no queue offset is given twice."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # No power is lost here.
    monkeypatch.setattr(disk, "_sync_data", lambda _file: None)
    store, earlier = tmp_path / "store", tmp_path / "earlier"
    rig = StoreRig(OsFileSystem(), str(store))
    opened = rig.open()
    for number in range(40):
        rig.put(opened, number)
    opened.shutdown()
    shutil.copytree(store, earlier)
    opened = rig.open()
    for number in range(40, 100):
        rig.put(opened, number)
    records = read_all(opened)
    if how == "stopped":
        opened.shutdown()
    else:
        opened.close_without_flush()
    if how == "killed after a start":
        rig.open().close_without_flush()
    change(store, earlier)
    shutil.copytree(store, tmp_path / "copy")

    def reopened() -> tuple[object, object, object]:
        again = rig.open()
        ends = {
            name: (int(queue.max_offset), int(queue.min_offset), int(queue.max_physical_offset))
            for name, queue in again.queues.items()
        }
        found = read_all(again)
        notes = list(again.opened.notes)
        again.shutdown()
        return found, ends, notes

    result = reopened()
    assert result[0] == records
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "copy", store)
    assert in_python(reopened) == result
