"""``rmqpy rehearse`` beside a live master and slave, Java 4.9 or 5.3: killed, and never counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.interop import InteropServers, version_of

from rmqpy.testing.java import Event, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, python_environment

pytestmark = pytest.mark.interop

DEADLINE_S = 120
SETTINGS = {"haSendHeartbeatInterval": "1000"}
"""A Java slave sends its first report when it has been silent for this time."""


def java_pair(
    servers: InteropServers, kind: str, name_server: str
) -> tuple[ServerProcess, ServerProcess]:
    """Start a SYNC_MASTER and its slave. 5.x counts the master, and so waits for no slave by
    default.
    """
    waits = {"inSyncReplicas": "2"} if kind == "java-5.3.3" else {}
    roles = (
        {"brokerRole": "SYNC_MASTER", **waits},
        {"brokerRole": "SLAVE", "brokerId": "1"},
    )
    master, slave = (
        servers.take(
            version_of(servers, kind)
            .broker(
                f"rehearse-{kind}-{role['brokerRole']}",
                BrokerSpec(
                    port=servers.block(BROKER_PORT_COUNT).broker_port,
                    namesrv=name_server,
                    settings={**SETTINGS, **role},
                ),
            )
            .start()
        )
        for role in roles
    )
    return master, slave


def send(probe: Probe, first: int, count: int) -> Counter[str]:
    """Send messages and return how many had which status."""
    events: list[Event] = probe.run(
        "send", topic="T", count=count, first=first, sizes="3000", retryMs=30_000, timeout_s=200
    )
    return Counter(event["status"] for event in events if event["event"] == "sent")


def send_until_acknowledged(probe: Probe, first: int) -> int:
    """Send until the slave acknowledges, and return the number of the next message."""
    deadline = time.monotonic() + DEADLINE_S
    while "SEND_OK" not in send(probe, first, 1):
        first += 1
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return first + 1


def start(name_server: str, folder: Path, rate: str) -> subprocess.Popen[str]:
    words = ["rehearse", "-n", name_server, "-b", "broker-a", "--dir", str(folder), "--rate", rate]
    return subprocess.Popen(
        [sys.executable, "-m", "rmqpy.cli", *words],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def copied_beyond(command: subprocess.Popen[str], folder: Path, offset: int) -> int:
    """Wait until the running command has copied beyond ``offset``, and return how far."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        status: dict[str, Any] = {}
        if (folder / "status.json").exists():
            status = json.loads((folder / "status.json").read_text())
        if status.get("state") == "copying" and status["end"] > offset:
            return int(status["end"])
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["java", "java-5.3.3"])
def test_a_live_sync_master_is_copied_and_never_acknowledged_by_the_copy(
    servers: InteropServers, kind: str, tmp_path: Path
) -> None:
    namesrv = servers.namesrv("rmqpy", f"rehearse-{kind}-namesrv")
    probe = servers.probe.at(namesrv.address)
    master, slave = java_pair(servers, kind, namesrv.address)
    probe.run("createTopic", topic="T", broker=master.address, readQueues=4, writeQueues=4)
    first = send_until_acknowledged(probe, 0)
    assert send(probe, first, 1000) == {"SEND_OK": 1000}
    first += 1000
    folder = tmp_path / "rehearsal"

    command = start(namesrv.address, folder, "0.25")
    killed_at = copied_beyond(command, folder, 1 << 19)
    command.send_signal(signal.SIGKILL)
    command.wait()

    command = start(namesrv.address, folder, "0.25")
    assert copied_beyond(command, folder, killed_at) < killed_at + (1 << 20), "it has continued"
    statuses: list[Counter[str]] = []
    load = threading.Thread(target=lambda: statuses.append(send(probe, first, 100)))
    load.start()
    load.join(DEADLINE_S)
    assert statuses == [{"SEND_OK": 100}]
    first += 100

    os.kill(slave.pid, signal.SIGSTOP)
    try:
        assert "SEND_OK" not in send(probe, first, 1), "the copy has acknowledged"
    finally:
        os.kill(slave.pid, signal.SIGCONT)
    send_until_acknowledged(probe, first + 1)
    output, _ = command.communicate(timeout=2 * DEADLINE_S)
    assert command.returncode == 0, output
    assert "READY: broker-a was there and back on the copy" in output
    assert " messages acknowledged meanwhile, 0 lost" in output

    slave.stop()
    master.stop()
    assert master.store is not None
    end = json.loads((folder / "report.json").read_text())["end"]
    files = sorted((folder / "shadow/store/commitlog").iterdir())
    copied = b"".join(file.read_bytes() for file in files)[:end]
    log = b"".join(file.read_bytes() for file in sorted((master.store / "commitlog").iterdir()))
    assert len(copied) == end > killed_at and copied == log[:end]
    namesrv.stop()
