"""Queues that the C core reads without a list of their files have the sum and the bounds that the
list leads to, and whatever is not as usual is left to those who report it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from rmqpy.audit.checks import pooled_check
from rmqpy.audit.checks.engine import AuditOptions, audit_store, ordered_map
from rmqpy.audit.checks.pooled_check import PooledQueues, pool_folders, pool_queues
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.codec import backend
from rmqpy.codec.layout import QUEUE_FILLER_SIZE
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.store.files.disk import OsFileSystem

pytestmark = pytest.mark.skipif(backend.implementation != "c", reason="needs the C core")

PER_FILE = 20
LARGE = 3276 + 409 + 20
"""Units of a file that is read in three pieces."""
FILLER = QUEUE_UNIT.pack(0, QUEUE_FILLER_SIZE, 0)
StoreOf = Callable[[str], Path]


def units(first: int, count: int) -> bytes:
    return b"".join(QUEUE_UNIT.pack(100 * n, 100, n) for n in range(first, first + count))


def write(queue: Path, content: bytes, per_file: int = PER_FILE, first: int = 0) -> None:
    """Write the files of a queue, the last of which ends with a hole."""
    size = per_file * QUEUE_UNIT.size
    queue.mkdir(parents=True, exist_ok=True)
    for start in range(0, max(len(content), 1), size):
        file = queue / f"{first + start:020d}"
        file.write_bytes(content[start : start + size])
        os.truncate(file, size)


def pooled(root: Path, low: int = 0) -> PooledQueues | None:
    """Return what is read in one piece, after a comparison with each topic by itself in threads."""
    found = pool_folders(f"{root}/consumequeue", low)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooled_check, "BATCH_TOPICS", 1)
        assert pool_folders(f"{root}/consumequeue", low, partial(ordered_map, workers=2)) == found
    return found


def listed(root: Path, low: int = 0) -> PooledQueues:
    return pool_queues(OsFileSystem(), read_directory(OsFileSystem(), str(root)), map, low, None)


def same(root: Path, low: int = 0) -> bool:
    """Return whether C reads the queues, after a comparison with what the list leads to."""
    found, expected = pooled(root, low), listed(root, low)
    if found is None:
        return False
    assert expected.certain and found.certain
    assert (found.count, found.sum, found.bounds) == (expected.count, expected.sum, expected.bounds)
    directory = read_directory(OsFileSystem(), str(root))
    assert found.file_size == directory.queue_file_size
    assert {file.size for queue in directory.queues for file in queue.segments.files} <= {
        found.file_size
    }
    assert not directory.strays
    assert not any(queue.segments.strays or queue.segments.empty for queue in directory.queues)
    return True


def test_queues_are_read_as_their_files_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "consumequeue"
    for number, count in enumerate((0, 1, 7, PER_FILE, PER_FILE + 1, 3 * PER_FILE, 1, 1, 1, 1, 1)):
        write(folder / "T" / str(number), units(number, count))
    write(folder / "Ä-topic" / "0", FILLER * 3 + units(3, 5))
    write(folder / SCHEDULE_TOPIC / "17", units(0, 3))
    write(folder / "expired" / "2", units(0, 30)[20 * PER_FILE :], first=20 * PER_FILE)
    (folder / "T" / "100").mkdir()  # a queue without a file
    (folder / "no queues").mkdir()
    assert same(tmp_path)
    assert same(tmp_path, 350)  # the first messages have expired
    found = pooled(tmp_path, 350)
    assert found is not None
    assert [each.queue_id for each in found.bounds if each.topic == "T"] == [
        *(0, 1, 10, 100, 2, 3, 4, 5, 6, 7, 8, 9)
    ]


def test_topics_with_files_of_other_sizes_are_not_usual(tmp_path: Path) -> None:
    write(tmp_path / "consumequeue/a/0", units(0, 7))
    (tmp_path / "consumequeue/b/0").mkdir(parents=True)
    assert same(tmp_path)
    write(tmp_path / "consumequeue/c/0", units(0, 7), PER_FILE + 1)
    assert pooled(tmp_path) is None


@pytest.mark.parametrize("count", [1, 204, 205, 408, 409, 410, LARGE - 1, LARGE])
def test_a_file_is_read_up_to_its_end(count: int, tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue/T/0"
    write(queue, units(0, count), LARGE)
    assert same(tmp_path)
    end = count * QUEUE_UNIT.size
    for place in (end + 20, end + pooled_check.LOOK_AHEAD_BYTES - 1):
        if place >= LARGE * QUEUE_UNIT.size:
            continue
        with (queue / f"{0:020d}").open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
        assert pooled(tmp_path) is None
        with (queue / f"{0:020d}").open("r+b") as file:
            file.seek(place)
            file.write(b"\0")
    assert same(tmp_path)


def damage_swap(queue: Path) -> None:
    file = queue / f"{0:020d}"
    data = file.read_bytes()
    file.write_bytes(data[20:40] + data[:20] + data[40:])


def damage_hole(queue: Path) -> None:
    (queue / f"{20 * PER_FILE:020d}").unlink()


def damage_between(queue: Path) -> None:
    """Let the number of files be right, and a name between two others be wrong."""
    (queue / f"{20 * PER_FILE:020d}").rename(queue / f"{20 * PER_FILE + 20:020d}")


def damage_size(queue: Path) -> None:
    os.truncate(queue / f"{40 * PER_FILE:020d}", 20 * PER_FILE - 20)


def damage_all_sizes(queue: Path) -> None:
    for file in queue.parent.glob("*/*"):
        os.truncate(file, 20 * PER_FILE - 1)


def damage_empty(queue: Path) -> None:
    os.truncate(queue / f"{40 * PER_FILE:020d}", 0)


def damage_stray(queue: Path) -> None:
    (queue / "stray").write_bytes(b"")


def damage_stray_folder(queue: Path) -> None:
    (queue / f"{60 * PER_FILE:020d}").mkdir()


def damage_stray_queue(queue: Path) -> None:
    (queue.parent / "stray").mkdir()


def damage_leading_zero(queue: Path) -> None:
    (queue.parent / "07").mkdir()


def damage_file_for_queue(queue: Path) -> None:
    (queue.parent / "7").write_bytes(b"")


def damage_file_for_topic(queue: Path) -> None:
    (queue.parent.parent / "stray").write_bytes(b"")


def damage_pipe(queue: Path) -> None:
    os.mkfifo(queue / f"{60 * PER_FILE:020d}")


def damage_dangling(queue: Path) -> None:
    (queue / f"{60 * PER_FILE:020d}").symlink_to("nothing")


def damage_filler(queue: Path) -> None:
    file = queue / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:40] + FILLER + file.read_bytes()[60:])


def damage_far(queue: Path) -> None:
    file = queue / f"{40 * PER_FILE:020d}"
    far = QUEUE_UNIT.pack((1 << 63) - 2, 100, 0)
    file.write_bytes(units(40, 15) + far + bytes(80))


def damage_early_end(queue: Path) -> None:
    file = queue / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:-20] + bytes(20))


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_usual_is_left_to_others(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    queue = tmp_path / "consumequeue/T/5"
    write(queue, units(0, 3 * PER_FILE - 4))
    write(tmp_path / "consumequeue/T/6", units(0, 1))
    assert same(tmp_path)
    damage(queue)
    assert pooled(tmp_path) is None


def test_files_without_a_folder_of_queues_are_left_to_others(tmp_path: Path) -> None:
    assert pooled(tmp_path) is None


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    queue = tmp_path / "consumequeue/T/5"
    write(queue, units(0, 3))
    file = queue / f"{0:020d}"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert same(tmp_path)


def test_more_queues_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmqpy.codec.tally import native_pooled

    monkeypatch.setattr(native_pooled, "_ROWS_FIRST", 4)
    for topic, count in (("A", 3), ("B", 20), ("C", 1)):
        for number in range(count):
            write(tmp_path / "consumequeue" / topic / str(number), units(number, 2))
    assert same(tmp_path)


def test_whatever_the_folders_contain(tmp_path: Path) -> None:
    """Random contents: C reads what the list proves to be certain, and nothing else."""
    dice = Random(28)
    reads = 0
    for number in range(150):
        root = tmp_path / str(number)
        for queue in range(dice.choice((1, 2, 12))):
            content = bytearray(units(dice.randrange(3), dice.choice((0, 1, 19, 20, 21, 45))))
            if dice.random() < 0.3:
                content[:0] = FILLER * dice.choice((1, 20))
            if dice.random() < 0.1 and content:
                content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            write(root / "consumequeue" / "T" / str(queue), bytes(content))
        reads += same(root, dice.choice((0, 0, 300)))
    assert 50 < reads < 150


def test_an_audit_lists_the_files_only_if_something_is_wrong(
    copy_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of("A-classic-clean-v497")
    listings: list[bool] = []
    read = read_directory

    def noted(*given: object, queues: bool = True) -> object:
        listings.append(queues)
        return read(*given, queues=queues)  # type: ignore[arg-type]

    monkeypatch.setattr("rmqpy.audit.checks.engine.read_directory", noted)

    def audit() -> tuple[bool, list[Finding]]:
        findings: list[Finding] = []
        plan = AuditOptions(root=str(store), pooled=True, sink=findings.extend, workers=1)
        return audit_store(OsFileSystem(), plan).is_clean, findings

    assert audit() == (True, []) and listings == [False]
    next(store.glob("consumequeue/*/*/*")).with_name("stray").touch()
    listings.clear()
    clean, findings = audit()
    assert not clean or findings
    assert listings == [False, True]


def test_an_audit_waits_for_what_it_loads_in_a_thread(
    copy_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("rmqpy.audit.checks.engine.import_module", fail)
    plan = AuditOptions(root=str(copy_of("A-classic-clean-v497")), pooled=True, workers=1)
    with pytest.raises(ImportError, match="reader"):
        audit_store(OsFileSystem(), plan)
