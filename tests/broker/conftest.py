"""A broker in memory for every test of this folder."""

from __future__ import annotations

import pytest

from rmqpy.testing.harness import BrokerHarness, BuildBroker, memory_broker


@pytest.fixture
def build() -> BuildBroker:
    """Return the function that builds brokers; its keyword arguments are settings of any part."""
    return memory_broker


@pytest.fixture
def harness(build: BuildBroker) -> BrokerHarness:
    """A started broker with default settings."""
    return build()
