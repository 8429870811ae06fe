"""Fixtures of tests/hostile; their types are in harness.hostile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from harness.hostile import (
    DEADLINE_S,
    SENTINEL,
    Besiege,
    BesiegedSite,
    HonestClient,
    besieged_site,
)

from rmqpy.model.codes import ResponseCode
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.testing.blocking_connection import send_request


@pytest.fixture
def besiege(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Besiege:
    """Return a function that runs ``test(site)`` with a sentinel message and checks the site."""
    caplog.set_level(logging.CRITICAL, "rmqpy")  # Log records keep their arguments in memory.

    def run_test(test: Callable[[BesiegedSite], Awaitable[None]]) -> None:
        async def main(scheduler: AsyncioScheduler) -> None:
            async with asyncio.timeout(DEADLINE_S), besieged_site(tmp_path, scheduler) as site:
                client = await HonestClient.connect(site.broker.address)
                sent = await client.call(send_request(SENTINEL, 0, [b"before"]))
                assert sent.code == ResponseCode.SUCCESS, sent
                await client.close()
                await test(site)
                await site.check_health()
                await site.check_messages()
                site.check_tables()
                site.check_files()
            site.check_files()

        run(main)

    return run_test
