"""Ranges of a log file elsewhere: a task fetches its range, and finds what it finds here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from harness.pipeline import flip_bit
from harness.remote import FolderRanges
from harness.store import StoreRig

from rmqpy.audit.checks.messages import MessageSelection, MessageWalk
from rmqpy.audit.remote import files as remote_files
from rmqpy.audit.remote.files import RemoteFileSystem
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.range_merge import LogMerge
from rmqpy.audit.scan.ranges import RangeResult, WorkRange, audit_range
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.files import FileSystem
from rmqpy.pipeline.jobs import spark_runner
from rmqpy.pipeline.spark import work_units
from rmqpy.pipeline.spark.work_units import (
    Chain,
    OpenWorkUnit,
    WorkUnit,
    WorkUnitResult,
    partition_store,
    view_before,
)
from rmqpy.store.files.disk import OsFileSystem

StoreOf = Callable[[str], Path]
Found = tuple[Any, ...]
FilesOf = Callable[[], FileSystem]
NODES = ("A-classic-clean-v497", "C-upgraded-v497/n0", "D-dledger-v497/n0")


def audited(works: Sequence[WorkRange], files_of: FilesOf) -> list[Found]:
    """Return what the driver has of each log after it has proven the ranges of an audit on Spark.

    Only a range whose first frame is longer than what is read ahead is repeated there.
    """

    def audit(work: WorkRange, begin: int | None = None) -> RangeResult:
        files = files_of()
        if begin is not None:
            return audit_range(map_log(files, work.path), work, plan, begin)
        return audit_range(spark_runner.bytes_of(files, work), work, plan)

    results: list[Found] = []
    findings: list[Finding] = []
    for log in dict.fromkeys(work.log for work in works):
        plan = TallyPlan(dledger=log != "commitlog", blocks=True, digests=True)
        merge = LogMerge(log, audit, findings.extend, None)
        for work in works:
            if work.log == log:
                merge.take(audit(work))
        results.append((merge.finish(), tuple(findings)))
    return results


def works_of(files: FileSystem, root: str, range_bytes: int) -> list[WorkRange]:
    return partition_store(read_directory(files, root), range_bytes, None)[0]


def exported(works: Sequence[WorkRange], files_of: FilesOf) -> list[Found]:
    """Return the frames of each range, and what the driver proves, as an export has them."""
    frames: dict[int, list[int]] = {}

    def execute(unit: WorkUnit) -> WorkUnitResult:
        opened = OpenWorkUnit(unit, files_of())
        found = frames[unit.work.start] = []
        if opened.places is not None:
            for scan, _, count in opened.walk.scans(*opened.places):
                found += scan.frame_offset[:count]
        return WorkUnitResult(**opened.outcome(None))

    chain: Chain[WorkUnitResult] = Chain(execute)
    proven = [chain.take(execute(WorkUnit(work))) for work in works]
    return [
        (frames[each.work.start], each.begin, each.end, each.closed, each.skipped)
        for each in proven
        if each is not None
    ]


def selected(works: Sequence[WorkRange], files_of: FilesOf) -> list[Found]:
    """Return the frames of each range, and the damage, as ``format("rocketmq")`` has them."""
    found: list[Found] = []
    for work in works:
        file, before = view_before(work, files_of())
        walk = MessageWalk(file, MessageSelection())
        begin, stop = (
            walk.skip(work.start - work.first_offset, before),
            work.stop - work.first_offset,
        )
        if walk.closed or begin >= stop:
            continue
        damage: list[tuple[int, int]] = []
        note = damage.append
        walk = MessageWalk(walk.file, MessageSelection(), lambda at, size: note((at, size)))  # noqa: B023
        scans = walk.scans(begin, stop)
        frames = [offset for scan, _, count in scans for offset in scan.frame_offset[:count]]
        found.append((frames, tuple(damage)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("read", [exported, selected, audited])
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("damage", [None, 300, 9000, 20_000])
def test_ranges_have_the_frames_that_they_have_here(
    read: Callable[[Sequence[WorkRange], FilesOf], list[Found]],
    node: str,
    damage: int | None,
    copy_of: StoreOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(work_units, "AHEAD_BYTES", 700)
    monkeypatch.setattr(spark_runner, "AHEAD_BYTES", 700)
    monkeypatch.setattr(work_units, "SEARCH_BACK_BYTES", 2000)
    store = copy_of(node)
    if damage is not None:
        logs = [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")]
        flip_bit(min(logs, key=lambda path: path.name), damage)
    source = FolderRanges(store)
    here = works_of(OsFileSystem(), str(store), 4096)
    there = works_of(RemoteFileSystem(source), source.root, 4096)
    assert len(here) == len(there) > 10
    # A task has a file system of its own.
    assert read(there, lambda: RemoteFileSystem(source)) == read(here, OsFileSystem)


def test_a_part_that_ends_with_a_frame_is_not_the_end_of_the_file(
    store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(NODES[0])
    work = works_of(OsFileSystem(), str(store), 4096)[0]
    plan = TallyPlan(dledger=False)
    here = audit_range(map_log(OsFileSystem(), work.path), work, plan)
    assert here.end > work.stop
    source = FolderRanges(store)
    there = works_of(RemoteFileSystem(source), source.root, 4096)[0]
    monkeypatch.setattr(spark_runner, "AHEAD_BYTES", here.end - work.stop)
    data = spark_runner.bytes_of(RemoteFileSystem(source), there)
    assert len(data.view) == here.end
    assert audit_range(data, there, plan) == evolve(here, work=there)


@pytest.mark.slow
@pytest.mark.parametrize("read", [exported, selected, audited])
def test_a_range_of_a_large_file_fetches_its_part(
    read: Callable[[Sequence[WorkRange], FilesOf], list[Found]], tmp_path: Path
) -> None:
    sizes = {"mapped_file_size_commit_log": 64 << 20, "mapped_file_size_consume_queue": 400_000}
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"), changes=sizes)
    opened = rig.open()
    for first in range(0, 50_000, 500):
        rig.put(opened, *range(first, first + 500), body=b"0123456789abcdef" * 56)
    opened.shutdown()
    source = FolderRanges(tmp_path / "store")
    used: list[RemoteFileSystem] = []

    def files_of() -> RemoteFileSystem:
        used.append(RemoteFileSystem(source))
        return used[-1]

    here = works_of(OsFileSystem(), rig.root, 8 << 20)
    there = works_of(RemoteFileSystem(source), source.root, 8 << 20)
    found = read(there, files_of)
    assert found == read(here, OsFileSystem)
    if read is audited:
        assert sum(log.tally.records for log, _ in found) == 50_000
    else:
        assert sum(len(each[0]) for each in found) == 50_000
    fetched = sorted(files.fetched_bytes for files in used)
    assert len(fetched) == 8
    # In one range the log ends. Only the whole file says whether anything follows.
    assert fetched[-2] <= (8 << 20) + work_units.SEARCH_BACK_BYTES + 2 * remote_files.BLOCK_BYTES
    assert fetched[-1] <= (64 << 20) + fetched[-2]
