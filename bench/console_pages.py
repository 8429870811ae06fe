"""Measure the pages of the console beside a broker with many topics and groups, in Chromium.

    python bench/console_pages.py                          10,000 topics and 2,000 groups
    python bench/console_pages.py --kind java              the same for a broker of Java
    python bench/console_pages.py --seconds 60             also what ten viewers cost the broker

For each page: the time from the start of the navigation to the first byte, and to the end of the
load event, as the browser reports them (Navigation Timing); the first visit, when the console has
to ask the broker, and the median of ``--rounds`` later ones, each after the answers have become too
old to be shared. The cost of viewers is the CPU time of the broker's process as a share of a core,
without a console, with a console that nobody looks at, and with ten open pages that update
themselves.

Needs Debian's package chromium, and playwright.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from attrs import frozen
from load_target import cpu_seconds

from rmqpy.remoting.bodies import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, python_environment

QUEUES: Final = 4
FRESH_SECONDS: Final = 16
"""After this time, no answer of the console is shared any more."""
SETTLE_SECONDS: Final = 12
VIEWERS: Final = 10


@frozen
class Cluster:
    """A broker, and a console of it."""

    broker: ServerProcess
    console: ServerProcess
    topics: int
    groups: int

    @property
    def pages(self) -> dict[str, str]:
        return {
            "overview": "/",
            "topics": "/topics",
            "topics, page 100": "/topics?page=100",
            "topics, search": f"/topics?search=topic-{self.topics - 1:05}",
            "topic": "/topic?name=topic-00000",
            "groups": "/groups",
            "groups, page 20": "/groups?page=20",
            "groups, search": f"/groups?search=group-{self.groups - 1:05}",
            "group": "/group?name=group-00000",
            "replication": "/replication",
            "store map": "/map",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=("rmqpy", "java"), default="rmqpy")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=0, help="of each measurement of the cost")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = start(Path(folder), options, stack)
        asyncio.run(measure(cluster, options))


def start(folder: Path, options: argparse.Namespace, stack: ExitStack) -> Cluster:
    """Start a name server and a broker with full tables, and describe the console."""
    site = RmqpySite(folder)
    names = stack.enter_context(site.namesrv("namesrv", free_port_block(1).first))
    spec = BrokerSpec(port=free_port_block(BROKER_PORT_COUNT).broker_port, namesrv=names.address)
    kind = JavaSite(folder / "java", JavaHome()) if options.kind == "java" else site
    broker = kind.broker("broker", spec)
    assert broker.store is not None
    write_tables(broker.store / "config", options.topics, options.groups)
    broker.ready_timeout_s = 180
    stack.enter_context(broker)
    port = free_port_block(1).first
    words = [sys.executable, "-P", "-m", "rmqpy.cli", "console", "-n", names.address]
    console = ServerProcess(
        "console",
        [*words, "--port", str(port)],
        folder / "console",
        port,
        re.compile(rb"^console at http", re.MULTILINE),
        environment=python_environment(),
    )
    stack.callback(console.kill)
    return Cluster(broker, console, options.topics, options.groups)


def write_tables(folder: Path, topics: int, groups: int) -> None:
    """Write the tables of a broker: each group has consumed from a topic of its own."""
    version = DataVersion(1, 0, 1)
    topic_names = [f"topic-{number:05}" for number in range(topics)]
    group_names = [f"group-{number:05}" for number in range(groups)]
    tables = {
        "topics": TopicConfigSerializeWrapper(
            version, {name: TopicConfig(name, QUEUES, QUEUES) for name in topic_names}
        ),
        "subscriptionGroup": SubscriptionGroupWrapper(
            version, {name: SubscriptionGroupConfig(name) for name in group_names}
        ),
        "consumerOffset": ConsumerOffsetSerializeWrapper(
            {
                f"{topic_names[number % topics]}@{name}": {queue: 0 for queue in range(QUEUES)}
                for number, name in enumerate(group_names)
            }
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.json").write_bytes(table.encode())


async def measure(cluster: Cluster, options: argparse.Namespace) -> None:
    from playwright.async_api import async_playwright

    program = shutil.which("chromium")
    assert program is not None, "found no chromium, expected Debian's; apt-get install chromium"
    shares = {}
    if options.seconds:
        await asyncio.sleep(SETTLE_SECONDS)
        shares["without a console"] = await cost(cluster.broker, options.seconds)
    cluster.console.start()
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        print("page | first byte, load event of the first visit, ms | median of later visits, ms")
        first = await visits(browser, cluster)
        later: dict[str, list[tuple[float, float]]] = {name: [] for name in cluster.pages}
        for _ in range(options.rounds):
            await asyncio.sleep(FRESH_SECONDS)
            for name, times in (await visits(browser, cluster)).items():
                later[name].append(times)
        for name, rows in later.items():
            byte, load = (median(each[place] for each in rows) for place in (0, 1))
            print(f"{name} | {first[name][0]:.0f}, {first[name][1]:.0f} | {byte:.0f}, {load:.0f}")
        if options.seconds:
            await asyncio.sleep(SETTLE_SECONDS)
            shares["with a console that nobody looks at"] = await cost(
                cluster.broker, options.seconds
            )
            shares[f"with {VIEWERS} open pages"] = await viewed(browser, cluster, options.seconds)
        await browser.close()
    for name, share in shares.items():
        print(f"CPU time of the broker {name}: {share:.2%} of a core")


async def visits(browser: Any, cluster: Cluster) -> dict[str, tuple[float, float]]:
    """Return first byte and load event of each page in ms, each in a browser without a cache."""
    found = {}
    for name, path in cluster.pages.items():
        page = await browser.new_page()
        await page.goto(f"http://{cluster.console.address}{path}", wait_until="load")
        await page.wait_for_function(
            "performance.getEntriesByType('navigation')[0].loadEventEnd > 0"
        )
        found[name] = tuple(
            await page.evaluate(
                "(n => [n.responseStart, n.loadEventEnd])"
                "(performance.getEntriesByType('navigation')[0])"
            )
        )
        await page.close()
    return found


async def viewed(browser: Any, cluster: Cluster, seconds: int) -> float:
    """Return the cost of the broker with ten open pages, no two of which are the same."""
    pages = []
    for path in [*cluster.pages.values()][:VIEWERS]:
        pages.append(await browser.new_page())
        await pages[-1].goto(f"http://{cluster.console.address}{path}", wait_until="load")
    await asyncio.sleep(SETTLE_SECONDS)
    share = await cost(cluster.broker, seconds)
    for page in pages:
        await page.close()
    return share


async def cost(broker: ServerProcess, seconds: int) -> float:
    """Return the CPU time of a broker as a share of a core."""
    start, began = cpu_seconds(broker.pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_seconds(broker.pid) - start) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
