"""The page of a replay in Chromium: stepped through with the keyboard, accessible, and alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.browser import LOOKS, browsing_with_chromium
from simulator.__main__ import main

pytestmark = pytest.mark.browser


def test_a_run_is_stepped_through_to_the_violated_invariant(tmp_path: Path) -> None:
    planted = ["--mutations", "acknowledged_before_quorum"]
    assert main(["--replay", "0", *planted, "--html", str(tmp_path / "run.html")]) == 1

    async def run() -> None:
        async with browsing_with_chromium(f"file://{tmp_path}") as found:
            for size, theme in LOOKS:
                async with found.page("/run.html", size, theme) as page:
                    await found.check(page, "/run.html", size)
            async with found.page("/run.html") as page:
                alarm = page.get_by_role("alert")
                assert "n1 names T/0@0, which was not committed" in await alarm.text_content()
                assert await page.locator("#run line.violation").count() == 1
                assert await page.locator("#members tr.accused").text_content() is not None
                await page.get_by_role("button", name="Start", exact=True).press("Enter")
                assert await page.locator("#now").text_content() == "0.000 s"
                await page.get_by_role("button", name="Event after").press("Enter")
                assert await page.locator("#now").text_content() != "0.000 s"
                assert await page.locator("#members tr").count() == 3
                await page.get_by_role("slider").press("End")
                assert await page.locator("#messages path.sent").count() > 3
                assert await page.locator("#events li[aria-current].violation").count() == 1
            assert found.complaints == []

    asyncio.run(run())
