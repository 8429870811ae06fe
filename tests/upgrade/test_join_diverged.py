"""``rmqpy upgrade join`` on a member that has entries which its group does not have, because the
others have lost them, or because one term had two leaders.
"""

from __future__ import annotations

import logging
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
    assert not judged.can_join and judged.has_more is (not instead)
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


def two_leaders(lost: int, instead: int, *, clean: bool) -> Diverged:
    """Return a group whose keeper has committed ``lost`` messages with n1; n1 was restored from a
    backup that is older than its vote for the keeper, and has committed ``instead`` messages with
    n2 in the same term. The keeper is stopped cleanly, or loses its power.
    """
    group = Group.of()
    group.start(0, 1, 2)
    group.send(group.elect(), b"durable")
    group.run(4000)
    group.stop(0, 1, 2)
    backup = group.members[1].files.kill()
    group.start(0, 1)
    keeper = group.elect()
    assert keeper is group.members[0] and keeper.driver is not None
    term = keeper.driver.node.term
    replies = group.send(keeper, *[b"lost %d" % number for number in range(lost)])
    assert [reply.code for reply in replies] == [0] * lost
    if clean:
        group.stop(0)
    else:
        group.kill(0, power=True)
    group.kill(1)
    group.members[1].files = backup
    group.start(1, 2)
    leader = group.elect()
    assert leader.driver is not None and leader.driver.node.term == term
    replies = group.send(leader, *[b"other %d" % number for number in range(instead)])
    assert [reply.code for reply in replies] == [0] * instead
    return Diverged(group, keeper, leader)


def entries(member: Member) -> dict[str, bytes]:
    return {path: data for path, data in member.data().items() if path.startswith("data/")}


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("lost", "instead"), [(1, 1), (9, 1), (1, 9), (9, 9)])
def test_a_member_keeps_entries_that_differ_from_those_of_the_same_term(
    lost: int, instead: int, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    case = two_leaders(lost, instead, clean=clean)
    keeper = case.keeper
    before = entries(keeper)
    case.group.start(0)
    assert keeper.driver is not None
    committed = keeper.driver.node.committed_index
    with caplog.at_level(logging.WARNING):
        case.group.run(10_000)
    fault = keeper.driver.node.fault
    assert fault is not None and "both are of term 2. The term had two leaders" in fault
    assert any(fault in text for text in caplog.messages)
    assert keeper.driver.node.committed_index == committed, "committed without proof"
    assert entries(keeper) == before


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
def test_a_member_joins_again_after_its_term_had_two_leaders(clean: bool) -> None:
    case = two_leaders(2, 3, clean=clean)
    plan = case.plan()
    assert plan.facts[FACT] == {
        "messages": 2,
        "topics": {"T": 2},
        "replicas": {case.keeper.name: 2},
    }
    assert not case.judge().can_join
    case.apply(plan)
    case.returns()
    assert case.group.read(case.keeper) == [b"durable", b"other 0", b"other 1", b"other 2"]


@pytest.mark.slow
def test_a_changed_entry_with_equal_entries_after_it_is_damage() -> None:
    group = Group.of()
    group.start(0, 1, 2)
    leader = group.elect()
    group.send(leader, b"a", b"b", b"c")
    group.run(4000)
    group.stop(0, 1, 2)
    keeper, reference = group.members[:2]
    path = next(path for path in keeper.files.nodes if path.endswith("data/" + "0" * 20))
    data = bytearray(keeper.files.read_bytes(path))
    data[data.index(b"b\x01T") - 60] ^= 1
    keeper.files.replace_bytes(path, bytes(data))
    with pytest.raises(UpgradeRefusedError, match="later entries are; expected the same entry"):
        Diverged(group, keeper, reference).plan()
