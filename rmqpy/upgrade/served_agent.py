"""The agent of ``rmqpy upgrade serve --drive``: frames go to and fro over an upgraded connection.

After the answer 101 the connection carries the standard streams of ``rmqpy upgrade agent``, as ssh
does. The agent ends when its connection does, at its next question or answer.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from aiohttp import web

HEAD = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
PIECE_BYTES = 256 << 10


async def relay(
    request: web.Request, received: asyncio.StreamReader, command: Sequence[str]
) -> web.StreamResponse:
    """Start the agent and carry its frames until one side ends.

    ``received`` is what the client sends after the answer 101.
    """
    transport = request.transport
    if transport is None or request.headers.get("Upgrade", "").lower() != "tcp":
        return web.Response(status=400, text="found no Upgrade: tcp, expected it")
    received.set_transport(transport)
    agent = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    await request.writer.write(HEAD)
    pumps = [
        asyncio.create_task(_to_agent(received, agent)),
        asyncio.create_task(_from_agent(agent, request)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)  # only one may read what is left
        assert agent.stdin is not None
        agent.stdin.close()
        transport.close()
        await _ended(agent)
    return web.Response()  # it is not sent: the connection is closed


async def _to_agent(received: asyncio.StreamReader, agent: Process) -> None:
    assert agent.stdin is not None
    while data := await received.read(PIECE_BYTES):
        agent.stdin.write(data)
        await agent.stdin.drain()


async def _from_agent(agent: Process, request: web.Request) -> None:
    assert agent.stdout is not None
    while data := await agent.stdout.read(PIECE_BYTES):
        await request.writer.write(data)


async def _ended(agent: Process) -> None:
    """Read what is left, so that the agent is not held by a full pipe, and wait for its end."""
    assert agent.stdout is not None
    while await agent.stdout.read(PIECE_BYTES):
        pass
    await agent.wait()
