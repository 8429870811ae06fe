"""The walk-through of docs/replication.md, command by command, on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_do_what_the_text_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs/replication.md").read_text(encoding="utf-8"))
    ports = {
        "9876": free_port_block(1)[0],
        "10911": free_port_block(BROKER_PORT_COUNT).broker_port,
        "10921": free_port_block(BROKER_PORT_COUNT).broker_port,
    }
    script = f'rmqpy() {{ "{sys.executable}" -m rmqpy.cli "$@"; }}\nset -m\n'
    for number, block in enumerate(blocks):
        for written, free in ports.items():
            block = block.replace(written, str(free))
        script += f"echo '=== {number}'\n{block}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    parts = done.stdout.split("=== ")
    assert len(parts) == len(blocks) + 1, done.stderr
    _, _, found, sent, alone = parts
    assert f"127.0.0.1:{ports['10911']}" in found and f"127.0.0.1:{ports['10921']}" in found
    assert "connected to" in found, done
    assert "SEND_OK" in sent and "haSlaveCount" in sent, done
    assert "SLAVE_NOT_AVAILABLE" in alone, done
