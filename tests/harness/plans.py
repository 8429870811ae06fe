"""Plans for small replicas in memory, which can be killed before any operation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import pytest
from attrs import define, evolve

from harness.kills import kills_of, operations_of
from harness.store import CrashingFiles, KilledError
from harness.upgrade import (
    LeaveOptions,
    MakeUpgradeRig,
    UpgradeRig,
    memory_context,
    plan_leave,
    small_group,
)
from rmqpy.config.loading import StoreSettings
from rmqpy.testing.memory_files import MemoryFiles
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.pace import Pace
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.prepare import prepare_all
from rmqpy.upgrade.steps.plan_context import SwitchOptions
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving

CONF = (
    b"brokerName=b0\nmappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\n"
    b"maxHashSlotNum=10\nmaxIndexNum=20\n"
)


@define
class Interrupted:
    """A replica in memory and a plan for it; the replica to copy from is the first rig, if any."""

    files: CrashingFiles
    rigs: tuple[UpgradeRig, ...]
    plan: Plan
    node: str = "s"

    @property
    def pair(self) -> tuple[UpgradeRig, UpgradeRig]:
        one, two = self.rigs
        return one, two

    @property
    def root(self) -> str:
        return self.rigs[-1].root

    @property
    def work(self) -> str:
        return f"{self.root}/rmqpy/upgrade"

    def context(self, files: MemoryFiles | None = None) -> NodeContext:
        files = files or self.files
        if len(self.rigs) == 1:
            return self.rigs[0].context(files)
        made = memory_context(files, self.rigs[0], self.rigs[1])
        return made.node_context(made.group.replica(self.node))

    def bare_context(self, files: MemoryFiles) -> NodeContext:
        """Return the context that the directory alone gives: no sizes are known."""
        given = self.context(files)
        unknown = StoreSettings(store_path_root_dir=self.root)
        return evolve(given, settings=unknown, configuration=())

    def tree(self, files: MemoryFiles) -> dict[str, bytes]:
        """Return the content of every file of the replica, without rmqpy's own."""
        start = f"{self.root}/"
        return {
            path.removeprefix(start): bytes(node.data)
            for path, node in files.nodes.items()
            if path.startswith(start) and not path.startswith(f"{start}rmqpy/")
        }

    def apply(self, files: CrashingFiles) -> None:
        apply_plan(self.context(files), self.plan, self.node)

    def killed_at(self, dies_at: int) -> CrashingFiles:
        """Return the files after a kill before that operation."""
        dying = self.files.reopen(dies_at)
        with pytest.raises(KilledError):
            self.apply(dying)
        return dying.reopen(None)

    def killed_after(self, part: float) -> CrashingFiles:
        """Return the files after a kill at that part of the operations that a journal covers."""
        total = operations_of(self.files, self.apply)
        first = bisect_left(
            range(total), True, key=lambda at: self._has_journal(self.killed_at(at))
        )
        return self.killed_at(first + int((total - first) * part))

    def kills(self) -> Iterator[tuple[int, CrashingFiles]]:
        """Yield the files after kills before operations from which on a journal exists."""
        for dies_at, dying in kills_of(self.files, self.apply, more_than=50):
            if self._has_journal(dying):
                yield dies_at, dying.reopen(None)

    def _has_journal(self, files: CrashingFiles) -> bool:
        return files.exists(f"{self.work}/journal.bak")


def make_alignment(make_rig: MakeUpgradeRig) -> Interrupted:
    rigs = small_group(make_rig)
    files = rigs[0].files
    files.put("/s.conf", CONF)
    for rig in rigs:
        for name in ("subscriptionGroup", "consumerOffset"):
            files.put(f"{rig.root}/config/{name}.json", b"{}")
    return Interrupted(files, rigs, plan_alignment(memory_context(files, *rigs)))


def make_leave_of_controller(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return a replica of a controller group that ends before the other one."""
    rigs = small_group(make_rig)
    files = rigs[0].files
    for number, rig in enumerate(rigs):
        files.put(f"{rig.root}/epochFileCheckpoint", b"1\n0\n1-0\n")
        files.put(f"{rig.root}/brokerIdentity", b"DefaultCluster#b0#%d" % (number + 1))
        files.put(f"{rig.root}.conf", CONF + b"enableControllerMode=true\n")
    roles = SwitchOptions(roles={"m": "SYNC_MASTER", "s": "SLAVE"})
    return Interrupted(files, rigs, plan_leaving(memory_context(files, *rigs, options=roles)))


def make_leave(make_rig: MakeUpgradeRig) -> Interrupted:
    rig = make_rig()
    rig.write(*range(12))
    joined = rig.with_flag(True)
    joined.write(*range(12, 32))
    plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(joined.context(), leaving(joined)),))
    return Interrupted(rig.files, (joined,), plan, "n0")


def make_filling(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return an empty directory that receives everything from a master."""
    master, _ = small_group(make_rig)
    files = master.files
    empty = make_rig(files=files, root="/t")
    files.make_dirs("/t")
    plan = plan_alignment(memory_context(files, master, empty))
    return Interrupted(files, (master, empty), plan, "t")


def many_queues(rig: UpgradeRig) -> None:
    """Write one message to each of 60 queues."""
    store = rig.open()
    try:
        for number in range(60):
            rig.put(store, number, topic=f"Topic{number % 20}".encode(), queue_id=number // 20)
    finally:
        store.shutdown()


def make_filling_of_many_queues(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return an empty directory that receives many small queues."""
    master = make_rig(root="/m")
    many_queues(master)
    master.files.put("/m/config/topics.json", b'{"topicConfigTable":{}}')
    empty = make_rig(files=master.files, root="/t")
    master.files.make_dirs("/t")
    plan = plan_alignment(memory_context(master.files, master, empty))
    return Interrupted(master.files, (master, empty), plan, "t")


def make_leave_of_many_queues(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return a member of a group without an old log, whose entries are in many small queues."""
    rig = make_rig(flag=True)
    many_queues(rig)
    plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(rig.context(), leaving(rig)),))
    return Interrupted(rig.files, (rig,), plan, "n0")


def make_prepared_leave(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return a member whose twins, queues, and index wait on its stage."""
    rig = make_rig()
    rig.write(*range(10))
    joined = rig.with_flag(True)
    joined.write(*range(10, 60))
    prepare_in_memory(rig.files, joined, leave=True)
    plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(joined.context(), leaving(joined)),))
    return Interrupted(rig.files, (joined,), plan, "n0")


def make_prepared_filling(make_rig: MakeUpgradeRig) -> Interrupted:
    """Return an empty directory with files, queues, and index on its stage."""
    master, _ = small_group(make_rig)
    master.write(*range(40, 52))
    files = master.files
    empty = make_rig(files=files, root="/t")
    files.make_dirs("/t")
    prepare_in_memory(files, master, empty)
    plan = plan_alignment(memory_context(files, master, empty))
    return Interrupted(files, (master, empty), plan, "t")


def leaving(rig: UpgradeRig) -> LeaveOptions:
    ledger = read_ledger(rig.files, rig.settings())
    return LeaveOptions(replica="n0", cut_index=agreed_index([ledger], 1), piece_bytes=1000)


def prepare_in_memory(files: MemoryFiles, *rigs: UpgradeRig, leave: bool = False) -> None:
    """Prepare the directories of ``rigs``, without waiting."""
    context = memory_context(files, *rigs)
    for _ in prepare_all(context, lambda: Pace(0, lambda: 0.0, lambda _seconds: None), leave=leave):
        pass


MAKERS = {
    "alignment": make_alignment,
    "leave": make_leave,
    "leave of a controller": make_leave_of_controller,
    "filling": make_filling,
    "prepared leave": make_prepared_leave,
    "prepared filling": make_prepared_filling,
}
"""How each kind of plan is made."""
