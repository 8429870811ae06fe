"""A peer that sends hostile frames over a socket and reports the server's reaction to each.

Every frame that a server can answer is followed by a valid one, the probe: its answer shows that
the connection is alive. A frame whose rest a server may wait for is followed by the end of the
stream instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from attrs import define, field

from fuzz.frames import PROBE_OPAQUE, Expected, HostileFrame, probe_frame
from rmqpy.remoting.frame_decoder import FrameDecoder

PATIENCE_S: Final = 20.0
"""The time after which a server that neither answers nor closes is considered to hang."""

_READ_BYTES: Final = 1 << 18
_PROBE: Final = probe_frame()


@define(slots=True)
class HostilePeer:
    """One connection to ``host:port`` at a time, reopened after the server has closed it."""

    host: str
    port: int
    connections: int = 0
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    _receiver: FrameDecoder = field(factory=FrameDecoder)

    async def deliver(self, frame: HostileFrame) -> Expected:
        """Send ``frame`` and return the reaction. Raise TimeoutError if there is none."""
        reader, writer = await self._connected()
        may_wait = Expected.WAITS in frame.expected
        with contextlib.suppress(ConnectionError):
            writer.write(frame.data)
            if may_wait:
                writer.write_eof()
            else:
                writer.write(_PROBE)
            await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            answers = await self._answers(reader, frame)
        if may_wait:
            await self.close()
            return Expected.ANSWERS if answers else frame.expected & ~Expected.ANSWERS
        if PROBE_OPAQUE not in answers:
            await self.close()
            return Expected.CLOSES
        if answers.get(frame.opaque, 0) != 0:
            return Expected.REFUSES | Expected.ANSWERS
        return Expected.ANSWERS

    async def close(self) -> None:
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.host, self.port)
            self._receiver = FrameDecoder()
            self.connections += 1
        return self._streams

    async def _answers(
        self, reader: asyncio.StreamReader, frame: HostileFrame
    ) -> dict[int | None, int]:
        """Return the codes of the responses by opaque.

        Read up to the required responses or to the end of the stream. Responses to sends may follow
        the response to the probe.
        """
        required = {PROBE_OPAQUE, frame.opaque} - {None}
        answers: dict[int | None, int] = {}
        with contextlib.suppress(ConnectionError):
            while not required <= answers.keys() and (data := await reader.read(_READ_BYTES)):
                for answer in self._receiver.receive(data):
                    if answer.is_response:
                        answers[answer.opaque] = answer.code
        return answers
