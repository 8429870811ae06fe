"""``rmqpy store`` on the directory of a running broker, which is not disturbed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.cli import start_process, write_broker_conf

from rmqpy.cli import main
from rmqpy.testing.ports import free_port_block


@pytest.fixture
def running(copy_of: Callable[[str], Path], tmp_path: Path) -> Iterator[Path]:
    """Run our broker on the store of a killed Java broker, and yield the store."""
    store = copy_of("A-classic-killed-v497")
    block = free_port_block(4)
    conf = write_broker_conf(
        tmp_path, block.broker_port, brokerName="broker-a", storePathRootDir=str(store)
    )
    broker = start_process(["broker", "-c", str(conf)])
    assert broker.stdout is not None and broker.stdout.readline().startswith("ready:")
    yield store
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=30)
    assert broker.returncode == 0


@pytest.mark.slow
def test_the_store_of_a_running_broker_can_be_read(
    running: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "inspect", str(running), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["running"] is True
    assert facts["confirmed_end"] >= 252074
    assert main(["store", "fsck", str(running), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clean"] and report["records"] >= 305
    assert main(["store", "dump", str(running), "--body", "none"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 305
    assert main(["store", "fsck", str(running), "--quarantine"]) == 1
    assert "a broker that runs on it" in capsys.readouterr().err
