"""What must work wherever rmqpy can be installed: brokers for tests, clients, and tools.

It is run with an installed package and nothing else of the repository (.ci/wheel.py, and
cibuildwheel), and without what only Linux has (test_without_linux.py); its name keeps it out of the
other suites.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rmqpy.testing import Broker


def tool(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rmqpy.cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_broker_and_its_clients() -> None:
    with Broker(topics=["Orders:2"]) as broker:
        sent = broker.send("Orders", b"order 7")
        assert sent.queue_offset == 0
        broker.kill()
        broker.start()
        assert [message.body for message in broker.messages("Orders")] == [b"order 7"]
        assert "broker" in tool("admin", "clusterList", "-n", broker.name_server)


def test_a_group_of_members() -> None:
    with Broker(members=3) as group:
        group.send("Orders", b"order 7")
        assert [message.body for message in group.messages("Orders")] == [b"order 7"]


def test_a_store_is_read_by_the_tools(tmp_path: Path) -> None:
    with Broker(topics=["Orders:1"], root=tmp_path) as broker:
        store = str(broker.store)
        broker.send("Orders", b"order 7")
        assert json.loads(tool("store", "inspect", store, "--format", "json"))["running"] is True
    assert json.loads(tool("store", "fsck", store, "--format", "json"))["clean"] is True
    assert '"body": "order 7"' in tool("store", "dump", store)
