"""The bash blocks of a tutorial, run in their order in one shell, on free ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rmqpy.testing.processes import python_environment

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = "=== block "
TIMEOUT_S = 300


def programs(folder: Path) -> Path:
    """Return a new folder with ``rmqpy``, ``python`` and ``pytest`` of this environment.

    They are programs and no functions of the shell, so that ``$!`` is a broker's own process.
    """
    found = folder.with_name(f"{folder.name}-programs")
    found.mkdir()
    words = {"rmqpy": "-m rmqpy.cli", "python": "", "pytest": "-m pytest -p no:cacheprovider"}
    for name, module in words.items():
        (found / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (found / name).chmod(0o755)
    return found


def run_tutorial(page: str, ports: Mapping[str, int], folder: Path) -> tuple[list[str], str]:
    """Return what each block of docs/tutorials/``page`` prints, and all errors. ``ports`` are used
    instead of those in the text.
    """
    blocks = BLOCK.findall((ROOT / "docs/tutorials" / page).read_text(encoding="utf-8"))
    script = "set -m\n"
    script += "trap 'for job in $(jobs -p); do kill -9 -- -$job; done 2>/dev/null' EXIT\n"
    for number, block in enumerate(blocks):
        for written, free in ports.items():
            block = block.replace(written, str(free))
        script += f"echo '{MARK}{number}'\n{block}"
    environment = python_environment()
    environment["PATH"] = f"{programs(folder)}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = shell.communicate(timeout=TIMEOUT_S)
    finally:
        shell.terminate()  # runs the trap after a time-out
    parts = output.split(MARK)
    assert len(parts) == len(blocks) + 1, (output, errors)
    return parts[1:], errors
