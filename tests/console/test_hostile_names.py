"""Hostile names are text on every page; characters that are not printable are codes."""

from __future__ import annotations

import asyncio
import re

from harness.console import SetClock, browsing, collecting, page_of
from harness.hostile_console import HOSTILE_PATHS, hostile_brokers

FORM_VALUE = re.compile(r'value="[^"]*"')


def test_every_page_prints_hostile_names_as_text() -> None:
    async def run() -> None:
        collector = collecting.Collector(hostile_brokers(), SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            for path in HOSTILE_PATHS:
                page = await page_of(client, path)
                assert "<img" not in page and "onerror=document" in page, path
                shown = FORM_VALUE.sub("", page)  # a form sends the name as it is
                assert shown.replace("\n", "").replace("\t", "").isprintable(), path

    asyncio.run(run())
