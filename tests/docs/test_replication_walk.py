"""The tutorial docs/tutorials/run-a-master-and-a-slave.md, block by block, on free ports."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.tutorial import run_tutorial

from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block


@pytest.mark.slow
def test_the_commands_print_the_documented_results(tmp_path: Path) -> None:
    ports = {
        "9876": free_port_block(1)[0],
        "10911": free_port_block(BROKER_PORT_COUNT).broker_port,
        "10921": free_port_block(BROKER_PORT_COUNT).broker_port,
    }
    parts, errors = run_tutorial("run-a-master-and-a-slave.md", ports, tmp_path)
    _, connected, sent, without_slave = parts
    assert f"127.0.0.1:{ports['10911']}" in connected and f"127.0.0.1:{ports['10921']}" in connected
    assert "connected to" in connected, (parts, errors)
    assert "SEND_OK" in sent and "haSlaveCount" in sent, (parts, errors)
    assert "SLAVE_NOT_AVAILABLE" in without_slave, (parts, errors)
