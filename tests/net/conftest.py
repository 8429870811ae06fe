"""Fixtures of tests/net; their types are in harness.net."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine

import pytest
from harness.net import DEADLINE_S, EchoHandler, InLoop, SkewedScheduler, server_kinds

from rmqpy.net.loop import AsyncioScheduler, run


@pytest.fixture(params=server_kinds())
def handler(request: pytest.FixtureRequest) -> EchoHandler:
    """Return a handler for each kind of server."""
    handler = EchoHandler()
    handler.fast, handler.in_set = request.param
    return handler


@pytest.fixture(params=["off", "on"], ids=["asyncio", "uvloop"])
def in_loop(request: pytest.FixtureRequest) -> InLoop:
    """Return a function that runs ``main(scheduler)`` on each kind of loop, with a deadline."""
    if request.param == "on" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")

    def run_test(main: Callable[[SkewedScheduler], Coroutine[object, object, None]]) -> None:
        async def whole(_: AsyncioScheduler) -> None:
            scheduler = SkewedScheduler()
            async with asyncio.timeout(DEADLINE_S):
                await main(scheduler)
            await scheduler.close()

        run(whole, uvloop=request.param)

    return run_test
