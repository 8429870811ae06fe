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

from rmqpy.admin.api import Admin
from rmqpy.admin.leadership import Transferred
from rmqpy.model.errors import RmqError

leader_changes = pytest.importorskip("rmqpy.console.web.changes.leader_changes")

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
            answer = await client.get("/send?topic=orders", allow_redirects=False)
            assert answer.headers["Location"] == "/login?next=/send?topic%3Dorders"
            page = await page_of(client, "/dead-letters?group=g")
            assert 'href="/login?next=%2Fdead-letters%3Fgroup%3Dg"' in page
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


@pytest.mark.slow
def test_a_leader_is_asked_to_hand_over_only_after_a_confirmation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    async def transfer(_admin: Admin, address: str, successor: str) -> Transferred:
        asked.append((address, successor))
        if successor == "n9":
            raise RmqError("found <b>n9</b>, expected a member")
        return Transferred(group="g", leader="n0", term=3, successor=successor)

    monkeypatch.setattr(leader_changes, "transfer_leadership", transfer)

    async def run() -> None:
        async with writable(tmp_path, checks=True) as (client, _):
            form = {"group": "a", "successor": "n1"}
            assert (await post(client, "/transfer", form))[0] == 403
            await post(client, "/login", OPERATOR)
            _, page = await post(client, "/transfer", form)
            assert "hand over to <b>n1</b>" in page and not asked
            _, page = await post(client, "/transfer", {**form, "confirmed": "yes"})
            assert "n0, the leader of term 3, has handed over to n1" in page
            ((address, successor),) = asked
            assert address.startswith("127.0.0.1:") and successor == "n1"
            assert any("the leadership of 'a' from n0 to n1" in each for each in caplog.messages)
            for wrong, reason in (
                ({**form, "successor": "n9"}, "found &lt;b&gt;n9"),
                ({**form, "group": "none"}, "expected one"),
            ):
                _, page = await post(client, "/transfer", {**wrong, "confirmed": "yes"})
                assert 'class="alarm critical"' in page and reason in page

    with caplog.at_level(logging.INFO, "rmqpy.console"):
        asyncio.run(run())
