"""Every screen of the console in Chromium: no error, no violated policy, no axe violation.

Chromium is Debian's (``apt-get install chromium``); axe-core is part of axe-playwright-python.
``RMQPY_SCREENSHOTS`` is a folder for pictures of all screens.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.console import SetClock, collecting, console, guard

from rmqpy.admin.api import Admin
from rmqpy.client import Message, Producer
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.testing.in_process import name_server_and_broker

playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed")
web = pytest.importorskip("aiohttp.web")

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.title='owned'>\"'\u202e\x1b[2J"
SIZES = {"wide": (1280, 800), "narrow": (390, 800)}


def chromium() -> str:
    found = shutil.which("chromium")
    assert found is not None, "found no chromium, expected Debian's; apt-get install chromium"
    return found


def axe() -> str:
    """Return the script that checks whether a page is accessible."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@define
class Screens:
    """A browser with a console, and everything that it has complained about."""

    url: str
    browser: Any
    complaints: list[str] = field(factory=list)

    def _said(self, path: str, said: Any) -> None:
        if said.type == "error":
            self.complaints.append(f"{path}: {said.text}")

    def _sent(self, path: str, sent: Any) -> None:
        if not sent.url.startswith(self.url):
            self.complaints.append(f"{path} loads {sent.url}")

    @asynccontextmanager
    async def page(self, path: str, size: str, theme: str) -> AsyncIterator[Any]:
        """Open a page."""
        width, height = SIZES[size]
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        page = await context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"{path}: {error}"))
        page.on("console", lambda said: self._said(path, said))
        page.on("request", lambda sent: self._sent(path, sent))
        try:
            answer = await page.goto(self.url + path, wait_until="load")
            assert answer.status == 200, path
            yield page
        finally:
            await context.close()


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
            async with playwright.async_playwright() as driver:
                browser = await driver.chromium.launch(
                    executable_path=chromium(), args=["--no-sandbox"]
                )
                place = f"topic=orders&broker=a&queue={sent.queue.queue_id}"
                yield (
                    Screens(f"http://127.0.0.1:{port}", browser),
                    [
                        "/",
                        "/topics",
                        "/topic?name=orders",
                        f"/messages?{place}&offset=0",
                        "/messages?topic=orders&key=large",
                        f"/message?id={sent.offset_msg_id}",
                        "/groups",
                        "/group?name=TOOLS_CONSUMER",
                        "/replication",
                        "/elections?name=a",
                        "/map",
                    ],
                )
                await browser.close()
            await runner.cleanup()
        await instance.close()


def test_every_screen_is_sound_and_accessible(tmp_path: Path) -> None:
    async def run() -> None:
        source = axe()
        pictures = os.environ.get("RMQPY_SCREENSHOTS")
        async with screens(tmp_path) as (found, paths):
            for path in paths:
                for size, theme in (("wide", "light"), ("wide", "dark"), ("narrow", "light")):
                    async with found.page(path, size, theme) as page:
                        if pictures:
                            name = path.strip("/").partition("?")[0] or "overview"
                            await page.screenshot(path=f"{pictures}/{name}-{size}-{theme}.png")
                        result = await page.evaluate(f"{source}\naxe.run()")
                        violations = [
                            f"{each['id']}: {node['html']}"
                            for each in result["violations"]
                            for node in each["nodes"]
                        ]
                        assert violations == [], (path, size, theme)
                        assert await page.title() != "owned"
                        width = await page.evaluate("document.documentElement.scrollWidth")
                        assert width <= SIZES[size][0], f"{path} is wider than a {size} window"
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
