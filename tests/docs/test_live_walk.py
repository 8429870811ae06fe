"""The tutorial docs/tutorials/upgrade-without-stopping.md, block by block, on free ports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.tutorial import run_tutorial

from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block


@pytest.mark.slow
def test_the_commands_print_the_documented_results(tmp_path: Path) -> None:
    group = free_port_block(4)
    ports = {"9876": group[3], **{f"4091{each + 1}": group[each] for each in range(3)}}
    for written in ("10911", "10921", "10931", "10941"):
        ports[written] = free_port_block(BROKER_PORT_COUNT).broker_port
    parts, errors = run_tutorial("upgrade-without-stopping.md", ports, tmp_path)
    _, _, check, switched, status, left, counted = parts
    assert "nothing prevents the switch; nothing was changed" in check, (parts, errors)
    assert "broker-a is a DLedger group; messages waited for" in switched, (parts, errors)
    assert f"127.0.0.1:{ports['10931']}" in status and "is a DLedger group" in status, parts
    assert f"127.0.0.1:{ports['10941']} is the master of broker-a" in left, (parts, errors)
    found = re.search(r"^(\d+) acknowledged, 0 failed, longest wait", counted, re.MULTILINE)
    assert found is not None and int(found[1]) > 0, (parts, errors)
