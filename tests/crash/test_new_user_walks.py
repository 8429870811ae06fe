"""The first tutorial of each reader, block by block, on free ports."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.tutorial import run_tutorial

from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

pytestmark = pytest.mark.crash


def test_run_a_broker(tmp_path: Path) -> None:
    ports = {
        "9876": free_port_block(1)[0],
        "10911": free_port_block(BROKER_PORT_COUNT).broker_port,
    }
    parts, errors = run_tutorial("run-a-broker.md", ports, tmp_path)
    started, sent, killed, read, _ = parts
    assert "broker-a" in started, (parts, errors)
    assert "SEND_OK" in sent and sent.count("hello") >= 1, (parts, errors)
    assert "broker-a" in killed, (parts, errors)
    assert '"body":"hello"' in read.replace(" ", "") and "1 queue: clean" in read, (parts, errors)


def test_use_the_client(tmp_path: Path) -> None:
    parts, errors = run_tutorial("use-the-client.md", {}, tmp_path)
    _, sent, consumed, asked, _ = parts
    assert sent.count("SEND_OK order") == 3, (parts, errors)
    assert "order 3 fails" in consumed and "order 3 delivery 2" in consumed, (parts, errors)
    assert "order 1 delivery 1" in consumed and "order 2 delivery 1" in consumed
    assert "%RETRY%warehouse" in asked, (parts, errors)


def test_test_with_rmqpy(tmp_path: Path) -> None:
    parts, errors = run_tutorial("test-with-rmqpy.md", {}, tmp_path)
    _, tested, failed_over = parts
    assert "3 passed" in tested, (parts, errors)
    assert "1 passed" in failed_over, (parts, errors)
