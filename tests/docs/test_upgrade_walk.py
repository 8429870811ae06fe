"""The tutorial docs/tutorials/rehearse-an-upgrade.md, block by block, on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import python_environment
from rmqpy.upgrade.checks.group_checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "rehearse-an-upgrade.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 240


@pytest.mark.slow
def test_the_commands_print_the_documented_results(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    program = tmp_path / "bin" / "rmqpy"  # $! must be the broker, so no shell function
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqpy.cli "$@"\n')
    program.chmod(0o755)
    script = "".join(f"echo '=== {number}'\n{block}" for number, block in enumerate(blocks))
    name_port, brokers = free_port_block(1), free_port_block(30)
    script = script.replace("9876", str(name_port.first)).replace("10911", str(brokers[2]))
    environment = python_environment()
    environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    with (tmp_path / "printed").open("wb") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.wait(SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = (tmp_path / "printed").read_text(errors="replace")
    parts = [part.partition("\n")[2] for part in text.split("=== ")[1:]]
    assert len(parts) == len(blocks), text[-3000:]
    _, sent, lagging, checked, _, applied, switched, joined, proven, left, again = parts
    assert sent.count("SEND_OK") == 3 and lagging.count("SLAVE_NOT_AVAILABLE") == 2, text
    shown = re.findall(r"^(n1 lags .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(shown) == 1 and shown[0] in checked and "exit code 2" in checked, checked
    assert "group broker-a: stopped;" in checked and "next: rmqpy upgrade plan" in checked
    assert "n2 is empty: plan fills it (5 messages, " in checked, checked
    assert f"{len(CHECKS)} checks: 0 findings" in applied, applied
    assert "group broker-a: switched;" in switched, switched
    # A quorum follows; the third member may still ask for votes on a busy machine.
    assert joined.count("MSGID") == 6 and "FOLLOWER" in joined, joined
    contained = "CONTAINED: n0 before in n0, n1, n2, which have 1 message more"
    assert f"\n{contained}\ngroup broker-a: proven;" in proven, proven
    assert "\nEQUAL\ngroup broker-a: left-verified;" in left, left
    assert again.count("MSGID") == 6, again
