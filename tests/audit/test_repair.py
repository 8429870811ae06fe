"""Repairs: shown first, journaled, and afterwards everything else reads as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.checks.messages import MessageSelection, each_message
from rmqpy.audit.replicas.repair import Repair, execute_repair, plan_repair, unfinished_plan
from rmqpy.audit.scan.directory import read_directory
from rmqpy.codec.backend import scan_records
from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem


def fsck(store):
    found = []
    audit_store(OsFileSystem(), AuditOptions(root=str(store), sink=found.extend, workers=1))
    return [finding for finding in found if finding.code.severity.value != "note"]


def messages(store):
    directory = read_directory(OsFileSystem(), str(store))
    return {
        found.message.physical_offset: found.message
        for found in each_message(OsFileSystem(), directory, MessageSelection())
    }


def carry(store, plan, files=None):
    files = files or OsFileSystem()
    execute_repair(files, read_directory(files, str(store)), plan)


@pytest.fixture
def damaged(copy_of: Callable[[str], Path]):
    """A store with a broken record, a broken body, a zeroed page and a broken filler."""
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


def test_nothing_to_do(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    for repair in Repair:
        assert plan_repair(OsFileSystem(), str(store), repair).actions == ()


def test_quarantine_keeps_every_other_message(
    copy_of: Callable[[str], Path], damaged, tmp_path: Path
) -> None:
    before = messages(damaged)
    plan = plan_repair(OsFileSystem(), str(damaged), Repair.QUARANTINE)
    kept = [action for action in plan.actions if action.kept_as]
    assert len(kept) == len({action.kept_as for action in kept}) >= 4
    assert len(plan.reasons) == len(kept)
    carry(damaged, plan)
    after = messages(damaged)
    assert {f.code.name for f in fsck(damaged)} <= {"KEY_MISSING", "KEY_SURPLUS"}
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


def test_force_truncate_ends_the_log_before_the_damage(damaged) -> None:
    first = min(f.offset for f in fsck(damaged) if f.code.name.startswith("RECORD"))
    before = messages(damaged)
    plan = plan_repair(OsFileSystem(), str(damaged), Repair.FORCE_TRUNCATE)
    carry(damaged, plan)
    after = messages(damaged)
    assert after == {o: m for o, m in before.items() if o < first}
    assert sorted(path.name for path in (damaged / "commitlog").iterdir())[-1] == f"{65536:020d}"
    assert len(list((damaged / "rmqpy/quarantine").iterdir())) == 3


class StoppedError(Exception):
    pass


class StoppingDisk(OsFileSystem):
    """Dies before the n-th change."""

    def __init__(self, changes):
        super().__init__()
        self.left = changes

    def _count(self):
        if self.left == 0:
            raise StoppedError
        self.left -= 1

    def replace_bytes(self, path, data):
        self._count()
        super().replace_bytes(path, data)

    def rename(self, old, new):
        self._count()
        super().rename(old, new)

    def unlink(self, path):
        self._count()
        super().unlink(path)

    def open(self, path, *, size=None):
        self._count()
        return super().open(path, size=size)


@pytest.mark.slow
@pytest.mark.parametrize("repair", list(Repair))
def test_an_interrupted_repair_is_carried_on(
    copy_of: Callable[[str], Path], damaged, repair
) -> None:
    """StoppedError before each of its changes: the end is the same, byte for byte."""
    plan = plan_repair(OsFileSystem(), str(damaged), repair)
    stops = 0
    for changes in range(1, 2 * len(plan.actions)):
        try:
            carry(damaged, plan, StoppingDisk(changes))
        except StoppedError:
            stops += 1
            unfinished = unfinished_plan(
                OsFileSystem(), read_directory(OsFileSystem(), str(damaged))
            )
            assert unfinished == plan
        else:
            break
    assert stops >= len(plan.actions) // 2
    assert unfinished_plan(OsFileSystem(), read_directory(OsFileSystem(), str(damaged))) is None
    kept = {action.kept_as: action for action in plan.actions if action.kept_as}
    names = {path.name for path in (damaged / "rmqpy/quarantine").iterdir()}
    assert names == set(kept)
    damage = [f for f in fsck(damaged) if f.code.name.startswith(("RECORD", "FILLER"))]
    assert damage == []


def test_a_dledger_log_is_not_repaired_here(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    path = sorted((store / "dledger-n0/data").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[52] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="another member"):
        plan_repair(OsFileSystem(), str(store), Repair.QUARANTINE)
