"""The replicas of a group on disk, which tests damage, and what the checks find in them."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import define

from rmqpy.codec.backend import scan_records
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.survey import SurveyPlan

NOW_MS = 1_800_000_000_000
FILE = "commitlog/00000000000000196608"
"""The last log file of the golden stores."""
CONF = """brokerClusterName=DefaultCluster
brokerName={name}
listenPort={port}
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
storePathRootDir={root}
{more}"""


@define
class Replicas:
    """The replicas of a group on disk, with the broker.conf files written so far."""

    root: Path
    names: tuple[str, ...]
    confs: dict[str, Path]

    broker_name: str = "b0"

    def write_conf(self, name: str, more: str, port: int = 15911) -> None:
        path = self.root / f"{name}.conf"
        root = self.root / name
        text = CONF.format(name=self.broker_name, port=port, root=root, more=more)
        path.write_text(text)
        self.confs[name] = path

    def path(self, name: str, file: str) -> Path:
        return self.root / name / file

    def edit(self, name: str, file: str, position: int, data: bytes) -> None:
        with self.path(name, file).open("r+b") as opened:
            opened.seek(position)
            opened.write(data)

    def end(self, name: str) -> int:
        """Return the position after the last record of the last file."""
        data = self.path(name, FILE).read_bytes()
        return scan_records(memoryview(data), 0, dledger=False, check_crc=False).end

    def group(self) -> Group:
        replicas = []
        for name in self.names:
            conf = self.confs.get(name)
            plan = SurveyPlan(
                name=name,
                root=os.fspath(self.root / name),
                config_path=os.fspath(conf) if conf else None,
                now_ms=lambda: NOW_MS,
            )
            replicas.append(LocalReplica(OsFileSystem(), plan))
        return Group(tuple(replicas))

    def found(self) -> set[str]:
        return {each.check for each in run_checks(self.group()) if not each.is_note}

    def noted(self) -> set[str]:
        return {each.check for each in run_checks(self.group()) if each.is_note}
