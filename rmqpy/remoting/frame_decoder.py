"""The incoming half of a connection: bytes in, commands out.

Invariants: the result does not depend on how the stream is split. At most one unfinished frame is
kept, so memory depends on the bytes received, never on the length that a peer claims. After an
error the decoder accepts no more bytes and raises the same error again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, MAX_FRAME, WORD_BYTES, decode_command, is_head_whole

_LENGTH: Final = Struct(">I")


class FrameDecoder:
    """A decoder that splits a byte stream into commands."""

    __slots__ = ("_decode", "_fault", "_max_frame", "_needed", "_pending")

    def __init__(
        self,
        max_frame: int = MAX_FRAME,
        decode: Callable[[memoryview], RemotingCommand] = decode_command,
    ) -> None:
        """Create a decoder; ``decode`` has the results of ``decode_command``."""
        assert max_frame > LENGTH_BYTES + WORD_BYTES, max_frame
        self._decode = decode
        self._max_frame = max_frame
        self._pending = bytearray()
        self._needed = LENGTH_BYTES
        self._fault: str | None = None  # only the text: an exception would keep its frames alive

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of the unfinished frame."""
        return len(self._pending)

    @property
    def is_head_whole(self) -> bool:
        """True if the header of the unfinished frame is complete."""
        return is_head_whole(self._pending)

    def receive(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Return the commands that ``data`` completes, in order.

        Raises RemoteProtocolError as soon as the peer breaks the protocol. Commands that precede
        the error in the same ``data`` are dropped with the connection.
        """
        if self._fault is not None:
            raise RemoteProtocolError(self._fault)
        try:
            if not self._pending:
                command = self._only_frame(data)
                if command is not None:
                    return [command]
                with memoryview(data) as view:
                    commands, used = self._cut(view)
                    self._pending += view[used:]
                return commands
            self._pending += data
            if len(self._pending) < self._needed:
                return []
            with memoryview(self._pending) as view:
                commands, used = self._cut(view)
            del self._pending[:used]
            return commands
        except RemoteProtocolError as fault:
            self._fault = str(fault)
            self._pending = bytearray()
            raise

    def _only_frame(self, data: bytes | bytearray | memoryview) -> RemotingCommand | None:
        """Return the command if ``data`` is exactly one frame (the usual case), otherwise None."""
        size = len(data)
        if not LENGTH_BYTES + WORD_BYTES <= size <= self._max_frame:
            return None
        (length,) = _LENGTH.unpack_from(data)
        if length + LENGTH_BYTES != size:
            return None
        return self._decode(memoryview(data)[LENGTH_BYTES:])

    def _cut(self, view: memoryview) -> tuple[list[RemotingCommand], int]:
        commands: list[RemotingCommand] = []
        position = 0
        while True:
            self._needed = LENGTH_BYTES
            if len(view) - position < LENGTH_BYTES:
                return commands, position
            (length,) = _LENGTH.unpack_from(view, position)
            if length + LENGTH_BYTES > self._max_frame or length < WORD_BYTES:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes: expected {WORD_BYTES} to "
                    f"{self._max_frame - LENGTH_BYTES}"
                )
            self._needed = LENGTH_BYTES + length
            end = position + self._needed
            if end > len(view):
                return commands, position
            with view[position + LENGTH_BYTES : end] as frame:
                commands.append(self._decode(frame))
            position = end
