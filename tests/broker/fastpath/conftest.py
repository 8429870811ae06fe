"""The fixtures of tests/broker/fastpath; their types are in harness.fastpath."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.fastpath import (
    BrokerPair,
    FallbackDriver,
    FastPathDriver,
    PromptSlave,
    assert_same_state,
    files_with,
    lead,
)

from rmqpy.codec import backend
from rmqpy.config.keys import BrokerRole
from rmqpy.testing.harness import BuildBroker


@pytest.fixture
def pair(build: BuildBroker) -> Iterator[Callable[..., BrokerPair]]:
    """Return a function that builds two brokers with the same settings, the second one with the
    fast path.
    """
    if backend.implementation != "c":
        pytest.skip(f"no C to compare with: {backend.reason}")
    feeds = []

    def make(**settings: Any) -> BrokerPair:
        from rmqpy.broker.assembly.wiring import install_fast_path

        pending_limit = settings.pop("pending_limit", 10_000)
        given = settings.pop("given_files", {})
        fallback, fast = (build(files=files_with(given), **settings) for _ in range(2))
        if "enable_dledger_commit_log" in settings:
            lead(fallback, pending_limit)
            lead(fast, pending_limit)
        if settings.get("broker_role") is BrokerRole.SYNC_MASTER:
            PromptSlave(fallback)
            PromptSlave(fast)
        feed = install_fast_path(fast.broker, fast.store, fast.scheduler)
        assert feed is not None
        feed.core.frame_max = (1 << 24) - 4
        feeds.append(feed)
        return FallbackDriver(fallback), FastPathDriver(fast, feed)

    yield make
    for feed in feeds:
        feed.close()


@pytest.fixture
def assert_same() -> Callable[[BrokerPair], None]:
    """Return the function that asserts that both brokers answered and stored the same."""
    return assert_same_state
