"""Every screen of the console in Chromium: no error, no violated policy, no axe violation.

The servers are processes, of rmqpy and of Java. ``RMQPY_SCREENSHOTS`` is a folder for pictures of
all screens, those of docs/tutorials/tour-of-the-console.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.browser import LOOKS, Screens, browsing_with_chromium, playwright
from harness.console import OPERATOR, SetClock, browsing, collecting
from harness.console_tour import BROKER, Tour, console_process, migrating_group, tour
from harness.hostile_console import HOSTILE, HOSTILE_PATHS, hostile_brokers

from rmqpy.client import Message, Producer
from rmqpy.model.errors import RmqError
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site

pytestmark = pytest.mark.browser

SECONDS_MAX = 90
NEEDS_JAVA = pytest.mark.skipif(JavaHome().missing() is not None, reason=str(JavaHome().missing()))
DARK_PICTURES = ("overview", "map", "message", "group")
"""The screens whose pictures the documents have in the dark theme, too."""


@asynccontextmanager
async def touring(
    root: Path, golden_copy: Callable[[str], Path], site_of: Callable[[Path], Site] = RmqpySite
) -> AsyncIterator[tuple[Tour, Screens]]:
    async with (
        tour(root, migrating_group(golden_copy), site_of) as found,
        browsing_with_chromium(found.url) as screens,
    ):
        yield found, screens


async def picture(page: Any, name: str) -> None:
    """Save a picture, if pictures are wanted, and there is none yet of a screen of this name."""
    folder = os.environ.get("RMQPY_SCREENSHOTS")
    if folder and not Path(folder, f"{name}.png").exists():
        Path(folder).mkdir(parents=True, exist_ok=True)
        # The folder of a migration is one of this test's, and of no interest.
        await page.evaluate("document.querySelector('h1 small.mono[data-folder]')?.remove()")
        await page.screenshot(path=f"{folder}/{name}.png")


async def press(page: Any, button: str) -> None:
    await page.get_by_role("button", name=button, exact=True).click()


async def shows(page: Any, text: str) -> None:
    try:
        await page.get_by_text(text).first.wait_for()
    except playwright.TimeoutError:
        found = await page.locator("main").inner_text()
        pytest.fail(f"found no {text!r} on {page.url}, which shows:\n{found[:3000]}")


def test_every_screen_is_sound_and_accessible(
    tmp_path: Path, golden_copy: Callable[[str], Path]
) -> None:
    async def run() -> None:
        async with touring(tmp_path, golden_copy) as (found, screens):
            async with screens.page("/migration") as page:
                await press(page, "Check now")
                await shows(page, "Stores of the members")
                await page.goto(f"{found.url}/map")
                await shows(page, "The logs of 3 replicas are equal")
            for size, theme in LOOKS:
                async with screens.page("/", size, theme) as page:
                    for path in found.paths:
                        await page.goto(found.url + path, wait_until="load")
                        name = path.strip("/").partition("?")[0] or "overview"
                        if size == "wide" and (theme == "light" or name in DARK_PICTURES):
                            await picture(page, f"{name}-{theme}")
                        await screens.check(page, path, size)
                        assert await page.title() != "owned"
            await _find_a_topic_with_the_keyboard(screens)
            assert screens.complaints == []

    asyncio.run(run())


async def _find_a_topic_with_the_keyboard(screens: Screens) -> None:
    async with screens.page("/topics", "wide", "light") as page:
        await page.keyboard.press("Tab")
        focused = await page.evaluate("document.activeElement.textContent")
        assert focused == "Skip to the content"
        await page.get_by_role("searchbox").fill("ORD")
        await page.get_by_text("2 of ").wait_for()  # and the broker of that name
        await page.get_by_role("link", name="orders", exact=True).focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/topic?name=orders")


def test_an_operator_changes_everything_that_can_be_changed(
    tmp_path: Path, golden_copy: Callable[[str], Path]
) -> None:
    async def run() -> None:
        async with touring(tmp_path, golden_copy) as (found, screens):
            async with screens.page("/topics") as page:
                await _log_in(page)
                await _send(page, found, screens)
                await _reset(page, found, screens)
                await _resend(page, found, screens)
                await _transfer(page, found, screens)
                await page.goto(f"{found.url}/elections?name={BROKER}")
                await shows(page, "leads in term")
                await _migrate(page, found, screens)
                await _find_damage(page, found, screens)
                await press(page, "log out")
                await shows(page, "log in to change")
            assert screens.complaints == []

    asyncio.run(run())


@NEEDS_JAVA
def test_an_operator_changes_a_group_of_java(
    tmp_path: Path, golden_copy: Callable[[str], Path]
) -> None:
    """Its brokers, too, check the account, and its members hand over."""

    async def run() -> None:
        def java(root: Path) -> Site:
            return JavaSite(root, JavaHome())

        async with touring(tmp_path, golden_copy, java) as (found, screens):
            async with screens.page("/topics") as page:
                await _log_in(page)
                await _send(page, found, screens)
                await _reset(page, found, screens)
                await _resend(page, found, screens)
                await page.goto(f"{found.url}/map")
                await shows(page, "brokers of Java report no digests")
                await screens.check(page, "/map", "wide")
                await _transfer(page, found, screens)
            assert screens.complaints == []

    asyncio.run(run())


async def _log_in(page: Any) -> None:
    await page.get_by_role("link", name="log in to change").click()
    await page.get_by_label("Account").fill(OPERATOR["account"])
    await page.get_by_label("Secret").fill(OPERATOR["secret"])
    await press(page, "Log in")
    await page.wait_for_url("**/topics")


async def _send(page: Any, found: Tour, screens: Screens) -> None:
    await page.goto(f"{found.url}/topic?name=orders")
    await page.get_by_role("link", name="Send a test message").click()
    await page.get_by_label("Body").fill(HOSTILE)
    await page.get_by_label("Tag").fill("<b>")
    await press(page, "Continue")
    await shows(page, "operator will send one message")
    await screens.check(page, "/send", "wide")
    await press(page, "Send it")
    await shows(page, "The message is stored")
    await page.get_by_role("link", name="Show it").click()
    await shows(page, "<img src=x")


async def _reset(page: Any, found: Tour, screens: Screens) -> None:
    await page.goto(f"{found.url}/group?name=billing")
    await page.get_by_role("link", name="Reset offsets").click()
    await page.get_by_label("Topic").fill("orders")
    await page.get_by_label("at the end of every queue").check()
    await press(page, "Show the effect")
    await shows(page, "messages will be skipped")
    await picture(page, "reset-light")
    await screens.check(page, "/reset", "wide")
    await press(page, "Reset the offsets")
    await shows(page, "its offsets are set on the brokers")
    await screens.check(page, "/reset", "wide")


async def _resend(page: Any, found: Tour, screens: Screens) -> None:
    await page.goto(f"{found.url}/dead-letters?group=shipping")
    await page.get_by_role("checkbox").first.check()
    await press(page, "Deliver the selected ones again")
    await shows(page, "dead letters delivered again to shipping")
    await screens.check(page, "/resend", "wide")
    await press(page, "Deliver them again")
    await shows(page, "waits in the retry topic")
    async with asyncio.timeout(SECONDS_MAX):
        while len(found.received) < 2:
            await asyncio.sleep(0.1)  # The consumer gets it from the retry topic.


async def _transfer(page: Any, found: Tour, screens: Screens) -> None:
    await page.goto(f"{found.url}/replication")
    button = page.get_by_role("button", name="Let n").first
    name = str(await button.get_attribute("aria-label")).split()[1]
    await button.click()
    await shows(page, f"hand over to {name}")
    await screens.check(page, "/transfer", "wide")
    await press(page, "Transfer the leadership")
    await shows(page, f"has handed over to {name}")
    await page.goto(f"{found.url}/replication")
    await shows(page, f"led by {name}")


async def _find_damage(page: Any, found: Tour, screens: Screens) -> None:
    """Damage a file of a member that runs, before anybody has looked at the map."""
    store = found.members[1].store
    assert store is not None
    with (store / "dledger-n1" / "data" / f"{0:020d}").open("r+b") as file:
        file.seek(5_000)
        file.write(b"damaged")
    await page.goto(f"{found.url}/map")
    await shows(page, "The logs differ in")
    await shows(page, "differ from most replicas, first at")
    await screens.check(page, "/map", "wide")
    await page.goto(f"{found.url}/")
    await shows(page, "The logs of its replicas differ.")


async def _migrate(page: Any, found: Tour, screens: Screens) -> None:
    await page.goto(f"{found.url}/migration")
    await shows(page, "is stopped")
    await press(page, "Carry out the next step")
    await shows(page, "operator will run")
    await screens.check(page, "/migrate", "wide")
    await press(page, "Carry out the next step")
    await shows(page, "is planned")
    await screens.check(page, "/migration", "wide")


@NEEDS_JAVA
def test_killed_brokers_of_java_and_a_name_server_show_up_and_recover(tmp_path: Path) -> None:
    """The page is not loaded again: it renews itself."""

    async def run(names: ServerProcess, java: ServerProcess, console: ServerProcess) -> None:
        async with (
            browsing_with_chromium(f"http://{console.address}") as screens,
            screens.page("/") as page,
        ):
            await shows(page, "Java 4.9.7")
            await shows(page, "rmqpy, speaks 4.9.7")
            await shows(page, "no alarms")
            async with Producer("p", names.address) as producer:
                sent = await _send_to(producer, "java")
            for path in (
                "/",
                "/topics",
                "/topic?name=TopicTest",
                f"/message?id={sent}",
                "/groups",
                "/group?name=TOOLS_CONSUMER",
                "/replication",
                "/map",
            ):
                async with screens.page(path, "narrow", "dark") as each:
                    await screens.check(each, path, "narrow")
                    assert await each.title() != "owned"
            async with screens.page(f"/message?id={sent}") as each:
                await shows(each, "<img src=x")
                await shows(each, "commitlog/00000000000000000000")
            java.kill()
            await shows(page, "left the name server")
            await picture(page, "overview-killed-light")
            await screens.check(page, "/", "wide")
            names.kill()
            await shows(page, "No name server answers")
            await asyncio.to_thread(names.start)
            await asyncio.to_thread(java.start)
            await shows(page, "no alarms")
            await shows(page, "Java 4.9.7")
            assert [each for each in screens.complaints if "ERR_" not in each] == []

    with ExitStack() as stack:
        site = RmqpySite(tmp_path)
        names = site.namesrv("names", free_port_block(1).first)
        stack.callback(names.kill)
        names.start()
        java, own = (
            kind.broker(
                name,
                BrokerSpec(
                    port=free_port_block(BROKER_PORT_COUNT).broker_port,
                    namesrv=names.address,
                    broker_name=name,
                    settings={"registerNameServerPeriod": "10000"},
                ),
            )
            for kind, name in ((JavaSite(tmp_path / "java", JavaHome()), "java"), (site, "own"))
        )
        for server in (java, own):
            stack.callback(server.kill)
            server.ready_timeout_s = 180
            server.start()
        console = console_process(tmp_path, names.address)
        stack.callback(console.kill)
        console.start()
        asyncio.run(run(names, java, console))


async def _send_to(producer: Producer, broker: str) -> str:
    """Send a hostile message to a queue of a broker; return its offset id."""
    message = Message(topic="TopicTest", body=HOSTILE.encode(), properties={"evil": HOSTILE})
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                sent = await producer.send(message)
            except RmqError:
                await asyncio.sleep(0.5)  # It has not registered yet.
                continue
            if sent.queue.broker_name == broker:
                return sent.offset_msg_id


def test_hostile_names_are_text_on_every_screen() -> None:
    async def run() -> None:
        collector = collecting.Collector(hostile_brokers(), SetClock())
        await collector.poll()
        async with (
            browsing(collector) as client,
            browsing_with_chromium(str(client.make_url("")).rstrip("/")) as screens,
            screens.page("/", "narrow") as page,
        ):
            pages = (each for each in HOSTILE_PATHS if not each.startswith("/subscriptions"))
            for path in pages:  # that one is a part of a page, without an icon
                await page.goto(f"{screens.url}{path}", wait_until="load")
                assert await page.title() != "owned"
                assert await page.locator("img").count() == 0
                assert "onerror=document.title" in await page.content(), path
                await screens.check(page, path, "narrow")
            assert screens.complaints == []

    asyncio.run(run())
