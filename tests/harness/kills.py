"""Kills of a process before any of its file operations."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from harness.store import CrashingFiles, KilledError

SAMPLE: Final = 40
"""How many kills are tried where there are more operations than that."""


def operations_of(files: CrashingFiles, act: Callable[[CrashingFiles], object]) -> int:
    """Return the number of operations that ``act`` does on ``files`` if nothing stops it."""
    whole = files.reopen(None)
    act(whole)
    return whole.operations


def kills_of(
    files: CrashingFiles, act: Callable[[CrashingFiles], object], *, more_than: int
) -> Iterator[tuple[int, CrashingFiles]]:
    """Yield the number of an operation of ``act``, and the files of a process that was killed
    before it: one of each ``SAMPLE``-th part of the operations, or with RMQPY_EVERY_KILL=1 all.

    ``act`` must do more operations than ``more_than``.
    """
    total = operations_of(files, act)
    assert total > more_than
    for dies_at in _tried(total):
        dying = files.reopen(dies_at)
        with pytest.raises(KilledError):
            act(dying)
        yield dies_at, dying


def _tried(total: int) -> list[int]:
    if os.environ.get("RMQPY_EVERY_KILL") == "1":
        return list(range(total))
    rng = random.Random(total)  # The same ones in every run: a failure belongs to the change.
    starts = [total * part // SAMPLE for part in range(SAMPLE + 1)]
    return [rng.randrange(*part) for part in itertools.pairwise(starts) if part[0] < part[1]]
