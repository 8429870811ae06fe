"""A name server and a broker inside the running loop: the real ones, on sockets of the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define

from rmqpy.broker.process import BrokerProcess
from rmqpy.model.config import load_broker_configuration, load_namesrv_configuration
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.testing.ports import free_port_block

SMALL_FILES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
"""Settings of a store that takes little room."""


@define(frozen=True, kw_only=True)
class InProcess:
    """What runs. Addresses are ``host:port``."""

    name_server: str
    broker_address: str
    broker: BrokerProcess


@asynccontextmanager
async def name_server_and_broker(
    root: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[InProcess]:
    """Runs both until the context ends. The store is ``root/store``, the broker is called ``a``;
    ``settings`` go over these.
    """
    scheduler = AsyncioScheduler()
    home = {"HOME": str(root)}
    ports = free_port_block(4)
    ports.release()
    name_server = f"127.0.0.1:{ports[1]}"
    namesrv = NamesrvProcess(
        load_namesrv_configuration(
            None, {"listenPort": str(ports[1]), "kvConfigPath": str(root / "kv.json")}, home
        ).configuration,
        scheduler,
    )
    own = {
        "brokerName": "a",
        "listenPort": str(ports.broker_port),
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": name_server,
        "storePathRootDir": str(root / "store"),
    }
    loaded = load_broker_configuration(None, {**SMALL_FILES, **own, **(settings or {})}, home)
    broker = BrokerProcess(loaded.configuration, scheduler)
    await namesrv.start()
    try:
        await broker.start()
        try:
            yield InProcess(
                name_server=name_server, broker_address=broker.address, broker=broker
            )
        finally:
            await broker.stop()
    finally:
        await namesrv.stop()
        await scheduler.close()
