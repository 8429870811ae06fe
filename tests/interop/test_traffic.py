"""Traffic of Java clients at a Java broker is recorded, and replayed at Java and at rmqpy,
before and after an upgrade of a copy of the store.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.interop import create_topic_when_ready

from rmqpy.cli import main
from rmqpy.demo.store_copy import copy_store
from rmqpy.testing import Broker
from rmqpy.testing.fixtures import shown_sizes, switched_run
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, ServerProcess, python_environment

pytestmark = pytest.mark.interop

COUNT = 120
SECONDS_MAX = 120


@pytest.fixture
def site(tmp_path: Path) -> JavaSite:
    home = JavaHome("4.9.7")
    if (reason := home.missing()) is not None:
        pytest.skip(reason)
    return JavaSite(tmp_path / "java", home)


@pytest.fixture
def java(site: JavaSite) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
    namesrv = site.namesrv("namesrv", ports[0].first)
    with namesrv:
        spec = BrokerSpec(
            port=ports[1].broker_port,
            namesrv=namesrv.address,
            settings={"autoCreateTopicEnable": "true"},
        )
        with site.broker("source", spec) as broker:
            yield namesrv, broker


def replayed(capsys: pytest.CaptureFixture[str], file: Path, *targets: str) -> list[dict[str, Any]]:
    words = [word for target in targets for word in ("--to", target)]
    main(["replay", str(file), *words, "--speed", "0", "--format", "json", "--log-level", "ERROR"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_java_traffic_is_the_same_at_java_and_rmqpy_before_and_after_an_upgrade(
    site: JavaSite,
    java: tuple[ServerProcess, ServerProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    namesrv, broker = java
    with site.probe(namesrv.address, "first") as probe:
        create_topic_when_ready(probe, "Orders", broker)
        probe.run("send", topic="Orders", count=20, retryMs=10_000)
    broker.stop()
    assert broker.store is not None
    copy_store(broker.store, tmp_path / "before")
    broker.start()
    file = tmp_path / "traffic.rec"
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "rmqpy.cli", "record", str(file)),
            *("--to", broker.address, "-n", namesrv.address),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    assert recorder.stdout is not None
    where = json.loads(recorder.stdout.readline())
    with site.probe(where["name_server"], "recorded") as probe:
        probe.run("send", topic="Orders", count=COUNT, retryMs=10_000)
        received = probe.run("consume", topic="Orders", group="readers", max=COUNT)
    assert sum(event["event"] == "received" for event in received) >= COUNT
    recorder.send_signal(signal.SIGTERM)
    recorder.communicate(timeout=SECONDS_MAX)
    sizes = shown_sizes(tmp_path / "before")
    store = tmp_path / "at-rmqpy"
    copy_store(tmp_path / "before", store)
    with Broker(stores={"broker": store}, settings={"brokerName": "broker-a", **sizes}) as classic:
        again = replayed(capsys, file, classic.address)
    run = switched_run(tmp_path / "upgraded", tmp_path / "before")
    settings = {"brokerName": "broker-a", **sizes}
    with Broker(members=3, stores=run.stores, settings=settings) as group:
        again += replayed(capsys, file, group.address)
    # The Java broker itself is a target whose offsets have all moved.
    again += replayed(capsys, file, broker.address)
    for result in again:
        assert result["differences"] == [], result
        assert result["messages"] >= COUNT
        assert result["answers"] > COUNT
