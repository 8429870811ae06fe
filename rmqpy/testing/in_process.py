"""Run a real name server and a real broker in the current event loop, on loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

SMALL_FILES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
"""The settings of a store with small files."""


@define(frozen=True, kw_only=True)
class InProcess:
    """The running servers. Addresses are ``host:port``."""

    name_server: str
    broker_address: str
    broker: BrokerRuntime


@asynccontextmanager
async def name_server_in_process(root: Path) -> AsyncIterator[str]:
    """Run a name server, with ``root/kv.json`` as its table, and yield its address."""
    ports = free_port_block(1)
    settings = {"listenPort": str(ports[0]), "kvConfigPath": str(root / "kv.json")}
    loaded = load_namesrv_configuration(None, settings, {"HOME": str(root)})
    scheduler = AsyncioScheduler()
    process = NamesrvProcess(loaded.configuration, scheduler)
    await process.start()
    try:
        yield f"127.0.0.1:{ports[0]}"
    finally:
        await process.stop()
        await scheduler.close()


@asynccontextmanager
async def broker_in_process(
    root: Path, name_server: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[BrokerRuntime]:
    """Run a broker until the context ends, and yield it.

    Its name is ``a`` and its store ``root/store``, unless ``settings`` override them.
    """
    ports = free_port_block(BROKER_PORT_COUNT)
    own = {
        "brokerName": "a",
        "listenPort": str(ports.broker_port),
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": name_server,
        "storePathRootDir": str(root / "store"),
    }
    loaded = load_broker_configuration(
        None, {**SMALL_FILES, **own, **(settings or {})}, {"HOME": str(root)}
    )
    scheduler = AsyncioScheduler()
    broker = BrokerRuntime(loaded.configuration, scheduler)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await scheduler.close()


async def registered(broker: BrokerRuntime) -> None:
    """Wait until a name server has answered the first registration of ``broker``."""
    registration = broker.broker.registration
    answered = asyncio.Event()
    registration.subscribe(lambda server, answer: answered.set())
    if registration.last_answer is None:
        await answered.wait()


@asynccontextmanager
async def name_server_and_broker(
    root: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[InProcess]:
    """Run a name server and a broker, as :func:`broker_in_process` does, until the context ends.

    The broker is registered.
    """
    async with (
        name_server_in_process(root) as name_server,
        broker_in_process(root, name_server, settings) as broker,
    ):
        await registered(broker)
        yield InProcess(name_server=name_server, broker_address=broker.address, broker=broker)
