"""A short run of the attack on servers in their own processes, within all goals."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from fuzz.attack import FuzzAttack, run_attack

IDLE = 1_000
FRAMES = 1_900


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
    assert [str(row) for row in siege.rows if not row.is_within] == []
    assert {row.unit for row in siege.rows} == {"bytes", "MiB", "ms"}
    assert all(target.checks > 2 for target in siege.targets)
