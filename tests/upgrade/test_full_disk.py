"""Plans on a full disk: the way back needs no space, and a plan does not begin without enough."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from harness.full_disk import FullDiskFiles
from harness.plans import (
    Interrupted,
    make_filling_of_many_queues,
    make_leave_of_many_queues,
)
from harness.upgrade import CONF, MakeUpgradeRig, tree_of

from rmqpy.cli import main
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import check_no_unfinished_upgrade, upgrade_work
from rmqpy.testing.memory_files import MemoryFiles
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan import undo
from rmqpy.upgrade.plan.engine import apply_plan, resume, roll_back
from rmqpy.upgrade.plan.journal import APPLIED, load_journal
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
from rmqpy.upgrade.plan.operations import MoveAside
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.plan.space import BLOCK, missing_space, space_needed
from rmqpy.upgrade.plan.survey import SurveyPlan

NAMES = ("n0", "n1", "n2")


@pytest.mark.slow
def test_a_plan_is_rolled_back_on_a_full_disk(interrupted: Interrupted) -> None:
    """The disk fills up at any allocation; status, resume, and rollback then work on it."""
    made = interrupted
    before = made.tree(made.files)
    done = made.files.reopen(None)
    apply_plan(made.context(done), made.plan, made.node)
    after = made.tree(done)
    filled = 0
    for allocations in itertools.count():
        full = FullDiskFiles.of(made.files, allocations)
        try:
            apply_plan(made.context(full), made.plan, made.node)
        except StoreError as error:
            assert "found a full disk" in str(error)
        else:
            break
        if load_journal(full, made.work) is None:
            assert made.tree(full) == before
            check_no_unfinished_upgrade(full, made.root)
            continue
        filled += 1
        plan = SurveyPlan(
            name=made.node, root=made.root, settings=made.rigs[-1].settings(), now_ms=lambda: 5
        )
        assert LocalReplica(full, plan).status()["state"] == "applying"
        with pytest.raises(StoreError, match=r"found a full disk.*--resume.*rollback"):
            resume(made.bare_context(FullDiskFiles.of(full)))
        back = FullDiskFiles.of(full)
        roll_back(made.bare_context(back))
        assert made.tree(back) == before, allocations
        check_no_unfinished_upgrade(back, made.root)
        space = FullDiskFiles.of(full, 1 << 30)
        assert resume(made.bare_context(space)).state == APPLIED
        assert made.tree(space) == after, allocations
    assert filled > 10


def test_an_applied_plan_is_rolled_back_on_a_full_disk(interrupted: Interrupted) -> None:
    made = interrupted
    before = made.tree(made.files)
    apply_plan(made.context(), made.plan, made.node)
    full = FullDiskFiles.of(made.files)
    roll_back(made.bare_context(full))
    assert made.tree(full) == before


def test_a_plan_does_not_begin_without_space(interrupted: Interrupted) -> None:
    made = interrupted
    (part,) = (made.plan.node(made.node),)
    (need,) = space_needed(made.context(), part)
    assert need.needed > sum(op.changed_bytes for op in part.ops) // 10
    made.files.free_bytes = need.needed - 1
    before = made.tree(made.files)
    with pytest.raises(UpgradeRefusedError, match=r"found .* free .* expected .* free 1 bytes"):
        apply_plan(made.context(), made.plan, made.node)
    assert made.tree(made.files) == before
    assert not made.files.exists(f"{made.work}/journal.json")
    assert len(missing_space(made.context(), part)) == 1
    made.files.free_bytes += 1
    apply_plan(made.context(), made.plan, made.node)


def test_the_estimate_covers_what_a_plan_allocates(interrupted: Interrupted) -> None:
    """Everything that was added to the directory at the end, the kept files included."""
    made = interrupted
    (need,) = space_needed(made.context(), made.plan.node(made.node))

    def used() -> int:
        nodes = made.files.nodes.items()
        return sum(node.extent for path, node in nodes if path.startswith(f"{made.root}/"))

    before = used()
    apply_plan(made.context(), made.plan, made.node)
    assert used() - before <= need.needed


@pytest.mark.parametrize("make", [make_filling_of_many_queues, make_leave_of_many_queues])
def test_the_estimate_covers_many_small_queues(
    make: Callable[[MakeUpgradeRig], Interrupted], make_rig: MakeUpgradeRig
) -> None:
    """A queue of one unit takes a block, and so does each of its folders."""
    made = make(make_rig)
    (need,) = space_needed(made.context(), made.plan.node(made.node))

    def used() -> int:
        nodes = made.files.nodes.items()
        found = {path: node.extent for path, node in nodes if path.startswith(f"{made.root}/")}
        folders = {str(parent) for path in found for parent in Path(path).parents}
        return BLOCK * (len(folders) + sum(-(-extent // BLOCK) for extent in found.values()))

    before = used()
    apply_plan(made.context(), made.plan, made.node)
    assert BLOCK * 60 < used() - before <= need.needed


def test_a_file_whose_folder_could_not_be_created_is_taken_back(tmp_path: Path) -> None:
    """Before, such a plan could neither be resumed nor rolled back."""
    files, record = OsFileSystem(), f"{tmp_path}/undo/000007"
    undo.save_whole(files, record, f"{tmp_path}/config/topics.json")
    undo.restore(files, record)
    assert not (tmp_path / "config").exists()


def test_a_file_of_another_file_system_is_put_back_in_place_on_a_full_disk() -> None:
    class Elsewhere(FullDiskFiles):
        def rename(self, old: str, new: str) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link", old)

    files = MemoryFiles()
    files.put("/etc/broker.conf", b"brokerName=a\n")
    undo.save_whole(files, "/store/rmqpy/undo/000000", "/etc/broker.conf")
    files.replace_bytes("/etc/broker.conf", b"brokerName=a\nenableDLegerCommitLog=true\n")
    full = Elsewhere.of(files)
    undo.restore(full, "/store/rmqpy/undo/000000")
    undo.restore(full, "/store/rmqpy/undo/000000")
    assert full.read_bytes("/etc/broker.conf") == b"brokerName=a\n"


class TwoDisks(MemoryFiles):
    """The logs are on another file system than the store; ``free`` has the space of each."""

    free: ClassVar[dict[int, int]] = {}

    def device_of(self, path: str) -> int:
        return int(path.startswith("/logs"))

    def disk_usage(self, path: str) -> tuple[int, int]:
        return 1 << 40, self.free.get(self.device_of(path), 1 << 30)

    def rename(self, old: str, new: str) -> None:
        if self.device_of(old) != self.device_of(new):
            raise OSError(errno.EXDEV, "Invalid cross-device link", old)
        super().rename(old, new)


def test_a_rollback_does_not_begin_without_space_for_what_returns() -> None:
    files = TwoDisks()
    files.put("/logs/commitlog/00000000000000000000", b"x" * 5000)
    files.put("/store/abort", b"")
    settings = StoreSettings(store_path_root_dir="/store", store_path_commit_log="/logs/commitlog")
    context = NodeContext(files, upgrade_work("/store"), settings)
    keep = f"{upgrade_work('/store')}/keep-1"
    moved = MoveAside(
        path="/logs/commitlog/00000000000000000000", to=f"{keep}/commitlog/00000000000000000000"
    )
    node = NodePlan(replica="n0", root="/store", keep=keep, ops=(moved,))
    apply_plan(context, Plan(steps=("m0002_align",), nodes=(node,)), "n0")
    assert not files.exists(moved.path)
    before = {path: node.content() for path, node in files.nodes.items()}
    TwoDisks.free = {1: 4999}
    with pytest.raises(UpgradeRefusedError, match=r"4\.9 KiB for the rollback; free 1 byte"):
        roll_back(context)
    assert {path: node.content() for path, node in files.nodes.items()} == before
    TwoDisks.free = {1: 5000}
    roll_back(context)
    assert files.read_bytes(moved.path) == b"x" * 5000


# A real file system


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MiB."""
    at = tmp_path / "disk"
    at.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", os.fspath(at)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command: a real full disk needs one")
    if mounted.returncode:
        pytest.skip(f"a real full disk needs the right to mount: {mounted.stderr.decode()}")
    yield at
    subprocess.run(["umount", os.fspath(at)], check=True)


def without_lock(store: Path) -> dict[str, tuple[bytes, int]]:
    return {path: file for path, file in tree_of(store).items() if path != "lock"}


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        for count in (1 << 16, 1 << 12):
            try:
                while True:
                    ballast.write(bytes(count))
            except OSError as error:
                assert error.errno == errno.ENOSPC


@pytest.mark.slow
def test_a_real_full_disk(
    small_disk: Path,
    golden_copy: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = golden_copy("B-lagging-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    for number, name in enumerate(("n0", "n1")):
        text = CONF.format(port=15911 + 10 * number, root=root / name)
        (root / f"{name}.conf").write_text(text)
    monkeypatch.chdir(root)
    subprocess.run(["cp", "-a", "n1", os.fspath(small_disk / "n1")], check=True)
    store = small_disk / "n1"
    (root / "n1.conf").write_text(CONF.format(port=15921, root=store))

    def run(line: str) -> tuple[int, str]:
        code = main(shlex.split(f"upgrade {line}"))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    replicas = f"n0=n0 n1={store} -c n0=n0.conf -c n1=n1.conf"
    before = without_lock(store)
    assert run(f"plan {replicas} --out plan.json")[0] == 0
    apply = f"apply --plan plan.json --node n1 {replicas}"
    fill(small_disk)
    code, text = run(f"{apply} --dry-run")
    assert code == 2 and "on its file system" in text, text
    (store / "lock").write_bytes(b"")
    code, text = run(apply)
    assert code == 2 and "on its file system" in text, text
    (small_disk / "ballast").unlink()
    certificate = small_disk / "certificate.json"
    verify = f"verify n0=n0 n1=n1 --out {certificate}"
    assert run(verify)[0] == 2
    kept = certificate.read_bytes()
    assert run(apply)[0] == 0
    fill(small_disk)
    code, text = run(verify)
    assert code == 1 and "CONTAINED: n1 in n0" in text, "what was found is printed"
    assert f"{certificate}: found no space" in text and certificate.read_bytes() == kept
    assert run(f"status {store}")[0] == 0
    code, text = run(f"rollback {store}")
    assert code == 0, text
    assert without_lock(store) == before
    (small_disk / "ballast").unlink()
    after = json.loads((store / "rmqpy/upgrade/journal.json").read_text())
    assert after["state"] == "rolled_back"
