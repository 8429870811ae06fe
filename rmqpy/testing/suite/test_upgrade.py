"""The suite: switch one store to DLedger and back, and certify each stage.

The tests depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.fixtures import PROBE_TOPIC, UpgradeFixture, UpgradeRun
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving, plan_switch
from rmqpy.upgrade.steps.states import GroupState, detect

ADDED = 100


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--rmq-store")
    if not given:
        # Skipped tests would look like success.
        pytest.exit(
            "found no store to test; give --rmq-store DIR, a broker's storePathRootDir",
            returncode=1,
        )
    return Path(given)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpgradeFixture]:
    fixture = UpgradeFixture(tmp_path_factory.mktemp("servers"))
    yield fixture
    fixture.close()


@pytest.fixture(scope="module")
def journey(store: Path, tmp_path_factory: pytest.TempPathFactory) -> UpgradeRun:
    run = UpgradeRun(tmp_path_factory.mktemp("replicas"))
    run.begin(store)
    return run


@pytest.fixture(scope="module")
def before(journey: UpgradeRun) -> Manifest:
    """The manifest of the store before anything is changed."""
    return journey.situation().group.survey("n0").manifest


def test_check_finds_the_empty_replica_only(journey: UpgradeRun, before: Manifest) -> None:
    found = [each for each in run_checks(journey.situation().group) if not each.is_note]
    others = [each for each in found if "n2" not in each.replica]
    assert not others, "\n".join(map(str, others))


def test_plan_and_apply_align_all(journey: UpgradeRun, before: Manifest) -> None:
    journey.apply(plan_alignment(journey.situation()))
    situation = journey.situation()
    assert detect(situation.group) in (GroupState.ALIGNED, GroupState.SEALED)
    assert plan_alignment(situation).is_empty
    assert journey.certificate(before).holds


def test_switch_seals_and_configures(journey: UpgradeRun, before: Manifest) -> None:
    journey.apply(plan_switch(journey.situation()))
    group = journey.situation().group
    assert detect(group) is GroupState.SEALED
    assert len({group.divide(replica) for replica in group.replicas}) == 1


def test_a_group_of_three_serves_and_takes_messages(
    journey: UpgradeRun, ground: UpgradeFixture, before: Manifest
) -> None:
    group = ground.group(journey.stores)
    with BlockingConnection(group.leader().address) as connection:
        for number in range(ADDED):
            reply = connection.call(send_request(PROBE_TOPIC, 0, [b"added %d" % number]))
            assert reply.code == 0, reply.remark
    group.stop()


def test_verify_after_the_switch(journey: UpgradeRun, before: Manifest) -> None:
    certificate = journey.certificate(before)
    assert certificate.holds, "\n".join(map(str, certificate.subjects))
    assert certificate.subjects[1].messages >= before.messages + ADDED


def test_leave_takes_all_back_to_a_classic_log(journey: UpgradeRun, before: Manifest) -> None:
    journey.apply(plan_leaving(journey.situation()))
    assert detect(journey.situation().group) in (GroupState.ALIGNED, GroupState.SEALED)


def test_verify_after_the_way_back(journey: UpgradeRun, before: Manifest) -> None:
    certificate = journey.certificate(before)
    assert certificate.holds, "\n".join(map(str, certificate.subjects))
    assert certificate.subjects[1].messages >= before.messages + ADDED


def test_a_classic_broker_serves_it(
    journey: UpgradeRun, ground: UpgradeFixture, before: Manifest
) -> None:
    broker = ground.broker(journey.stores["n0"])
    with BlockingConnection(broker.address) as connection:
        assert connection.call(send_request(PROBE_TOPIC, 0, [b"after"])).code == 0
    broker.server.stop()
    assert read_store(journey.stores["n0"]).problems == []


def test_the_java_broker_serves_it(
    journey: UpgradeRun, ground: UpgradeFixture, before: Manifest, request: pytest.FixtureRequest
) -> None:
    version = request.config.getoption("--rmq-java")
    if not version:
        pytest.skip("--rmq-java VERSION is not given")
    home = JavaHome(version)
    reason = home.missing()
    if reason is not None:
        pytest.skip(reason)
    spec = ground.spec(ground.namesrv(), journey.stores["n1"])
    server = JavaSite(ground.root / "java", home).broker("java", spec)
    with server, BlockingConnection(server.address) as connection:
        assert connection.call(send_request(PROBE_TOPIC, 0, [b"java"])).code == 0
    assert read_store(journey.stores["n1"]).problems == []
