"""Tests of the reservation of ports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rmqpy.testing import ports


@pytest.mark.parametrize("abstract", [True, False])
def test_a_reserved_port_is_given_to_nobody_else_until_its_process_ends(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if abstract and not ports.HAS_ABSTRACT_SOCKETS:
        pytest.skip("this system has no abstract sockets")
    monkeypatch.setattr(ports, "HAS_ABSTRACT_SOCKETS", abstract)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    block = ports.free_port_block(2)
    assert ports._reserve(range(block.first, block.first + 1)) is None
    block.release()
    again = ports._reserve(range(block.first, block.first + 1))
    assert again is not None
    for guard in again:
        guard.close()


@pytest.mark.slow
def test_a_locked_file_of_a_process_that_ended_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "HAS_ABSTRACT_SOCKETS", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, tempfile; from rmqpy.testing import ports; ports.HAS_ABSTRACT_SOCKETS = False;"
        f"tempfile.tempdir = {str(tmp_path)!r};"
        "print(ports.free_port_block(1).first, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    port = int(done.stdout)
    again = ports._reserve(range(port, port + 1))
    assert again is not None and (tmp_path / f"rmqpy-test-port-{port}").exists()
    again[0].close()
