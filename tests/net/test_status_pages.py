"""Tests of ``/health``, ``/ready`` and ``/metrics``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
from attrs import define

from rmqpy.model.errors import ConfigError
from rmqpy.net.probes import open_status_pages

aiohttp = pytest.importorskip("aiohttp")

from rmqpy.net import status_pages  # noqa: E402 - needs aiohttp


@define
class Probed:
    """The answers of a server."""

    health: Sequence[str] = ()
    ready: Sequence[str] = ()

    def unhealthy(self) -> Sequence[str]:
        return self.health

    def not_ready(self) -> Sequence[str]:
        return self.ready


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


def test_each_page_answers_with_its_reasons() -> None:
    async def main() -> None:
        probed = Probed()
        pages = status_pages.StatusPages(probed.unhealthy, probed.not_ready, has_metrics=True)
        port = int((await pages.listen("127.0.0.1", 0)).rpartition(":")[2])
        assert await get(port, "/health") == (200, "healthy\n")
        assert await get(port, "/ready") == (200, "ready\n")
        assert await get(port, "/metrics") == (503, "starting\n")
        assert (await get(port, "/other"))[0] == 404
        probed.health, probed.ready = ["a", "b"], ["c"]
        assert await get(port, "/health") == (503, "not healthy: a\nnot healthy: b\n")
        assert await get(port, "/ready") == (503, "not ready: c\n")
        await pages.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(port, "/health")

    asyncio.run(main())


def test_a_server_without_series_has_no_page_for_them() -> None:
    async def main() -> None:
        pages = status_pages.StatusPages(tuple, tuple, has_metrics=False)
        port = int((await pages.listen("127.0.0.1", 0)).rpartition(":")[2])
        assert (await get(port, "/metrics"))[0] == 404
        await pages.close()

    asyncio.run(main())


def test_idle_connections_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_pages, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr("rmqpy.net.bounded_http.HEAD_SECONDS", 0.05)

    async def main() -> None:
        pages = status_pages.StatusPages(tuple, tuple, has_metrics=False)
        port = int((await pages.listen("127.0.0.1", 0)).rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, _ in idle:  # the third at once, the others after their time
            assert await asyncio.wait_for(end_of(reader), 10) == b""
        assert await get(port, "/health") == (200, "healthy\n")
        for _, writer in idle:
            writer.close()
        await pages.close()

    asyncio.run(main())


async def end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"metricsListenAddress={address}: found"):
            asyncio.run(open_status_pages(address, Probed(), metrics=True))


def test_without_an_address_there_is_no_port() -> None:
    assert asyncio.run(open_status_pages(None, Probed(), metrics=True)) is None
