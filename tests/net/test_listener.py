"""Listening sockets: what an address resolves to, and where."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from rmqpy.net.server.listener import open_sockets


async def listen(host: str) -> tuple[list[str], list[str]]:
    """Listen on a free port; return the addresses of the sockets, and the names that a thread
    resolved.
    """
    loop, asked = asyncio.get_running_loop(), list[str]()
    resolve = loop.getaddrinfo

    async def recorded(host: str, *words: Any, **options: Any) -> list[Any]:
        asked.append(host)
        return await resolve(host, *words, **options)

    loop.getaddrinfo = recorded  # type: ignore[method-assign, assignment]
    listener = await open_sockets(loop, (host, 0), 1, socket.socket.close)
    try:
        return [each.getsockname()[0] for each in listener.sockets], asked
    finally:
        listener.close()


def test_an_address_needs_no_thread() -> None:
    assert asyncio.run(listen("127.0.0.1")) == (["127.0.0.1"], [])
    everywhere, asked = asyncio.run(listen(""))
    assert "0.0.0.0" in everywhere and not asked


def test_a_name_is_resolved_in_a_thread() -> None:
    found, asked = asyncio.run(listen("localhost"))
    assert {*found} & {"127.0.0.1", "::1"} and asked == ["localhost"]
