"""A broker in memory for every test of this folder."""

from __future__ import annotations

import pytest

from rmqpy.testing.harness import BrokerHarness, BuildBroker, memory_broker


@pytest.fixture
def build() -> BuildBroker:
    """Return what builds brokers; keyword arguments are settings of whichever part has them."""
    return memory_broker


@pytest.fixture
def harness(build: BuildBroker) -> BrokerHarness:
    return build()
