"""A short run of the attack on servers in their own processes, within the goals for memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from fuzz.attack import FuzzAttack, run_attack

IDLE = 1_000
FRAMES = 1_900
UNREAD = 8
UNREAD_BYTES = 64 << 20


@pytest.mark.slow
def test_a_short_siege_is_within_the_goals(tmp_path: Path) -> None:
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 3 * IDLE:
        pytest.skip("the limit of open files is too low")

    async def attack(siege: FuzzAttack) -> None:
        await siege.idle(IDLE)
        await siege.announced()
        await siege.frames(FRAMES, seed=2)

    siege = run_attack(tmp_path, attack)
    assert siege.wrong == []
    # The times of the answers are those of a busy machine: that all checks were answered counts.
    memory = [row for row in siege.rows if row.unit != "ms"]
    assert {row.unit for row in memory} == {"bytes", "MiB"}
    assert [str(row) for row in memory if not row.is_within] == []
    assert all(target.checks > 2 for target in siege.targets)


@pytest.mark.slow
@pytest.mark.parametrize("pure", ["", "1"], ids=["with C", "without C"])
def test_replies_that_nobody_reads_cost_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    """Answered as fast as they are received, the requests here would cost 768 MB."""
    monkeypatch.setenv("RMQPY_PURE", pure)

    async def attack(siege: FuzzAttack) -> None:
        await siege.unread(UNREAD, UNREAD_BYTES)

    siege = run_attack(tmp_path, attack)
    memory = [row for row in siege.rows if row.unit == "MiB"]
    assert memory and all(row.is_within for row in memory), memory[0]
    assert siege.targets[0].checks > 2
