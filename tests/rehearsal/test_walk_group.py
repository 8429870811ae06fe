"""The lines of a runbook as commands: their output, their end, and what they leave running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqpy.demo.cluster import DemoCluster
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.rehearsal.walk_group import RunbookLineError, WalkGroup
from rmqpy.upgrade.group.group_file import parse_group_file
from rmqpy.upgrade.runbook import RMQPY, RunbookGroup, commands_until, leave_runbook, switch_runbook


@pytest.fixture
def group(tmp_path: Path) -> Iterator[WalkGroup]:
    walked = WalkGroup(DemoCluster(tmp_path, {}))
    yield walked
    walked.close()


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``body`` on the event loop that the command uses."""

    async def whole(_: AsyncioScheduler) -> None:
        async with asyncio.timeout(60):
            await body()

    run(whole)


def test_a_line_that_fails_ends_with_its_output(group: WalkGroup) -> None:
    async def body() -> None:
        assert await group.run("echo found; test -d .") == "found"
        with pytest.raises(RunbookLineError, match=r"exit 3: found exit code 3, expected 0: why$"):
            await group.run("echo why; exit 3")

    in_loop(body)


def test_a_line_returns_although_what_it_started_runs(group: WalkGroup) -> None:
    """A broker that inherits the output of its start command keeps it open."""

    async def body() -> None:
        started = int(await group.run("sleep 60 & echo $!"))
        os.kill(started, signal.SIGKILL)

    in_loop(body)


def test_a_line_ends_with_the_walk_that_is_interrupted(group: WalkGroup, tmp_path: Path) -> None:
    async def body() -> None:
        line = asyncio.create_task(group.run("echo $$ > pid; sleep 60; touch late"))
        while not (text := _text(tmp_path / "pid")):
            await asyncio.sleep(0.01)
        line.cancel()
        await asyncio.gather(line, return_exceptions=True)
        while _lives(int(text)):
            await asyncio.sleep(0.01)

    in_loop(body)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _lives(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith("Z")


def test_the_runbook_of_a_walk_needs_nothing_by_hand(group: WalkGroup, tmp_path: Path) -> None:
    group.write()
    spec = parse_group_file((tmp_path / "group.toml").read_text(), "group.toml")
    assert spec == group.spec
    assert all((tmp_path / f"start-{each.name}").exists() for each in spec.members)
    runbook = RunbookGroup(members=spec.members, brokers=RMQPY)
    there = commands_until(switch_runbook(runbook), "dledger")
    back = commands_until(leave_runbook(runbook), "returned")
    assert (there[0], there[-1]) == (
        "rmqpy upgrade run --until stopped --yes",
        "rmqpy upgrade run --until dledger --yes",
    )
    assert "rmqpy upgrade verify" in back and "rmqpy upgrade verify" not in there
    with pytest.raises(ValueError, match="no line of the runbook waits for returned"):
        commands_until(switch_runbook(runbook), "returned")
