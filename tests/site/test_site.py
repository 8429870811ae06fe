"""The site that ``tox -e site`` has built: every link, and what Chromium sees.

``RMQPY_SITE`` is its folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from harness.browser import browsing_with_chromium

import rmqpy.client

pytestmark = pytest.mark.browser

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src"}
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def site() -> Path:
    folder = os.environ.get("RMQPY_SITE", "")
    assert (Path(folder) / "index.html").exists(), f"found no site in {folder!r}; run: tox -e site"
    return Path(folder)


class _Page(HTMLParser):
    """The addresses that a page links to, those that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in LOADED and LOADED[tag] in found and found.get("rel") != "canonical":
            self.loaded.add(found[LOADED[tag]])


@cache
def page_at(path: Path) -> _Page:
    return _Page(path.read_text(encoding="utf-8"))


def broken(path: Path) -> Iterator[str]:
    page = page_at(path)
    for address in page.links | page.loaded:
        target, _, anchor = unquote(address).partition("#")
        if ":" in target or (not target and not anchor):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.is_file():
            yield f"{path.name}: {address}"
        elif anchor and file.suffix == ".html" and anchor not in page_at(file).anchors:
            yield f"{path.name}: {address}"


def test_every_link_of_every_page_leads_somewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 80
    assert sorted({each for path in pages for each in broken(path)}) == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = {address for path in site.rglob("*.html") for address in page_at(path).loaded}
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []


def test_llms_txt_leads_to_pages(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    addresses = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert len(addresses) > 60
    assert [address for address in addresses if not (site / address).is_file()] == []


def test_the_python_api_is_documented(site: Path) -> None:
    anchors = page_at(site / "reference" / "python-api.html").anchors
    names = {f"rmqpy.client.{name}" for name in rmqpy.client.__all__}
    assert names - anchors == set()
    assert "rmqpy.client.Producer.send_ordered" in anchors


def test_a_reader_finds_a_page_by_a_word(site: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        asyncio.run(asyncio.wait_for(search(f"http://127.0.0.1:{server.server_port}"), SECONDS_MAX))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


async def search(url: str) -> None:
    async with browsing_with_chromium(url) as screens:
        async with screens.page("/index.html") as page:
            assert await page.locator("img[src$='store-map.svg']").is_visible()
            await page.locator(".md-search__input").fill("quarantine")
            found = page.locator(".md-search-result__link").first
            await found.wait_for()
            await found.click()
            await page.locator("h1").first.wait_for()
            assert "quarantine" in (await page.locator("article").inner_text()).lower()
        async with screens.page("/reference/python-api.html") as page:
            assert await page.get_by_text("send_ordered").count() > 0
    assert screens.complaints == []
