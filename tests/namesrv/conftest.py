"""Fixtures of tests/namesrv; their types are in harness.namesrv."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.namesrv import NameServerHarness


@pytest.fixture
def world() -> Iterator[NameServerHarness]:
    """Yield a name server, and check at the end that no request has failed in it."""
    harness = NameServerHarness()
    yield harness
    assert harness.server.counts.failures == 0
