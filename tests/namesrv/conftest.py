"""Fixtures of tests/namesrv; what they hand out is in harness.namesrv."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.namesrv import World


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.server.counts.failures == 0
