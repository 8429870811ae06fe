"""A proxy that relays the connections of clients to one broker, and records their frames.

The bytes of both directions are relayed as they arrive; a frame is recorded when it is complete.
If the recording cannot be written, or has reached its limit, the traffic goes on without it.
Clients find brokers through a name server, so :class:`RouteProxy` relays a name server and replaces
the address of the broker in its answers with that of the proxy.

Invariants: a client that does not read is not read for; at most one unfinished frame per direction
is in memory; a stream that is no longer understood is relayed, and not recorded any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import Struct
from typing import Final

from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.frame import LENGTH_BYTES, MAX_FRAME, decode_command, encode_command
from rmqpy.traffic.recording import RecordingWriter, RecordKind, TrafficRecord

READ_BYTES: Final = 1 << 16
HIGH_WATER_BYTES: Final = 1 << 20
FLUSH_SECONDS: Final = 0.5
ROUTES: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
_LENGTH: Final = Struct(">I")

logger = logging.getLogger(__name__)


class FrameCutter:
    """Splits a stream into whole frames, each with its length. Raises RmqError if a length is
    impossible.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def cut(self, data: bytes) -> list[bytes]:
        self._pending += data
        frames = []
        while len(self._pending) >= LENGTH_BYTES:
            size = LENGTH_BYTES + _LENGTH.unpack_from(self._pending)[0]
            if size > LENGTH_BYTES + MAX_FRAME:
                raise RmqError(f"found a frame of {size} bytes, expected at most {MAX_FRAME}")
            if len(self._pending) < size:
                break
            frames.append(bytes(self._pending[:size]))
            del self._pending[:size]
        return frames


class TrafficRecorder:
    """The clock, the numbers of connections, and the writer of one recording."""

    def __init__(self, writer: RecordingWriter, bytes_max: int | None = None) -> None:
        self._writer = writer
        self._bytes_max = bytes_max
        self._begin_s = time.monotonic() - writer.begin_us / 1e6
        self._connections = writer.connections
        self.frames = 0
        self.ended = ""
        """Why nothing is recorded any more, or empty."""

    def opened(self) -> int:
        """Return the number of a new connection."""
        self._connections += 1
        self.record(RecordKind.OPENED, self._connections)
        return self._connections

    def record(self, kind: RecordKind, connection: int, data: bytes = b"") -> None:
        """Record one frame. An error ends the recording, not the traffic."""
        if self.ended:
            return
        time_us = round((time.monotonic() - self._begin_s) * 1e6)
        try:
            self._writer.append(TrafficRecord(kind, connection, time_us, data))
        except OSError as error:
            self._end(f"the recording ends here: {error.strerror}")
        else:
            self.frames += kind in (RecordKind.REQUEST, RecordKind.ANSWER)
            if self._bytes_max is not None and self._writer.bytes_written >= self._bytes_max:
                self._end(f"the recording ends here: it has {self._writer.bytes_written} bytes")

    def flush(self) -> None:
        try:
            self._writer.flush()
        except OSError as error:
            self._end(f"the recording ends here: {error.strerror}")

    def _end(self, why: str) -> None:
        if not self.ended:
            self.ended = why
            logger.error("%s; the traffic goes on", why)


class RecordingProxy:
    """Listens, and relays each connection to ``target``."""

    def __init__(self, target: str, recorder: TrafficRecorder) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._recorder = recorder
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> str:
        """Listen, and return the address. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=READ_BYTES)
        found = self._server.sockets[0].getsockname()
        return f"{found[0]}:{found[1]}"

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._recorder.flush()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = self._recorder.opened()
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection(self._host, self._port)
            for each in (writer, far):
                each.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
            directions = [
                self._relay(reader, far, self._watch(RecordKind.REQUEST, number)),
                self._relay(far_reader, writer, self._watch(RecordKind.ANSWER, number)),
            ]
            running = [asyncio.create_task(each) for each in directions]
            try:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each_task in running:
                    each_task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        except OSError as error:
            logger.warning("%s:%d: %s", self._host, self._port, error)
        finally:
            self._recorder.record(RecordKind.CLOSED, number)
            for stream in (writer, far):
                if stream is not None:
                    stream.close()
            self._tasks.discard(task)

    def _watch(self, kind: RecordKind, number: int) -> Callable[[bytes], bytes]:
        cutter: FrameCutter | None = FrameCutter()

        def watch(data: bytes) -> bytes:
            nonlocal cutter
            if cutter is not None:
                try:
                    for frame in cutter.cut(data):
                        self._recorder.record(kind, number, frame)
                except RmqError as error:
                    cutter = None
                    logger.warning("connection %d is not recorded any more: %s", number, error)
            return data

        return watch

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        watch: Callable[[bytes], bytes],
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                writer.write(watch(data))
                await writer.drain()


class RouteProxy(RecordingProxy):
    """A proxy of a name server that replaces addresses in the routes that it answers; nothing is
    recorded.
    """

    def __init__(self, target: str, addresses: Mapping[str, str]) -> None:
        super().__init__(target, _Nothing())
        self._pairs = [(f'"{old}"'.encode(), f'"{new}"'.encode()) for old, new in addresses.items()]

    def _watch(self, kind: RecordKind, number: int) -> Callable[[bytes], bytes]:
        cutter = FrameCutter()
        if kind is RecordKind.REQUEST:
            return lambda data: data
        return lambda data: b"".join(map(self._replaced, cutter.cut(data)))

    def _replaced(self, frame: bytes) -> bytes:
        if not any(old in frame for old, _ in self._pairs):
            return frame
        command = decode_command(memoryview(frame)[LENGTH_BYTES:])
        for old, new in self._pairs:
            command.body = command.body.replace(old, new)
        return encode_command(command)


class _Nothing(TrafficRecorder):
    """Records nothing."""

    def __init__(self) -> None:
        self.frames, self.ended = 0, ""

    def opened(self) -> int:
        return 0

    def record(self, kind: RecordKind, connection: int, data: bytes = b"") -> None:
        pass

    def flush(self) -> None:
        pass
