"""``rmqpy store`` on the directory of a running broker: nothing is disturbed, nothing is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.testing.ports import free_port_block


@pytest.fixture
def running(golden_copy: Callable[[str], Path], tmp_path: Path) -> Iterator[Path]:
    """A broker of ours that has started on a store of Java's after a kill."""
    (log,) = golden_copy("A-classic-killed-v497").rglob("commitlog")
    store = log.parent
    block = free_port_block(4)
    block.release()
    lines = {
        "brokerName": "broker-a",
        "listenPort": str(block.broker_port),
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    broker = subprocess.Popen(
        [sys.executable, "-m", "rmqpy.cli", "broker", "-c", str(conf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "NAMESRV_ADDR": ""},
    )
    assert broker.stdout is not None and broker.stdout.readline().startswith("ready:")
    yield store
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(timeout=30) == 0


@pytest.mark.slow
def test_a_running_broker(running: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
