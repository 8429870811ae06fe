"""Fixtures of tests/hostile; what they hand out is in harness.hostile."""

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
    resident_bytes,
)

from rmqpy.model.codes import ResponseCode
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.testing.blocking_connection import send_request


@pytest.fixture
def besiege(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Besiege:
    """Runs ``test(site)`` with a sentinel in the store, and checks everything afterwards."""
    caplog.set_level(logging.CRITICAL, "rmqpy")  # records keep what they tell of

    def whole(test: Callable[[BesiegedSite], Awaitable[None]]) -> None:
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

    return whole


@pytest.fixture
def connect() -> Callable[[str], Awaitable[HonestClient]]:
    """Opens a well-behaved connection to ``host:port``."""
    return HonestClient.connect


@pytest.fixture
def resident() -> Callable[[], int]:
    """Bytes of this process in memory."""
    return resident_bytes
