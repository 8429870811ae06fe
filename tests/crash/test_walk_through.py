"""The commands of docs/tutorials/run-a-dledger-group.md, run as a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.crash

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "run-a-dledger-group.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 150


def test_the_commands_of_the_page_start_a_group(tmp_path: Path) -> None:
    name_port, peers, brokers = free_port_block(1), free_port_block(3), free_port_block(30)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    script = "set -eu -o pipefail\n" + "".join(blocks)
    for number, port in enumerate(peers):
        script = script.replace(str(40911 + number), str(port))
    script = script.replace("9876", str(name_port.first))
    script = script.replace("10911", str(brokers[2]))
    script = script.replace("rmqpy ", f"{sys.executable} -m rmqpy.cli ")
    with (tmp_path / "printed").open("wb") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=python_environment(),
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = (tmp_path / "printed").read_text(errors="replace")
    assert code == 0, text[-3000:]
    status = (tmp_path / "status").read_text()
    assert status.count("FOLLOWER") == 2 and "leads in term" in status
