"""Healthy groups of every kind, written by Java 4.9.7 and 5.3.3 or by rmqpy on such stores."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import define
from harness.golden import extract, node_folder
from harness.store import FILE_SIZE, StoreRig
from harness.upgrade import GOLDEN_SIZES, LeaveOptions, plan_leave

from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan, finalize
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan

__all__ = ["GROUPS", "Group", "build_group", "random_store"]

MEMBERS = ("n0", "n1", "n2")
MEMBER_COUNT = len(MEMBERS)
AFTER_JAVA_MS = 1_795_300_000_000
"""A time after that of the last message that Java wrote."""


@define(frozen=True)
class Group:
    """The stores of one group by name, and the broker.conf of each."""

    name: str
    stores: Mapping[str, Path]
    configs: Mapping[str, Path]


def build_group(name: str, base: Path) -> Group:
    """Write the group ``name`` (of `GROUPS`) below ``base``."""
    base.mkdir(parents=True)
    stores, ledger = GROUPS[name](base)
    changes = SETTINGS.get(name, {})
    configs = {
        node: _write_config(base / f"{node}.conf", node, store, ledger, changes)
        for node, store in stores.items()
    }
    return Group(name, stores, configs)


def _write_config(
    path: Path, node: str, store: Path, ledger: bool, changes: Mapping[str, object]
) -> Path:
    number = int(node[-1])
    lines: dict[str, object] = {
        "brokerName": "group",
        "brokerId": number,
        "brokerRole": "SLAVE" if number and not ledger else "ASYNC_MASTER",
        "listenPort": 10911 + 100 * number,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": GOLDEN_SIZES["mapped_file_size_commit_log"],
        "mappedFileSizeConsumeQueue": GOLDEN_SIZES["mapped_file_size_consume_queue"],
        "maxHashSlotNum": GOLDEN_SIZES["max_hash_slot_num"],
        "maxIndexNum": GOLDEN_SIZES["max_index_num"],
    }
    if ledger:
        lines |= {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "group",
            "dLegerPeers": ";".join(
                f"{member}-127.0.0.1:{20911 + number}" for number, member in enumerate(MEMBERS)
            ),
            "dLegerSelfId": node,
        }
    lines |= changes
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def _golden(name: str, nodes: Mapping[str, str]) -> Callable[[Path], dict[str, Path]]:
    def write(base: Path) -> dict[str, Path]:
        return {
            node: node_folder(lambda archive: extract(archive, base), f"{name}/{source}")
            if source
            else node_folder(lambda archive: extract(archive, base), name)
            for node, source in nodes.items()
        }

    return write


_classic_497 = _golden("A-classic-clean-v497", {"n0": ""})
_classic_533 = _golden("A-classic-clean-v533", {"n0": ""})
_pair_497 = _golden("B-master-slave-v497", {"n0": "master", "n1": "slave"})
_joined_497 = _golden("C-upgraded-v497", {member: member for member in MEMBERS})
_joined_533 = _golden("C-upgraded-v533", {member: member for member in MEMBERS})
_ledger_533 = _golden("D-dledger-v533", {member: member for member in MEMBERS})
_popped_533 = _golden("F-pop-acknowledged-v533", {"n0": "log"})
_timers_533 = _golden("E-timers-v533", {"n0": "clean"})
_tiered_533 = _golden("J-tiered-v533", {"n0": "store"})
_controller_533 = _golden("I-controller-v533", {"n0": "n0", "n1": "n1"})


def _ledger_497(base: Path) -> dict[str, Path]:
    """A group of Java, stopped under consumption: its members have different consumer offsets. Java
    has deleted index files of its followers after unclean stops.
    """
    stores = _golden("D-dledger-v497", {member: member for member in MEMBERS})(base)
    for member in MEMBERS[1:]:
        shutil.rmtree(stores[member] / "index")
        shutil.copytree(stores["n0"] / "index", stores[member] / "index")
    return stores


def _rig(store: Path, member: str, *, flag: bool) -> StoreRig:
    clock = ManualScheduler(start_ms=AFTER_JAVA_MS)
    return StoreRig(
        OsFileSystem(), os.fspath(store), flag, clock, changes={**GOLDEN_SIZES}, self_id=member
    )


def _three(base: Path, write: Callable[[Path, str], None]) -> dict[str, Path]:
    """Write three stores that agree, one after another."""
    stores = {member: base / member for member in MEMBERS}
    for member, store in stores.items():
        write(store, member)
    return stores


def _joined_rmqpy(base: Path) -> dict[str, Path]:
    """A classic store of 5.3.3 that rmqpy joined with a DLedger log, three times the same."""
    source = _classic_533(base / "source")["n0"]

    def write(store: Path, member: str) -> None:
        shutil.copytree(source, store, symlinks=True)
        _rig(store, member, flag=True).write(*range(200), topic=b"Normal")

    return _three(base, write)


def _ledger_rmqpy(base: Path) -> dict[str, Path]:
    """A DLedger group whose log rmqpy wrote from the beginning."""
    return _three(base, lambda store, member: _written(_rig(store, member, flag=True), 300))


def _classic_rmqpy(base: Path) -> dict[str, Path]:
    """A master and two slaves whose log rmqpy wrote."""
    return _three(base, lambda store, member: _written(_rig(store, member, flag=False), 300))


def _written(rig: StoreRig, count: int) -> None:
    root = Path(rig.root)
    tables = _classic_497(root.parent / f"{root.name}-tables")["n0"] / "config"
    shutil.copytree(tables, root / "config")
    rig.write(*range(count), topic=b"Normal")


def _left(joined: Callable[[Path], dict[str, Path]]) -> Callable[[Path], dict[str, Path]]:
    def write(base: Path) -> dict[str, Path]:
        stores = joined(base)
        contexts = {member: _context(store, member) for member, store in stores.items()}
        ledgers = [read_ledger(context.files, context.settings) for context in contexts.values()]
        cut = agreed_index(ledgers, MEMBER_COUNT)
        parts = tuple(
            plan_leave(context, LeaveOptions(replica=member, cut_index=cut))
            for member, context in contexts.items()
        )
        plan = Plan(steps=("m0006_leave",), nodes=parts)
        for member, context in contexts.items():
            apply_plan(context, plan, member)
            finalize(context)
        for member, store in stores.items():  # the first start rebuilds what is derived
            _rig(store, member, flag=False).open().shutdown()
        return stores

    return write


def _context(store: Path, member: str) -> NodeContext:
    settings = StoreSettings(
        store_path_root_dir=os.fspath(store),
        enable_dledger_commit_log=True,
        dledger_self_id=member,
        dledger_group="group",
        dledger_peers="n0-a:1;n1-a:2;n2-a:3",
        **GOLDEN_SIZES,
    )
    return NodeContext(OsFileSystem(), upgrade_work(os.fspath(store)), settings, now_ms=lambda: 1)


_left_497 = _left(_joined_497)
_left_533 = _left(_joined_533)

GROUPS: Mapping[str, Callable[[Path], tuple[dict[str, Path], bool]]] = {
    "classic 4.9.7": lambda base: (_classic_497(base), False),
    "classic 5.3.3": lambda base: (_classic_533(base), False),
    "master and slave 4.9.7": lambda base: (_pair_497(base), False),
    "classic rmqpy": lambda base: (_classic_rmqpy(base), False),
    "joined 4.9.7": lambda base: (_joined_497(base), True),
    "joined 5.3.3": lambda base: (_joined_533(base), True),
    "joined rmqpy": lambda base: (_joined_rmqpy(base), True),
    "DLedger 4.9.7": lambda base: (_ledger_497(base), True),
    "DLedger 5.3.3": lambda base: (_ledger_533(base), True),
    "DLedger rmqpy": lambda base: (_ledger_rmqpy(base), True),
    "left 4.9.7": lambda base: (_left_497(base), False),
    "left 5.3.3": lambda base: (_left_533(base), False),
    "POP 5.3.3": lambda base: (_popped_533(base), False),
    "timers 5.3.3": lambda base: (_timers_533(base), False),
    "tiered 5.3.3": lambda base: (_tiered_533(base), False),
    "controller 5.3.3": lambda base: (_controller_533(base), False),
}
"""Each kind of group: a function that writes its stores, and whether DLedger is enabled in them."""

SETTINGS: Mapping[str, Mapping[str, object]] = {
    "controller 5.3.3": {
        "brokerName": "golden",
        "enableControllerMode": "true",
        "controllerAddr": "127.0.0.1:9878",
    },
}
"""What the broker.conf of a group contains besides, or instead of, what all have."""


def random_store(seed: int, root: Path) -> StoreRig:
    """Write a healthy store with random contents, starts, and stops, and return its rig."""
    dice = random.Random(seed)
    ledger_from = dice.choice([None, 0, 1, 2])
    rig = StoreRig(OsFileSystem(), os.fspath(root))
    root.mkdir(parents=True)
    number = 0
    for session in range(3):
        rig.flag = ledger_from is not None and session >= ledger_from
        count = dice.randrange(0 if session else 1, 60)
        rig.write(
            *range(number, number + count),
            topic=dice.choice([b"Topic", b"Other"]),
            queue_id=dice.randrange(3),
            body=dice.randbytes(dice.randrange(1, FILE_SIZE // 4)),
        )
        number += count
    return rig
