"""Debian's Chromium, driven by Playwright, and everything that it complains about.

Chromium is Debian's (``apt-get install chromium``); axe-core is part of axe-playwright-python.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import pytest
from attrs import define, field

playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed")
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

AXE = (resources.files(axe) / "axe.min.js").read_text("utf-8")

WAIT_MS = 90_000
SIZES = {"wide": (1280, 800), "narrow": (390, 800)}
LOOKS = (("wide", "light"), ("wide", "dark"), ("narrow", "light"))


@define
class Screens:
    """A browser for pages below ``url``, and everything that it has complained about."""

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
    async def page(self, path: str, size: str = "wide", theme: str = "light") -> AsyncIterator[Any]:
        """Open a page."""
        width, height = SIZES[size]
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        context.set_default_timeout(WAIT_MS)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"{path}: {error}"))
        page.on("console", lambda said: self._said(path, said))
        page.on("request", lambda sent: self._sent(path, sent))
        try:
            answer = await page.goto(self.url + path, wait_until="load")
            assert answer.status in (0, 200), path  # 0: a file
            yield page
        finally:
            await context.close()

    async def check(self, page: Any, path: str, size: str) -> None:
        """Check that a page is accessible, and not wider than the window."""
        result = await page.evaluate(f"{AXE}\naxe.run({{resultTypes: ['violations']}})")
        violations = [
            f"{each['id']}: {node['html']}"
            for each in result["violations"]
            for node in each["nodes"]
        ]
        assert violations == [], (path, size)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= SIZES[size][0], f"{path} is wider than a {size} window"


@asynccontextmanager
async def browsing_with_chromium(url: str) -> AsyncIterator[Screens]:
    """Start Chromium for pages below ``url``."""
    program = shutil.which("chromium")
    assert program is not None, "found no chromium, expected Debian's; apt-get install chromium"
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield Screens(url, browser)
        await browser.close()
