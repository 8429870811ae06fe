"""A ``remoting.channel.Channel`` without a socket, which keeps the frames written to it."""

from __future__ import annotations

from attrs import define, field

from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame_decoder import FrameDecoder


@define(slots=True, eq=False, repr=False)
class MemoryChannel:
    """A channel that keeps written frames.

    ``written`` has all frames in order; ``take()`` returns the commands since its last call. A
    write that does not consist of complete frames is an error of the writer and fails at once.
    """

    peer: tuple[str, int] = ("127.0.0.1", 50000)
    local_port: int = 10911
    written: list[bytes] = field(factory=list)
    closed: bool = False
    congested: bool = False
    _waiting: list[RemotingCommand] = field(factory=list)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        frames = bytes(data)
        receiver = FrameDecoder()
        commands = receiver.receive(frames)
        assert receiver.pending_bytes == 0, "a write must consist of complete frames"
        self._waiting.extend(commands)
        position = 0
        for _ in commands:
            end = position + 4 + int.from_bytes(frames[position : position + 4], "big")
            self.written.append(frames[position:end])
            position = end

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[RemotingCommand]:
        """Return the commands written since the last call."""
        commands, self._waiting = self._waiting, []
        return commands

    def take_one(self) -> RemotingCommand:
        """Return the single command written since the last call."""
        commands = self.take()
        assert len(commands) == 1, f"{len(commands)} commands were written, expected one"
        return commands[0]
