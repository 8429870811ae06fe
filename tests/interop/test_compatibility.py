"""A sample of the judges of docs/reference/compatibility.md; tox -e card runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from compatibility import apache
from compatibility.cases import SETTINGS
from compatibility.client_runner import run_clients
from compatibility.targets import TARGETS, JudgedCluster
from foreign_clients import CLIENTS, maven

pytestmark = pytest.mark.interop

CLASSES = (
    "base.dledger.DLedgerProduceAndConsumeIT",
    "client.consumer.filter.SqlFilterIT",
    "client.producer.order.OrderMsgWithTagIT",
    "smoke.NormalMessageSendAndRecvIT",
)


@pytest.mark.parametrize("servers", ["classic", "dledger"])
def test_apaches_tests_pass(tmp_path: Path, servers: str) -> None:
    if (reason := maven.missing()) is not None:
        pytest.skip(reason)
    assert set(CLASSES) <= set(apache.test_classes(apache.program()))
    cluster = JudgedCluster(TARGETS[servers], tmp_path / "servers", names=apache.BROKERS)
    with cluster:
        outcomes = apache.run_tests(cluster, CLASSES, tmp_path, jobs=2)
    assert {name.partition("#")[0] for name in outcomes} == set(CLASSES)
    assert {each.outcome for each in outcomes.values()} == {"passed"}, outcomes


@pytest.mark.parametrize("name", ["java-5.3.3", "go-2.1.3", "node-3.12.0"])
def test_a_client_does_what_it_can(tmp_path: Path, name: str) -> None:
    client = CLIENTS[name]
    if (reason := client.missing()) is not None:
        pytest.skip(reason)
    cases = ("sync", "ordered", "tags", "offsets")
    with JudgedCluster(TARGETS["dledger"], tmp_path / "servers", settings=SETTINGS) as cluster:
        [(_, outcomes)] = run_clients(cluster, {name: client}, cases, tmp_path / "probe", jobs=1)
    assert {case: each.outcome for case, each in outcomes.items()} == dict.fromkeys(cases, "passed")
