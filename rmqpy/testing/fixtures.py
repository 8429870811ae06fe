"""Switch copies of a store to DLedger, for the fixture ``rmq_upgraded_group``."""

from __future__ import annotations

import os
import time
from pathlib import Path

from attrs import define

from rmqpy.audit.replicas.manifest import Md5
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.broker import Broker
from rmqpy.testing.processes import LOOPBACK, SMALL_STORE
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.copying import copy_tree
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions, shown_settings
from rmqpy.upgrade.steps.planning import plan_alignment, plan_switch

MEMBERS = ("n0", "n1", "n2")
BROKER_NAME = "broker-a"


@define
class UpgradeRun:
    """Three replicas of one store below ``root``: two copies and an empty one."""

    root: Path

    @property
    def stores(self) -> dict[str, Path]:
        return {member: self.root / member for member in MEMBERS}

    def begin(self, source: Path) -> None:
        if not (source / "commitlog").is_dir():
            raise RmqError(f"{source}: no commitlog directory; give a broker's storePathRootDir")
        for member in MEMBERS[:2]:
            target = os.fspath(self.root / member)
            copy_tree(OsFileSystem(), os.fspath(source), target, frozenset(("rmqpy", "lock")))
        self.stores[MEMBERS[2]].mkdir(parents=True)
        for member in MEMBERS:
            conf = self.root / f"{member}.conf"
            sizes = "".join(f"{key}={value}\n" for key, value in shown_sizes(source).items())
            conf.write_text(
                f"brokerName={BROKER_NAME}\nstorePathRootDir={self.root / member}\n{sizes}"
            )

    def situation(self, cut_index: int | None = None) -> PlanContext:
        """Return a planning context of all replicas as they are now."""
        peers = ";".join(f"{member}-{LOOPBACK}:{20911 + n}" for n, member in enumerate(MEMBERS))
        replicas = [
            LocalReplica(
                OsFileSystem(),
                SurveyPlan(
                    name=member,
                    root=os.fspath(store),
                    config_path=os.fspath(self.root / f"{member}.conf"),
                    now_ms=lambda: time.time_ns() // 1_000_000,
                ),
            )
            for member, store in self.stores.items()
        ]
        options = SwitchOptions(
            peers=peers, self_ids={member: member for member in MEMBERS}, cut_index=cut_index
        )
        return PlanContext(group=Group(tuple(replicas)), files=OsFileSystem(), options=options)

    def apply(self, plan: Plan) -> None:
        """Apply each member's part of the plan."""
        context = self.situation()
        for part in plan.nodes:
            node_context = context.node_context(context.group.replica(part.replica))
            apply_plan(node_context, plan, part.replica)


def switched_run(root: Path, source: Path | None) -> UpgradeRun:
    """Return three switched replicas below ``root`` of a store, or of a small classic one."""
    run = UpgradeRun(root)
    run.begin(source or _small_store(root / "source"))
    run.apply(plan_alignment(run.situation()))
    run.apply(plan_switch(run.situation()))
    return run


def _small_store(root: Path) -> Path:
    with Broker(root=root, topics=["before:4"], settings=SMALL_STORE) as broker:
        with BlockingConnection(broker.address) as connection:
            for number in range(200):
                request = send_request("before", number % 4, [b"before %d" % number])
                if connection.call(request).code:
                    raise RmqError("a message of the small store was refused")
        broker.stop()
        return broker.store


def shown_sizes(store: Path) -> dict[str, str]:
    """Return the broker.conf keys with the file sizes of an existing store."""
    plan = SurveyPlan(name="sizes", root=os.fspath(store), now_ms=lambda: 0, md5=Md5.NONE)
    settings = shown_settings(LocalReplica(OsFileSystem(), plan).survey())
    return {
        "mappedFileSizeCommitLog": str(settings.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(settings.mapped_file_size_consume_queue),
        "maxHashSlotNum": str(settings.max_hash_slot_num),
        "maxIndexNum": str(settings.max_index_num),
    }
