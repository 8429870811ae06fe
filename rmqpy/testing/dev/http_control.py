"""The commands over HTTP: ``POST /pause`` with a JSON object of arguments, or without a body, and
``GET /`` for the status.

It listens on loopback only. A request from a web page is refused: browsers send ``Origin`` with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

BODY_BYTES_MAX: Final = 65_536
HEADERS_MAX: Final = 100
READ_SECONDS: Final = 10.0

Run = Callable[[object], Awaitable[dict[str, Any]]]


class BadHttpError(Exception):
    """The request is not answered with a command; ``status`` is the line of the response."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class HttpControl:
    """The HTTP server. Await ``listen`` once, and ``close`` at the end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._server: asyncio.Server | None = None

    async def listen(self) -> str:
        """Listen on a free port of loopback, and return the URL."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, answer = await self._answer(reader)
            body = json.dumps(answer).encode() + b"\n"
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # The client has gone.
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                command = await _command(reader)
        except BadHttpError as error:
            return error.status, {"ok": False, "error": str(error)}
        except (ValueError, TimeoutError):
            reason = "the request is not complete, or its lines are too long"
            return "400 Bad Request", {"ok": False, "error": reason}
        answer = await self._run(command)
        return "200 OK" if answer["ok"] else "400 Bad Request", answer


async def _command(reader: asyncio.StreamReader) -> dict[str, Any]:
    words = (await reader.readline()).split()
    if len(words) != 3:
        raise BadHttpError("400 Bad Request", "expected a request such as POST /pause HTTP/1.1")
    method, path = words[0].decode("latin-1"), words[1].decode("latin-1")
    headers = await _headers(reader)
    if "origin" in headers:
        raise BadHttpError("403 Forbidden", "requests of web pages are refused")
    if headers.get("host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise BadHttpError("403 Forbidden", "expected the Host 127.0.0.1 or localhost")
    if method == "GET" and path == "/":
        return {"do": "status"}
    if method != "POST" or not path.startswith("/"):
        raise BadHttpError("405 Method Not Allowed", "expected POST /COMMAND, or GET /")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
        raise BadHttpError("413 Content Too Large", f"expected at most {BODY_BYTES_MAX} bytes")
    body = await reader.readexactly(int(length))
    try:
        arguments = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        raise BadHttpError("400 Bad Request", "the body is not JSON") from None
    if not isinstance(arguments, dict):
        raise BadHttpError("400 Bad Request", "expected a JSON object as the body")
    return {**arguments, "do": path[1:]}


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            return headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise BadHttpError("431 Request Header Fields Too Large", f"more than {HEADERS_MAX} headers")
