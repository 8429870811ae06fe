"""Fixtures of tests/remoting; their types are in harness.recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.recorded import GOLDEN, Recorded, recorded_frames


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``recorded`` once for each recorded frame."""
    if "recorded" in metafunc.fixturenames:
        frames = recorded_frames()
        ids = [f"{item.source}-{item.request_code}-{item.type}" for item in frames]
        metafunc.parametrize("recorded", frames, ids=ids)


@pytest.fixture(scope="session")
def all_recorded() -> list[Recorded]:
    return recorded_frames()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Return the folder of the recorded frames and files."""
    return GOLDEN
