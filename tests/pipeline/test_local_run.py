"""Work units in processes of this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.model.errors import RmqError
from rmqpy.pipeline.jobs.local_run import CORES_BYTES, local_run, map_on_cores

pytestmark = pytest.mark.slow


def test_results_are_in_order() -> None:
    assert list(map_on_cores(math.isqrt, range(200))) == [math.isqrt(n) for n in range(200)]
    assert list(map_on_cores(math.isqrt, [])) == []


def test_an_error_is_that_of_the_function() -> None:
    found = map_on_cores(math.isqrt, [4, 9, -1, 16])
    assert [next(found), next(found)] == [2, 3]
    with pytest.raises(ValueError, match="nonnegative"):
        list(found)


def test_a_killed_process_is_an_error() -> None:
    with pytest.raises(RmqError, match="was killed"):
        list(map_on_cores(os._exit, [3]))


def test_small_stores_need_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqpy.pipeline.jobs.local_run._cores", lambda: 2)
    assert local_run(CORES_BYTES - 1) is map and local_run(CORES_BYTES) is map_on_cores
    monkeypatch.setattr("rmqpy.pipeline.jobs.local_run._cores", lambda: 1)
    assert local_run(CORES_BYTES) is map


def test_an_export_in_processes_is_the_same(
    store_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arrow: object,
) -> None:
    store = store_of("A-classic-clean-v497")
    monkeypatch.setattr("rmqpy.pipeline.jobs.local_run._cores", lambda: 2)
    words = ["pipeline", "export", str(store), "--range-bytes", "8192", "--to"]
    assert main([*words, str(tmp_path / "here")]) == 0
    monkeypatch.setattr("rmqpy.pipeline.jobs.local_run.CORES_BYTES", 0)
    assert main([*words, str(tmp_path / "cores")]) == 0
    here, cores = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("here", "cores")
    )
    assert here == cores and len(here) > 3
    assert "messages in" in capsys.readouterr().out
