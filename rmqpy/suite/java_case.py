"""Let a real Java broker serve a copy of the result of a walk, and read everything from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.cluster import DemoCluster
from rmqpy.demo.comparison import Reading, read_all_topics
from rmqpy.demo.store_copy import copy_store
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec

READER = "rmqpy-suite-java"
START_SECONDS_MAX = 180.0
"""A broker of 5.x needs eight seconds of CPU time to start, and a busy machine gives it few."""


async def read_with_java(
    version: str,
    source: Path,
    folder: Path,
    cluster: DemoCluster,
    queues: Sequence[tuple[str, int]],
) -> Reading | str:
    """Return what clients read from a Java broker on a copy of ``source``; the broker has stopped
    then. Return a text if Java is not available.
    """
    home = JavaHome(version)
    missing = await asyncio.to_thread(home.missing)
    if missing is not None:
        return f"Java {version}: {missing}"
    await asyncio.to_thread(copy_store, source, folder / "store")
    block = free_port_block(BROKER_PORT_COUNT)
    spec = BrokerSpec(
        port=block.broker_port,
        namesrv=cluster.namesrv.address,
        broker_name=cluster.broker_name,
        store=folder / "store",
        sizes={},
        settings={**cluster.settings, "brokerRole": "ASYNC_MASTER"},
    )
    server = JavaSite(folder / "site", home).broker("java", spec)
    server.ready_timeout_s = START_SECONDS_MAX
    try:
        await asyncio.to_thread(server.start)
        await cluster.master_is_known()
        async with PullConsumer(READER, cluster.namesrv.address) as consumer:
            reading = await read_all_topics(consumer, cluster.broker_name, queues)
        await asyncio.to_thread(server.stop)
        return reading
    finally:
        server.kill()
        block.release()
