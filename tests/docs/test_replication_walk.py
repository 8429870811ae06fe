"""The tutorial docs/tutorials/run-a-master-and-a-slave.md, block by block, on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/run-a-master-and-a-slave.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_commands_print_the_documented_results(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    ports = {
        "9876": free_port_block(1)[0],
        "10911": free_port_block(BROKER_PORT_COUNT).broker_port,
        "10921": free_port_block(BROKER_PORT_COUNT).broker_port,
    }
    script = f'rmqpy() {{ "{sys.executable}" -m rmqpy.cli "$@"; }}\nset -m\n'
    script += "trap 'for job in $(jobs -p); do kill -9 -- -$job; done 2>/dev/null' EXIT\n"
    for number, block in enumerate(blocks):
        for written, free in ports.items():
            block = block.replace(written, str(free))
        script += f"echo '=== {number}'\n{block}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = shell.communicate(timeout=300)
    finally:
        shell.terminate()  # runs the trap after a time-out
    parts = output.split("=== ")
    assert len(parts) == len(blocks) + 1, errors
    _, _, connected, sent, without_slave = parts
    assert f"127.0.0.1:{ports['10911']}" in connected and f"127.0.0.1:{ports['10921']}" in connected
    assert "connected to" in connected, (output, errors)
    assert "SEND_OK" in sent and "haSlaveCount" in sent, (output, errors)
    assert "SLAVE_NOT_AVAILABLE" in without_slave, (output, errors)
