"""Hooks: what they get, and how they fail."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from rmqpy.suite.hooks import run_hook

pytestmark = pytest.mark.slow


def run(command: str, folder: Path, seconds: float = 60, **variables: str) -> str | None:
    return asyncio.run(run_hook(command, folder, variables, seconds))


def test_a_hook_runs_in_the_folder_with_its_variables(tmp_path: Path) -> None:
    assert run("sh -c 'echo $RMQPY_STAGE > seen'", tmp_path, RMQPY_STAGE="switch") is None
    assert (tmp_path / "seen").read_text() == "switch\n"


def test_a_failure_is_a_sentence_with_the_end_of_the_output(tmp_path: Path) -> None:
    failed = run("sh -c 'yes | head -c 100000; echo the end; exit 3'", tmp_path)
    assert failed is not None and "ended with 3" in failed and failed.endswith("the end")
    assert len(failed) < 3_000
    assert "cannot be started: No such file" in (run("no-such-command", tmp_path) or "")


def test_a_hook_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = "sh -c 'sleep 1000 > fifo & cat fifo; sleep 1000'"

    async def main() -> str | None:
        hook = asyncio.create_task(run_hook(child, tmp_path, {}, 0.5))
        # The read ends when the child, which holds the other end, is killed.
        fifo = await asyncio.to_thread((tmp_path / "fifo").open, "rb")
        with fifo:
            found = await hook
            assert await asyncio.to_thread(fifo.read) == b""
        return found

    assert "has not ended after 0.5 s" in (asyncio.run(main()) or "")
