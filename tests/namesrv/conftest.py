"""Fixtures of tests/namesrv; what they hand out is in harness.namesrv."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.namesrv import NameServerHarness


@pytest.fixture
def make_world() -> type[NameServerHarness]:
    return NameServerHarness


@pytest.fixture
def world() -> Iterator[NameServerHarness]:
    made = NameServerHarness()
    yield made
    assert made.server.counts.failures == 0
