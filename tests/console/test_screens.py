"""Every screen of the console in Chromium: no error, no violated policy, no axe violation.

``RMQPY_SCREENSHOTS`` is a folder for pictures of all screens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.browser import LOOKS, Screens, browsing_with_chromium
from harness.console import SetClock, collecting, console, guard

from rmqpy.admin.api import Admin
from rmqpy.client import Message, Producer
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.testing.in_process import name_server_and_broker

web = pytest.importorskip("aiohttp.web")

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.title='owned'>\"'\u202e\x1b[2J"


@asynccontextmanager
async def screens(root: Path) -> AsyncIterator[tuple[Screens, list[str]]]:
    """Run a broker with hostile content, its console, and a browser; yield the paths of screens."""
    async with name_server_and_broker(root) as servers:
        cluster = ClientSettings(name_servers=servers.name_server)
        instance = await ClientInstance.open(cluster)
        async with (
            Producer("p", servers.name_server) as producer,
            PullConsumer("TOOLS_CONSUMER", instance=instance) as consumer,
        ):
            for number in range(40):
                body = HOSTILE.encode() if number % 2 else b'{"order": %d}' % number
                sent = await producer.send(
                    Message(topic="orders", body=body, keys="k", properties={"evil": HOSTILE})
                )
            await producer.send(Message(topic="orders", body=b"x" * (3 << 20), keys="large"))
            clock = SetClock()
            collector = collecting.Collector(Admin(instance, (servers.name_server,)), clock)
            for _ in range(3):
                await collector.poll()
                clock.time_ms += 5_000
            options = console.ConsoleOptions(cluster=cluster, listening=guard.Listening())
            app = console.application(collector, consumer, options, clock)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]
            async with browsing_with_chromium(f"http://127.0.0.1:{port}") as found:
                place = f"topic=orders&broker=a&queue={sent.queue.queue_id}"
                yield (
                    found,
                    [
                        "/",
                        "/topics",
                        "/topic?name=orders",
                        f"/messages?{place}&offset=0",
                        "/messages?topic=orders&key=large",
                        f"/message?id={sent.offset_msg_id}",
                        "/groups",
                        "/group?name=TOOLS_CONSUMER",
                        "/dead-letters?group=TOOLS_CONSUMER",
                        "/replication",
                        "/elections?name=a",
                        "/map",
                    ],
                )
            await runner.cleanup()
        await instance.close()


def test_every_screen_is_sound_and_accessible(tmp_path: Path) -> None:
    async def run() -> None:
        pictures = os.environ.get("RMQPY_SCREENSHOTS")
        async with screens(tmp_path) as (found, paths):
            for path in paths:
                for size, theme in LOOKS:
                    async with found.page(path, size, theme) as page:
                        if pictures:
                            name = path.strip("/").partition("?")[0] or "overview"
                            await page.screenshot(path=f"{pictures}/{name}-{size}-{theme}.png")
                        await found.check(page, path, size)
                        assert await page.title() != "owned"
            assert found.complaints == []

    asyncio.run(run())


def test_a_topic_is_found_and_opened_with_the_keyboard(tmp_path: Path) -> None:
    async def run() -> None:
        async with screens(tmp_path) as (found, _):
            async with found.page("/topics", "wide", "light") as page:
                await page.keyboard.press("Tab")
                focused = await page.evaluate("document.activeElement.textContent")
                assert focused == "Skip to the content"
                await page.get_by_role("searchbox").fill("ORD")
                await page.get_by_text("1 of ").wait_for()
                await page.get_by_role("link", name="orders").focus()
                await page.keyboard.press("Enter")
                await page.wait_for_url("**/topic?name=orders")
            assert found.complaints == []

    asyncio.run(run())
