"""Writes: only if they are allowed, with an account of the cluster, after a confirmation."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from harness.console import (
    OPERATOR,
    CountedBrokers,
    SetClock,
    browsing,
    collecting,
    page_of,
    post,
    writable,
)

MESSAGE = {"topic": "orders", "tags": "t", "keys": "k1", "body": "<b>hello</b>"}


def test_without_the_option_there_is_nothing_to_log_in_or_write_to() -> None:
    async def run() -> None:
        collector = collecting.Collector(CountedBrokers({}), SetClock())
        async with browsing(collector) as client:
            for path in ("/login", "/send"):
                assert (await client.get(path)).status == 404
            page = await page_of(client, "/")
            assert "read-only" in page and "<form" not in page

    asyncio.run(run())


@pytest.mark.slow
def test_a_message_is_sent_after_login_and_confirmation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with writable(tmp_path, checks=True) as (client, _):
            status, page = await post(client, "/send", MESSAGE)
            assert status == 403 and "found no login" in page
            for wrong in (
                {**OPERATOR, "secret": "guessed-secret"},
                {"account": "a-reader", "secret": "readers-secret"},  # no administrator
                {"account": "", "secret": ""},
            ):
                status, page = await post(client, "/login", wrong)
                assert status == 403 and "operator" not in page
            assert (await post(client, "/login", OPERATOR))[0] == 303
            assert "log out" in await page_of(client, "/")
            status, page = await post(client, "/send", MESSAGE)
            assert "will send one message of 12 B to orders" in page
            assert "&lt;b&gt;hello&lt;/b&gt;" in page and "<b>hello" not in page
            caplog.clear()
            status, page = await post(client, "/send", {**MESSAGE, "confirmed": "yes"})
            assert "The message is stored" in page, page
            assert any("'operator' sent a test message" in each for each in caplog.messages)
            place = page.partition('href="/messages')[2].partition('"')[0].replace("&amp;", "&")
            found = await page_of(client, f"/messages{place}")
            assert "&lt;b&gt;hello&lt;/b&gt;" in found and "k1" in found
            assert (await post(client, "/logout", {}))[0] == 303
            assert (await post(client, "/send", {**MESSAGE, "confirmed": "yes"}))[0] == 403

    with caplog.at_level(logging.INFO, "rmqpy.console"):
        asyncio.run(run())
    assert "secret" not in "".join(each for each in caplog.messages if "operator" in each)


@pytest.mark.slow
def test_a_broker_that_checks_nobody_makes_no_accounts(tmp_path: Path) -> None:
    async def run() -> None:
        async with writable(tmp_path, checks=False) as (client, _):
            status, page = await post(client, "/login", OPERATOR)
            assert status == 403 and "accepts any secret" in page

    asyncio.run(run())
