"""Health and readiness of a running broker and name server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqpy.broker.assembly import process
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.broker.assembly.readiness import STARTING, STOPPING, BrokerProbes
from rmqpy.broker.services.fence import REASON
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.errors import StoreError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.store.message_store import open_store
from rmqpy.testing.harness import BuildBroker
from rmqpy.testing.in_process import SMALL_FILES, name_server_in_process, registered
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

aiohttp = pytest.importorskip("aiohttp")


async def get(address: str, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as response,
    ):
        return response.status, (await response.text()).rstrip("\n")


@asynccontextmanager
async def stopped_broker(root: Path, settings: Mapping[str, str]) -> Any:
    """Yield a broker that was not started, and the address of its pages."""
    ports = free_port_block(BROKER_PORT_COUNT + 1)
    address = f"127.0.0.1:{ports.first + BROKER_PORT_COUNT}"
    own = {
        "brokerName": "a",
        "listenPort": str(ports.broker_port),
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(root / "store"),
        "metricsListenAddress": address,
    }
    loaded = load_broker_configuration(
        None, {**SMALL_FILES, **own, **settings}, {"HOME": str(root)}
    )
    scheduler = AsyncioScheduler()
    broker = BrokerRuntime(loaded.configuration, scheduler)
    try:
        yield broker, address
    finally:
        await broker.stop()
        await scheduler.close()


def test_a_broker_that_recovers_is_healthy_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()

    def slowly(context: Any) -> Any:
        assert may_open.wait(60)
        return open_store(context)

    monkeypatch.setattr(process, "open_store", slowly)

    async def main() -> None:
        async with (
            name_server_in_process(tmp_path) as names,
            stopped_broker(tmp_path, {"namesrvAddr": names}) as (broker, address),
        ):
            starting = asyncio.create_task(broker.start())
            while True:
                try:
                    assert await get(address, "/ready") == (503, f"not ready: {STARTING}")
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0)
            assert await get(address, "/health") == (200, "healthy")
            assert await get(address, "/metrics") == (503, "starting")
            may_open.set()
            await starting
            await registered(broker)
            assert await get(address, "/ready") == (200, "ready")
            assert (await get(address, "/metrics"))[0] == 200
            broker.broker.fence.close(60)
            assert await get(address, "/ready") == (503, f"not ready: {REASON}")
            assert await get(address, "/health") == (200, "healthy")
            broker.broker.fence.open()
            assert await get(address, "/ready") == (200, "ready")

    asyncio.run(main())


def test_a_start_that_is_cancelled_closes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = threading.Event(), threading.Event()
    opened: list[Any] = []

    def slowly(context: Any) -> Any:
        opening.set()
        assert may_open.wait(60)
        opened.append(open_store(context))
        return opened[0]

    monkeypatch.setattr(process, "open_store", slowly)

    async def main() -> None:
        async with stopped_broker(tmp_path, {}) as (broker, address):
            starting = asyncio.create_task(broker.start())
            await asyncio.to_thread(opening.wait, 60)
            starting.cancel()
            may_open.set()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert not opened[0].health.is_open
            with pytest.raises(aiohttp.ClientConnectorError):
                await get(address, "/health")

    asyncio.run(main())


def test_a_start_that_fails_closes_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_context: Any) -> Any:
        raise StoreError("/store", "damage", "a store", "restore it")

    monkeypatch.setattr(process, "open_store", damaged)

    async def main() -> None:
        async with stopped_broker(tmp_path, {}) as (broker, address):
            with pytest.raises(StoreError):
                await broker.start()
            with pytest.raises(aiohttp.ClientConnectorError):
                await get(address, "/health")

    asyncio.run(main())


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port_block(1).first}"

    async def main() -> None:
        async with stopped_broker(tmp_path, {"namesrvAddr": nobody}) as (broker, address):
            await broker.start()
            expected = "not ready: no name server has answered its registration yet"
            assert await get(address, "/ready") == (503, expected)
            assert await get(address, "/health") == (200, "healthy")

    asyncio.run(main())


def test_without_name_servers_a_broker_need_not_register(build: BuildBroker) -> None:
    probes = BrokerProbes(build(namesrv_addr=None).broker)
    assert probes.not_ready() == []
    probes.is_stopping = True
    assert probes.not_ready() == [STOPPING]


def test_a_full_disk_is_no_reason_to_start_again_but_a_failed_write_is(build: BuildBroker) -> None:
    broker = build(namesrv_addr=None).broker
    probes = BrokerProbes(broker)
    broker.store.health.set_disk_full(True)
    assert probes.not_ready() == ["the disk is full"]
    failed = "writing the commit log failed: [Errno 5]"
    broker.store.health.fail(failed)
    assert probes.not_ready() == [failed]
    assert failed in probes.unhealthy()


def test_a_slave_is_ready_although_it_refuses_messages(build: BuildBroker) -> None:
    broker = build(namesrv_addr=None).broker
    broker.identity.role, broker.identity.broker_id = broker.identity.role.SLAVE, 1
    broker.store.health.set_role(slave=True)
    assert BrokerProbes(broker).not_ready() == []


def test_a_member_needs_a_role_and_a_log_of_its_group(build: BuildBroker) -> None:
    broker = build(namesrv_addr=None).broker
    broker.identity.broker_id = -1
    probes = BrokerProbes(broker, lambda: {"fault": "diverged from n0"})
    reasons = probes.not_ready()
    assert reasons[:2] == ["it has no role in its group yet", "diverged from n0"]


def test_a_disk_that_is_mounted_read_only_is_not_healthy(
    build: BuildBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = build(namesrv_addr=None).broker
    monkeypatch.setattr(broker.identity, "store", _store_at(broker.identity.store, tmp_path))
    assert BrokerProbes(broker).unhealthy() == []
    found = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = found.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _path: ReadOnly)
    expected = f"{tmp_path} is on a file system that is mounted read-only"
    assert BrokerProbes(broker).unhealthy() == [expected]


def _store_at(settings: Any, root: Path) -> Any:
    import attrs

    return attrs.evolve(settings, store_path_root_dir=str(root))


def test_a_name_server_is_ready_once_it_listens(tmp_path: Path) -> None:
    ports = free_port_block(2)
    address = f"127.0.0.1:{ports[1]}"
    settings = {
        "listenPort": str(ports[0]),
        "kvConfigPath": str(tmp_path / "kv.json"),
        "metricsListenAddress": address,
    }
    loaded = load_namesrv_configuration(None, settings, {"HOME": str(tmp_path)})

    async def main() -> None:
        scheduler = AsyncioScheduler()
        server = NamesrvProcess(loaded.configuration, scheduler)
        await server.start()
        assert await get(address, "/ready") == (200, "ready")
        assert await get(address, "/health") == (200, "healthy")
        assert (await get(address, "/metrics"))[0] == 404
        await server.stop()
        await scheduler.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(address, "/ready")

    asyncio.run(main())
