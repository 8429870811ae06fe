"""``rmqpy upgrade join`` on a member that has committed entries which its group does not have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import define
from harness.dledger_group import Group, Member

from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.findings import Group as Replicas
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import apply_plan, roll_back
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.given_up import FACT, check_given_up
from rmqpy.upgrade.steps.join_verdict import JoinVerdict, judge_member
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions
from rmqpy.upgrade.steps.planning import plan_joining

ROOT = "/store"


@define
class Diverged:
    """A group in which ``keeper``, which is stopped, has entries that the others have lost."""

    group: Group
    keeper: Member
    leader: Member

    def context(self) -> PlanContext:
        replicas = [
            LocalReplica(
                member.files,
                SurveyPlan(
                    name=member.name,
                    root=ROOT,
                    settings=member.settings(),
                    now_ms=self.group.scheduler.now_ms,
                ),
            )
            for member in (self.keeper, self.leader)
        ]
        return PlanContext(
            group=Replicas(tuple(replicas)),
            files=self.keeper.files,
            options=SwitchOptions(reference=self.leader.name),
            settings={each.name: each.settings() for each in (self.keeper, self.leader)},
        )

    def plan(self, *, given_up: bool = False) -> Plan:
        return plan_joining(self.context(), self.keeper.name, given_up=given_up)

    def judge(self) -> JoinVerdict:
        group = self.context().group
        return judge_member(group.replica(self.keeper.name), group.replica(self.leader.name))

    def apply(self, plan: Plan) -> None:
        context = self.context()
        node = context.node_context(context.group.replica(self.keeper.name))
        apply_plan(node, plan, self.keeper.name, "aligned")

    def roll_back(self) -> None:
        context = self.context()
        roll_back(context.node_context(context.group.replica(self.keeper.name)))

    def returns(self) -> None:
        """Start the keeper, and expect that it follows."""
        assert self.leader.driver is not None
        self.group.start(self.keeper.number)
        self.group.run(10_000)
        assert self.keeper.driver is not None
        assert self.keeper.driver.node.fault is None
        ledgers = [member.data() for member in self.group.members]
        assert ledgers[0] == ledgers[1] == ledgers[2]


def diverged(lost: Sequence[bytes], instead: Sequence[bytes]) -> Diverged:
    """Return a group that has committed ``lost``; two members have lost these messages, and have
    committed ``instead``.
    """
    group = Group.of()
    group.start(0, 1, 2)
    keeper = group.elect()
    others = [member for member in group.members if member is not keeper]
    group.send(keeper, b"durable")
    group.run(4000)
    for member in others:
        assert member.broker is not None
        member.broker.log_flusher.stop(lambda: None)
    replies = group.send(keeper, *lost)
    assert {reply.code for reply in replies} == {0}
    for member in others:
        group.kill(member.number, power=True)
    group.stop(keeper.number)
    group.start(*(member.number for member in others))
    leader = group.elect()
    if instead:
        assert {reply.code for reply in group.send(leader, *instead)} == {0}
    group.start(keeper.number)
    group.run(5000)
    assert keeper.driver is not None and "diverged from" in (keeper.driver.node.fault or "")
    group.stop(keeper.number)
    return Diverged(group, keeper, leader)


@pytest.mark.slow
@pytest.mark.parametrize(
    "instead", [[], [b"other"], [b"other %d" % number for number in range(60)]], ids=len
)
@pytest.mark.parametrize("count", [1, 60])
def test_a_diverged_member_joins_again(count: int, instead: list[bytes]) -> None:
    lost = [b"lost %d " % number + bytes(100) for number in range(count)]
    case = diverged(lost, instead)
    if not instead:
        assert case.plan().is_empty, "the leader may only lag"
    plan = case.plan(given_up=not instead)
    assert plan.facts[FACT] == {
        "messages": count,
        "topics": {"T": count},
        "replicas": {case.keeper.name: count},
    }
    with pytest.raises(UpgradeRefusedError, match=f"expected --give-up {count}"):
        check_given_up(plan, None)
    check_given_up(plan, count)
    judged = case.judge()
    assert judged.can_join is (not instead) and judged.has_more is (not instead)
    case.apply(plan)
    judged = case.judge()
    assert judged.can_join and not judged.has_more, judged
    for folder in ("consumequeue", "index"):
        # A Java broker would leave the bytes of the units that lead to removed messages.
        assert not case.keeper.files.exists(f"{ROOT}/{folder}")
    case.returns()
    assert case.group.read(case.keeper) == [b"durable", *instead]
    assert [reply.code for reply in case.group.send(case.leader, b"after")] == [0]


@pytest.mark.slow
def test_a_rollback_returns_the_entries() -> None:
    case = diverged([b"lost"], [b"other"])
    before = case.keeper.data()
    case.apply(case.plan())
    assert case.keeper.data() != before
    case.roll_back()
    assert case.keeper.data() == before
    assert not case.keeper.files.exists(f"{upgrade_work(ROOT)}/keep")
    case.apply(case.plan())
    case.returns()


@pytest.mark.slow
def test_nothing_is_removed_from_a_member_that_only_lags() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    group.send(leader, b"a")
    group.run(4000)
    follower = next(member for member in group.members if member is not leader)
    group.stop(follower.number)
    group.send(leader, b"b")
    case = Diverged(group, follower, leader)
    plan = case.plan()
    assert plan.is_empty and FACT not in plan.facts
    case.returns()
