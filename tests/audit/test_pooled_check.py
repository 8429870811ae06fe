"""An audit that first tries to prove that nothing is wrong reports what a complete one does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from harness.pipeline import RecordedProgress, flip_bit

from rmqpy.audit.checks import engine
from rmqpy.audit.checks.engine import AuditOptions, StoreAudit, audit_store
from rmqpy.audit.checks.index_walks import IndexTask, IndexWalk
from rmqpy.audit.checks.pooled_check import LOOK_AHEAD_BYTES, PooledQueues, pool_queues
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.codec.tally.backend import queue_digest
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.codec.tally.pooled import OFFSET_MAX, PooledUnits, pool_units_in_python
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]
NAMES = ("A-classic-clean-v497", "A-classic-clean-v533", "C-upgraded-v497/n0", "D-dledger-v497/n0")
FLIPS = 6
"""The number of bits that are flipped in each kind of file."""


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list of the results of all attempts to prove a store clean."""
    found: list[bool] = []
    prove = engine._StoreWalk._prove_clean

    def noted(
        self: engine._StoreWalk, audit: StoreAudit, logs: engine._Logs | None, queues: PooledQueues
    ) -> bool:
        found.append(prove(self, audit, logs, queues))
        return found[-1]

    monkeypatch.setattr(engine._StoreWalk, "_prove_clean", noted)
    return found


def audited(root: Path, *, pooled: bool, workers: int = 1) -> tuple[StoreAudit, list[Finding]]:
    found: list[Finding] = []
    progress = RecordedProgress()
    plan = AuditOptions(root=str(root), sink=found.extend, pooled=pooled, range_bytes=65536)
    plan = evolve(plan, workers=workers, progress=progress)
    audit = audit_store(OsFileSystem(), plan)
    # A second walk is more work; only a file of another length is not walked at all.
    others = sum(f.code is FindingCode.FILE_SIZE and "commitlog" in f.file for f in found)
    assert progress.sum == progress.total or others
    return audit, found


def compared(root: Path) -> list[Finding]:
    """Check that both ways of an audit have the same result, and return the findings."""
    (pooled, found), (whole, expected) = (audited(root, pooled=each) for each in (True, False))
    assert found == expected
    assert pooled.counts == whole.counts and pooled.records == whole.records
    assert pooled.facts == whole.facts
    assert pooled.queues.keys() == whole.queues.keys()
    for key, queue in whole.queues.items():
        assert (pooled.queues[key].count, pooled.queues[key].first_queue_offset) == (
            *(queue.count, queue.first_queue_offset),
        )
    assert (pooled.keys, pooled.keys_found) == (whole.keys, whole.keys_found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_store_is_proven_without_telling_queues_apart(
    name: str, store_of: StoreOf, proofs: list[bool]
) -> None:
    compared(store_of(name))
    assert proofs == [True]


def files_of(store: Path) -> Iterator[Path]:
    for pattern in ("commitlog/*", "dledger-*/data/*", "consumequeue/*/*/*", "index/*"):
        yield from sorted(store.glob(pattern))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::3])
def test_a_flipped_bit_is_reported_in_the_same_way(
    name: str, copy_of: StoreOf, proofs: list[bool]
) -> None:
    store, dice = copy_of(name), random.Random(28)
    kinds: dict[str, list[Path]] = {}
    for file in files_of(store):
        kinds.setdefault(file.relative_to(store).parts[0], []).append(file)
    for files in kinds.values():
        for _ in range(FLIPS):
            file = dice.choice(files)
            data = file.read_bytes()
            used = len(data.rstrip(b"\0"))
            changed = bytearray(data)
            changed[dice.randrange(max(used, 1))] ^= 1 << dice.randrange(8)
            file.write_bytes(changed)
            compared(store)
            file.write_bytes(data)
    assert False in proofs


@pytest.mark.parametrize("damage", ["swap", "drop", "repeat", "surplus", "missing"])
def test_damage_of_a_queue_is_not_proven_clean(
    damage: str, copy_of: StoreOf, proofs: list[bool]
) -> None:
    store = copy_of(NAMES[0])
    queue = next(
        file
        for file in sorted(store.glob("consumequeue/*/*/*"))
        if len(file.read_bytes().rstrip(b"\0")) > 60
    )
    data = queue.read_bytes()
    end = -(-len(data.rstrip(b"\0")) // 20) * 20
    first, second, rest = data[:20], data[20:40], data[40:]
    changed = {
        "swap": second + first + rest,
        "drop": data[: end - 20] + bytes(20) + data[end:],
        "repeat": first + first + rest,
        "surplus": data[:end] + data[:20] + data[end + 20 :],
    }
    if damage == "missing":
        queue.unlink()
    else:
        queue.write_bytes(changed[damage])
    assert compared(store)
    assert proofs == [False]


BODY_POSITION = 88
"""That of the body in a record with addresses of IPv4."""


def log_of(store: Path) -> tuple[Path, list[int]]:
    """Return the last file of the log, and the places at which its records start and end."""
    file = max(store.glob("commitlog/*"))
    data, ends = file.read_bytes(), [0]
    while size := int.from_bytes(data[ends[-1] : ends[-1] + 4]):
        ends.append(ends[-1] + size)
    return file, ends


def without_last(store: Path, count: int) -> None:
    """Remove the last messages from log and consume queues, but not from the key index."""
    log, ends = log_of(store)
    overwrite(log, ends[-1 - count], bytes(ends[-1] - ends[-1 - count]))
    for queue in store.glob("consumequeue/*/*/*"):
        data = queue.read_bytes()
        for at, (offset, size, _) in enumerate(QUEUE_UNIT.iter_unpack(data)):
            if offset >= int(log.name) + ends[-1 - count] and size:
                overwrite(queue, at * QUEUE_UNIT.size, bytes(QUEUE_UNIT.size))


def overwrite(file: Path, place: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(data)


def test_entries_past_the_end_of_the_log_do_not_count(
    copy_of: StoreOf, proofs: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key index is walked before the end of the log is known."""
    store = copy_of(NAMES[0])
    without_last(store, 5)
    walks: list[IndexWalk] = []
    walk = IndexTask.__call__

    def noted(self: IndexTask, work: IndexWalk) -> IndexSums:
        walks.append(work)
        return walk(self, work)

    monkeypatch.setattr(IndexTask, "__call__", noted)
    assert not compared(store)
    assert proofs == [True]
    log, ends = log_of(store)
    end = int(log.name) + ends[-1]
    assert [work.span[1] for work in walks] == [OFFSET_MAX, OFFSET_MAX, end, end, end]


@pytest.mark.parametrize("tail", ["zeros", "torn", "junk", "doubtful", "short", "none", "ahead"])
def test_the_end_of_the_log_is_judged_in_the_same_way(
    tail: str, copy_of: StoreOf, proofs: list[bool]
) -> None:
    store = copy_of(NAMES[0])
    log, ends = log_of(store)
    following = log.parent / f"{int(log.name) + log.stat().st_size:020d}"
    if tail == "torn":
        overwrite(log, ends[-1] - 5, bytes(5))
    elif tail == "junk":
        overwrite(log, ends[-1], b"junk")
    elif tail == "doubtful":
        flip_bit(log, ends[-2] + BODY_POSITION)
    elif tail == "short":
        following.write_bytes(bytes(4096))
    elif tail == "none":
        log.unlink()
    elif tail == "ahead":
        following.write_bytes(bytes(log.stat().st_size))
    compared(store)
    assert proofs == [tail in ("zeros", "short")]


def test_a_broker_that_starts_meanwhile_is_read_up_to_its_confirmed_end(
    copy_of: StoreOf, proofs: list[bool]
) -> None:
    store = copy_of(NAMES[0])
    asked: list[str] = []

    def holder(path: str) -> int | None:
        asked.append(path)
        return 1 if len(asked) > 2 else None

    plan = AuditOptions(root=str(store), pooled=True, holder=holder, workers=1)
    audit = audit_store(OsFileSystem(), plan)
    assert proofs == [False] and audit.facts.running
    assert audit.facts.confirmed_end == audit.facts.end
    assert audit.is_clean and audit.pooled is None and audit.records


UNITS = (1, 200, 204, 205, 409, 410, 3000, 3276, 3277, 4000)
"""Numbers of units: below, at, and above those of a part of a file that is read before the rest."""


@pytest.mark.parametrize("count", UNITS)
def test_queues_of_any_length_are_read_whole(count: int, tmp_path: Path) -> None:
    """Units in a file that is too large to be read at once, and what follows them."""
    folder = tmp_path / "consumequeue/T/3"
    folder.mkdir(parents=True)
    units = b"".join(QUEUE_UNIT.pack(100 * number, 100, 7) for number in range(count))
    file = folder / f"{0:020d}"
    file.write_bytes(units + bytes(QUEUE_UNIT.size * 6000 - len(units)))
    expected = PooledUnits(queue=queue_digest(b"T", 3))
    assert pool_units_in_python(memoryview(units), 0, expected) == len(units)

    def read() -> PooledQueues:
        directory = read_directory(OsFileSystem(), str(tmp_path))
        return pool_queues(OsFileSystem(), directory, map, 0, None)

    found = read()
    assert found.certain and (found.count, found.sum) == (count, expected.sum)
    (bounds,) = found.bounds
    assert (bounds.min_offset, bounds.max_offset) == (0, count)
    assert bounds.end_physical == 100 * count
    for place in (len(units) + 20, len(units) + LOOK_AHEAD_BYTES - 1):
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"\1")
            opened.flush()
            assert not read().certain
            opened.seek(place)
            opened.write(b"\0")
            opened.flush()
    assert read().certain
