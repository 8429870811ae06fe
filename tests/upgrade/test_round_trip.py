"""Three replicas in memory switch to DLedger, leave it, and switch again.

A certificate at each stage proves that every message of every earlier stage is unchanged.
"""

from __future__ import annotations

import pytest
from attrs import define, evolve, field
from harness.store import CrashingFiles, KilledError
from harness.upgrade import MakeUpgradeRig, UpgradeRig

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import apply_plan, finalize, resume, roll_back
from rmqpy.upgrade.plan.journal import APPLIED
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving, plan_switch
from rmqpy.upgrade.steps.states import GroupState, detect

NAMES = ("n0", "n1", "n2")
PEERS = "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911"
TABLES = {
    "topics.json": b'{"topicConfigTable":{"Topic":{}}}',
    "subscriptionGroup.json": b'{"subscriptionGroupTable":{}}',
    "consumerOffset.json": b'{"offsetTable":{"Topic@g":{0:7}}}',
}
CONF = """brokerName=b0
mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=400
maxHashSlotNum=10
maxIndexNum=20
storePathRootDir=/{name}
"""


@define
class Trio:
    """Three replicas that receive the same messages at the same times, as slaves and members do."""

    files: CrashingFiles
    rigs: dict[str, UpgradeRig]
    flag: bool = False
    time_ms: int = 0
    past: list[Manifest] = field(factory=list)

    def write(self, names: tuple[str, ...], *numbers: int) -> None:
        self.time_ms += 100_000
        for name in names:
            rig = self.rigs[name].with_flag(self.flag)
            rig.clock = ManualScheduler()
            rig.clock.advance(self.time_ms)
            rig.write(*numbers)

    def context(self) -> PlanContext:
        settings = {name: rig.with_flag(self.flag).settings() for name, rig in self.rigs.items()}
        replicas = [
            LocalReplica(
                self.files,
                SurveyPlan(
                    name=name,
                    root=f"/{name}",
                    config_path=f"/{name}.conf",
                    settings=settings[name],
                    now_ms=lambda: 5,
                ),
            )
            for name in NAMES
        ]
        options = SwitchOptions(
            peers=PEERS,
            self_ids={name: name for name in NAMES},
            roles={"n0": "SYNC_MASTER", "n1": "SLAVE", "n2": "SLAVE"},
        )
        group = Group(tuple(replicas))
        return PlanContext(group=group, files=self.files, options=options, settings=settings)

    def apply(self, plan: Plan) -> None:
        made = self.context()
        for part in plan.nodes:
            apply_plan(made.node_context(made.group.replica(part.replica)), plan, part.replica)

    def node(self, name: str) -> NodeContext:
        made = self.context()
        return made.node_context(made.group.replica(name))

    def apply_interrupted(self, plan: Plan, operations: int) -> None:
        """Apply a plan; each node is killed after so many operations, and resumes."""
        for part in plan.nodes:
            self.files.dies_at = self.files.operations + operations
            with pytest.raises(KilledError):
                apply_plan(self.node(part.replica), plan, part.replica)
            self.files = self.files.reopen(None)
            self.rigs = {name: evolve(rig, files=self.files) for name, rig in self.rigs.items()}
            assert resume(self.node(part.replica)).state == APPLIED

    def finalize(self) -> None:
        made = self.context()
        for replica in made.group.replicas:
            finalize(made.node_context(replica))

    def remember(self) -> None:
        self.past.append(self.context().group.survey("n0").manifest)

    def certify(self) -> int:
        """Check against each earlier stage; return the number of messages moved since the first."""
        manifests = [survey.manifest for survey in self.context().group.surveys]
        readers = {
            name: QueueMessages(self.files, read_directory(self.files, f"/{name}"))
            for name in NAMES
        }
        moved = []
        for before in self.past:
            certificate = certify([before, *manifests], 1, readers, earlier=1)
            assert certificate.holds, list(certificate_lines(certificate))
            contained = [each for each in certificate.comparisons if each.may_have_more]
            assert [each.same for each in contained] == [before.messages] * 3
            moved.append(max(each.moved for each in contained))
        return moved[0]

    def bytes_of(self, folder: str) -> list[dict[str, bytes]]:
        return [
            {
                path.rpartition("/")[2]: bytes(node.data)
                for path, node in self.files.nodes.items()
                if path.startswith(f"/{name}/{folder.format(name=name)}/")
            }
            for name in NAMES
        ]


@pytest.fixture
def trio(make_rig: MakeUpgradeRig) -> Trio:
    files = CrashingFiles()
    rigs = {
        name: make_rig(files=files, root=f"/{name}", self_id=name, changes={"dledger_peers": PEERS})
        for name in NAMES
    }
    for name in NAMES:
        files.put(f"/{name}.conf", CONF.format(name=name).encode())
        for path, table in TABLES.items():
            files.put(f"/{name}/config/{path}", table)
    made = Trio(files, rigs)
    made.write(("n0", "n1"), *range(12))
    made.write(("n0",), *range(12, 20))
    return made


def switch(trio: Trio) -> int:
    """Align and switch the replicas; return the divided offset."""
    assert detect(trio.context().group) is GroupState.LAGGING
    trio.remember()
    trio.apply(plan_alignment(trio.context()))
    trio.certify()
    assert {each.check for each in run_checks(trio.context().group) if not each.is_note} == set()
    trio.apply(plan_switch(trio.context()))
    group = trio.context().group
    assert detect(group) is GroupState.SEALED
    trio.certify()
    trio.finalize()
    trio.flag = True
    (divide,) = {group.divide(replica) for replica in group.replicas}
    assert divide is not None
    return divide


def leave(trio: Trio) -> None:
    assert detect(trio.context().group) is GroupState.JOINED
    trio.remember()
    trio.apply(plan_leaving(trio.context()))
    trio.flag = False
    group = trio.context().group
    assert detect(group) in (GroupState.ALIGNED, GroupState.SEALED)
    logs = trio.bytes_of("commitlog")
    assert logs[0] == logs[1] == logs[2]
    trio.finalize()


@pytest.mark.slow
def test_messages_are_certified_through_two_switches_and_ways_back(trio: Trio) -> None:
    divides = []
    for turn in range(2):
        divides.append(switch(trio))
        trio.write(NAMES, *range(1000 * turn + 100, 1000 * turn + 130))
        ledgers = trio.bytes_of("dledger-{name}/data")
        assert ledgers[0] == ledgers[1] == ledgers[2] != {}
        trio.certify()
        leave(trio)
        assert trio.certify() == 0, "no message of the first stage has moved"
        # A classic master and its slave accept messages; the third machine is missing.
        trio.write(("n0", "n1"), *range(1000 * turn + 200, 1000 * turn + 208))
        trio.write(("n0",), *range(1000 * turn + 208, 1000 * turn + 212))
    assert divides[1] > divides[0] + 30 * 100
    assert switch(trio) > divides[1]
    records = [trio.rigs[name].with_flag(True).records() for name in NAMES]
    assert sum(map(len, records[0].values())) == 20 + 2 * (30 + 12)
    assert records[0] == records[1] == records[2]


@pytest.mark.slow
def test_a_second_round_does_everything_again_and_resumes(trio: Trio) -> None:
    """Its entries have the indices of the first round, and nothing of that was made final."""
    trio.apply(plan_alignment(trio.context()))
    turned = []
    for _ in range(2):
        trio.apply(plan_switch(trio.context()))
        trio.flag = True
        trio.write(NAMES, *range(100, 110))
        trio.remember()
        turned.append(trio.bytes_of("dledger-{name}/data"))
        trio.apply_interrupted(plan_leaving(trio.context()), 60)
        trio.flag = False
        assert detect(trio.context().group) in (GroupState.ALIGNED, GroupState.SEALED)
        trio.certify()
    trio.flag = True
    for name in NAMES:
        roll_back(trio.node(name))
    assert trio.bytes_of("dledger-{name}/data") == turned[1] != turned[0]


@pytest.mark.slow
def test_a_changed_message_is_not_certified(trio: Trio) -> None:
    switch(trio)
    trio.write(NAMES, *range(100, 120))
    leave(trio)
    for name in NAMES:
        # FLAG is the same on all replicas: only the earlier manifest shows the change.
        data = trio.files.nodes[f"/{name}/commitlog/{0:020d}"].data
        data[19] ^= 1
    manifests = [survey.manifest for survey in trio.context().group.surveys]
    assert not certify([trio.past[0], *manifests], 1, earlier=1).holds
    assert certify(manifests, 1).holds
