"""Offline changes of a log know what a switch or a leave of the running group has recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.upgrade import PEERS, SHOWN, RunUpgrade

from rmqpy.broker.assembly.leave.record import checked_configuration, leave_journal
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.replication.leave_protocol import SLAVE
from rmqpy.broker.replication.switch_protocol import SwitchPlan, SwitchRecord, SwitchStage
from rmqpy.config.loading import BrokerConfiguration, load_broker_configuration
from rmqpy.store.files.disk import OsFileSystem

LEAVE = f"leave {SHOWN} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE --apply"
SWITCH = f"switch {SHOWN} --peers '{PEERS}' --self-id n0=n0 --self-id n1=n1 --self-id n2=n2"
MEMBERS = ("n0", "n1", "n2")


def journals(root: Path, member: str) -> tuple[SwitchJournal, SwitchJournal]:
    store = str(root / member)
    return SwitchJournal(OsFileSystem(), store), leave_journal(OsFileSystem(), store)


def record(coordinator: str, member: str, stage: SwitchStage) -> SwitchRecord:
    brokers = {each: f"127.0.0.1:{10911 + number}" for number, each in enumerate(MEMBERS)}
    brokers[SLAVE] = "127.0.0.1:10999"
    plan = SwitchPlan(
        switch="s1", group="b0", coordinator=coordinator, peers=PEERS, brokers=brokers
    )
    return SwitchRecord(stage, plan, member)


def configuration(root: Path, member: str) -> BrokerConfiguration:
    path = root / f"{member}.conf"
    return load_broker_configuration(path, {}, {"HOME": str(root)}).configuration


@pytest.mark.slow
def test_a_member_that_has_left_is_converted_offline_and_switched_again(
    joined: Path, run: RunUpgrade
) -> None:
    for member in MEMBERS:
        switched, left = journals(joined, member)
        (joined / member / "rmqpy").mkdir(exist_ok=True)
        switched.write(record("n0", member, SwitchStage.COMMITTED))
        left.write(record(SLAVE, member, SwitchStage.COMMITTED))
    code, _, err = run(LEAVE)
    assert code == 0, err
    for member in MEMBERS:
        switched, left = journals(joined, member)
        assert switched.read() is None and left.read() is None
        # Neither does the next start become a member again.
        classic = configuration(joined, member)
        assert not switched.configuration(classic).store.enable_dledger_commit_log

    # As if the records had remained in the converted stores.
    for member in MEMBERS:
        journals(joined, member)[1].write(record(SLAVE, member, SwitchStage.COMMITTED))
    code, _, err = run(SWITCH)
    assert code == 0, err
    for member in MEMBERS:
        again = configuration(joined, member)
        assert checked_configuration(journals(joined, member)[1], again) == again
    assert run("rollback n1")[0] == 0
    assert journals(joined, "n1")[1].read() is not None


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind", "knows"), [(0, "switch", "n0"), (1, "leave", SLAVE)])
def test_an_undecided_broker_is_not_changed_offline(
    joined: Path, run: RunUpgrade, number: int, kind: str, knows: str
) -> None:
    (joined / "n1/rmqpy").mkdir(exist_ok=True)
    undecided = record(knows, "n1", SwitchStage.PREPARED)
    journals(joined, "n1")[number].write(undecided)
    code, _, err = run(LEAVE)
    assert code == 2 and f"n1: found a {kind} that is undecided" in err
    assert undecided.plan.brokers[knows] in err
    assert journals(joined, "n1")[number].read() == undecided
