"""Stores to upgrade: small ones in memory, whose process can crash, and those that Java wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypedDict

from attrs import define, evolve, field
from simulator.crash_files import CrashingFiles

from harness.store import StoreRig
from rmqpy.codec.units import INDEX_ENTRY, IndexHeader, index_entry_position
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.memory_files import MemoryFiles
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.leave_member import LeaveOptions, plan_leave
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions

__all__ = [
    "GOLDEN_SIZES",
    "PEERS",
    "SHOWN",
    "FileSizes",
    "LeaveOptions",
    "MakeUpgradeRig",
    "RunUpgrade",
    "UpgradeRig",
    "index_entries",
    "log_of",
    "memory_context",
    "plan_leave",
    "small_group",
    "tree_of",
    "write_confs",
    "write_first_entry",
]

SPARSE_BYTES_MIN = 1 << 26
"""A file of at least this size is the sparse index of a ledger."""


class FileSizes(TypedDict):
    """The settings that define the size of each file of a store."""

    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int


GOLDEN_SIZES = FileSizes(
    mapped_file_size_commit_log=65536,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=100,
    max_index_num=400,
)
"""The sizes with which Java wrote the golden stores."""


def index_entries(files: Mapping[str, bytes], slot_count: int) -> list[tuple[int, int]]:
    """Return (key hash, offset) of all entries of a key index, the content of whose files is given
    by name: how many files it has depends on what was built in advance.
    """
    found = []
    for _, raw in sorted(files.items()):
        for number in range(1, IndexHeader.decode(memoryview(raw)).index_count):
            key_hash, offset, *_ = INDEX_ENTRY.unpack_from(
                raw, index_entry_position(number, slot_count)
            )
            found.append((key_hash, offset))
    return found


@define
class UpgradeRig(StoreRig):
    """A store directory in memory, whose process can crash at any operation."""

    files: CrashingFiles = field(factory=CrashingFiles)
    root: str = "/store"

    def context(self, files: MemoryFiles | None = None) -> NodeContext:
        return NodeContext(files or self.files, upgrade_work(self.root), self.settings())

    def with_flag(self, flag: bool) -> Self:
        """Return a rig of the same directory with this value of enableDLegerCommitLog."""
        return evolve(self, flag=flag)

    def tree(self) -> dict[str, bytes]:
        """Return the content of every file of the store, without those of rmqpy's own."""
        return {
            path: data for path, data in super().tree().items() if not path.startswith("rmqpy/")
        }

    def times(self) -> dict[str, int]:
        """Return the modification time of every file, in milliseconds, without rmqpy's own."""
        return {
            path: node.mtime_ms for path, node in self.files.nodes.items() if "/rmqpy/" not in path
        }


def tree_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time in milliseconds of every file, without rmqpy's own.

    The index of a ledger, nearly all of it holes, is left out.
    """
    return {
        os.fspath(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns // 1_000_000)
        for path in root.rglob("*")
        if path.is_file() and "rmqpy" not in path.parts and path.stat().st_size < SPARSE_BYTES_MIN
    }


def log_of(root: Path) -> dict[str, bytes]:
    """Return the content of each file of the classic log."""
    return {file.name: file.read_bytes() for file in (root / "commitlog").iterdir()}


MakeUpgradeRig = Callable[..., UpgradeRig]


def small_group(make_rig: MakeUpgradeRig) -> tuple[UpgradeRig, UpgradeRig]:
    """Return a master with 40 messages and a consumer offset, and a slave with 25 of them."""
    files = CrashingFiles()
    master = make_rig(files=files, root="/m")
    slave = make_rig(files=files, root="/s")
    slave.clock = master.clock
    for rig in (master, slave):
        rig.write(*range(25))
        rig.files.put(f"{rig.root}/config/topics.json", b'{"topicConfigTable":{}}')
    for path in [each for each in files.nodes if each.startswith("/m/commitlog")]:
        files.put("/s" + path[2:], bytes(files.nodes[path].data))
    master.write(*range(25, 40))
    files.put("/m/config/consumerOffset.json", b'{"offsetTable":{"Topic@g":{0:7}}}')
    return master, slave


def memory_context(
    files: MemoryFiles,
    *rigs: UpgradeRig,
    options: SwitchOptions | None = None,
) -> PlanContext:
    plans = [
        SurveyPlan(
            name=rig.root[1:],
            root=rig.root,
            config_path=f"{rig.root}.conf" if files.exists(f"{rig.root}.conf") else None,
            settings=rig.settings(),
            now_ms=lambda: 5000,
        )
        for rig in rigs
    ]
    return PlanContext(
        group=Group(tuple(LocalReplica(files, plan) for plan in plans)),
        files=files,
        options=options or SwitchOptions(),
        settings={rig.root[1:]: rig.settings() for rig in rigs},
    )


RunUpgrade = Callable[[str], tuple[int, str, str]]
"""Runs ``rmqpy upgrade`` with a line of arguments; returns exit code, stdout, and stderr."""

CONF = """brokerName=b0
brokerClusterName=DefaultCluster
listenPort={port}
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
storePathRootDir={root}
"""
SHOWN = "n0 n1 n2 -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf"
PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"


def write_confs(root: Path, more: str = "") -> None:
    """Write the broker.conf of n0, n1, and n2; SELF in ``more`` stands for the name."""
    for number in range(3):
        text = CONF.format(port=15911 + 10 * number, root=root / f"n{number}")
        (root / f"n{number}.conf").write_text(text + more.replace("SELF", f"n{number}"))


def write_first_entry(root: Path, names: Sequence[str] = ("n0", "n1", "n2")) -> None:
    """Write the same message to the DLedger logs of these members, as their first leader does."""
    for name in names:
        rig = StoreRig(
            OsFileSystem(),
            os.fspath(root / name),
            flag=True,
            self_id=name,
            changes={**GOLDEN_SIZES},
        )
        rig.write(0)
