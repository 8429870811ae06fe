"""Fixtures of tests/client; their types are in harness.client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from harness.client import ClientWorld, Run, T


@pytest.fixture
def world() -> ClientWorld:
    return ClientWorld.cluster()


@pytest.fixture
def run() -> Run:
    """Return a function that runs a coroutine to completion, with a deadline."""

    def run_to_end(main: Coroutine[object, object, T], /) -> T:
        async def with_deadline() -> T:
            async with asyncio.timeout(20):
                return await main

        return asyncio.run(with_deadline())

    return run_to_end
