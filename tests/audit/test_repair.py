"""Tests of repairs: the plan, the journal, and the messages that must stay as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.audit import audit, directory_of, without_notes

from rmqpy.audit.checks.messages import MessageSelection, each_message
from rmqpy.audit.replicas.repair import (
    Repair,
    RepairPlan,
    execute_repair,
    plan_repair,
    unfinished_plan,
)
from rmqpy.codec.backend import scan_records
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.message import StoredMessage
from rmqpy.store.files.disk import DiskFile, OsFileSystem


def messages(store: Path) -> dict[int, StoredMessage]:
    """Return all messages of a store by their physical offsets."""
    return {
        found.message.physical_offset: found.message
        for found in each_message(OsFileSystem(), directory_of(store), MessageSelection())
    }


def execute(store: Path, plan: RepairPlan, files: FileSystem | None = None) -> None:
    execute_repair(files or OsFileSystem(), directory_of(store), plan)


@pytest.fixture
def damaged(copy_of: Callable[[str], Path]) -> Path:
    """Return a store with a damaged record, body and filler, and a zeroed page."""
    store = copy_of("A-classic-clean-v497")
    path = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    base = int(path.name)
    scan = scan_records(memoryview(bytes(data)), base, dledger=False, check_crc=True)
    positions = [offset - base for offset in scan.offset]
    data[positions[5] + 4] ^= 1
    data[positions[9] + 95] ^= 1
    data[16384:20480] = bytes(4096)
    data[scan.end - base + 3] ^= 1
    path.write_bytes(data)
    return store


def test_a_clean_store_needs_no_repair(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    for repair in Repair:
        assert plan_repair(OsFileSystem(), str(store), repair).actions == ()


def test_quarantine_keeps_every_other_message(damaged: Path) -> None:
    before = messages(damaged)
    plan = plan_repair(OsFileSystem(), str(damaged), Repair.QUARANTINE)
    kept = [action for action in plan.actions if action.kept_as]
    assert len(kept) == len({action.kept_as for action in kept}) >= 4
    assert len(plan.reasons) == len(kept)
    execute(damaged, plan)
    after = messages(damaged)
    assert {f.code.name for f in without_notes(audit(damaged))} <= {"KEY_MISSING", "KEY_SURPLUS"}
    lost = {
        offset
        for offset, message in after.items()
        if "__RMQPY_LOST" in message.properties or message.topic == "RMQPY_LOST"
    }
    assert lost
    for offset, message in before.items():
        if offset not in lost:
            assert after[offset] == message
    for action in kept:
        path = damaged / "rmqpy/quarantine" / action.kept_as
        assert path.stat().st_size == action.length
    assert plan_repair(OsFileSystem(), str(damaged), Repair.QUARANTINE).actions == ()


def test_force_truncate_ends_the_log_before_the_damage(damaged: Path) -> None:
    found = without_notes(audit(damaged))
    first = min(f.offset for f in found if f.code.name.startswith("RECORD"))
    before = messages(damaged)
    plan = plan_repair(OsFileSystem(), str(damaged), Repair.FORCE_TRUNCATE)
    execute(damaged, plan)
    after = messages(damaged)
    assert after == {o: m for o, m in before.items() if o < first}
    bad = {each.offset for each in found if each.code.name.startswith("RECORD")}
    lost = Counter(m.topic for o, m in before.items() if o >= first and o not in bad)
    (sentence,) = [each for each in plan.reasons if "given up" in each]
    assert sentence.startswith(f"{lost.total()} messages after the first damage can be read")
    assert all(f"{topic} {count}" in sentence for topic, count in lost.items())
    assert sorted(path.name for path in (damaged / "commitlog").iterdir())[-1] == f"{65536:020d}"
    assert len(list((damaged / "rmqpy/quarantine").iterdir())) == 3


class StoppedError(Exception):
    """The simulated end of the process."""


class StoppingDisk(OsFileSystem):
    """Allows ``changes`` changes and fails before the next one."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.left = changes

    def _count(self) -> None:
        if self.left == 0:
            raise StoppedError
        self.left -= 1

    def replace_bytes(self, path: str, *parts: bytes) -> None:
        self._count()
        super().replace_bytes(path, *parts)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        self._count()
        return super().open(path, size=size)


@pytest.mark.slow
@pytest.mark.parametrize("repair", list(Repair))
def test_an_interrupted_repair_is_resumed(damaged: Path, repair: Repair) -> None:
    """It is interrupted before each of its changes; the quarantine and the log are complete."""
    plan = plan_repair(OsFileSystem(), str(damaged), repair)
    stops = 0
    for changes in range(1, 2 * len(plan.actions)):
        try:
            execute(damaged, plan, StoppingDisk(changes))
        except StoppedError:
            stops += 1
            assert unfinished_plan(OsFileSystem(), directory_of(damaged)) == plan
        else:
            break
    assert stops >= len(plan.actions) // 2
    assert unfinished_plan(OsFileSystem(), directory_of(damaged)) is None
    kept = {action.kept_as: action for action in plan.actions if action.kept_as}
    names = {path.name for path in (damaged / "rmqpy/quarantine").iterdir()}
    assert names == set(kept)
    damage = [
        f for f in without_notes(audit(damaged)) if f.code.name.startswith(("RECORD", "FILLER"))
    ]
    assert damage == []


def test_a_dledger_log_is_not_repaired(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    path = sorted((store / "dledger-n0/data").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[52] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="another member"):
        plan_repair(OsFileSystem(), str(store), Repair.QUARANTINE)
