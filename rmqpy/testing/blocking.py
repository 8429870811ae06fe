"""A blocking connection to a broker or name server, for tests and small tools: no loop."""

from __future__ import annotations

import socket
import time
from collections import deque
from types import TracebackType
from typing import Self

from attrs import define, field

from rmqpy.model.errors import NetworkFault
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.connection import FrameReceiver
from rmqpy.remoting.frame import encode_command

RECEIVE_BYTES = 1 << 18
DEFAULT_TIMEOUT_S = 10.0


@define
class BlockingConnection:
    """Requests out, responses in, in the order in which the peer sends them."""

    address: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    _socket: socket.socket = field(init=False)
    _receiver: FrameReceiver = field(factory=FrameReceiver, init=False)
    _ready: deque[RemotingCommand] = field(factory=deque, init=False)
    _opaque: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), self.timeout_s)
        except OSError as fault:
            raise NetworkFault(f"{self.address}: {fault}") from fault
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *commands: RemotingCommand) -> list[int]:
        """Write all of them at once; returns the opaque given to each."""
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
        try:
            self._socket.sendall(b"".join(encode_command(command) for command in commands))
        except OSError as fault:
            raise NetworkFault(f"{self.address}: {fault}") from fault
        return [command.opaque for command in commands]

    def receive(self) -> RemotingCommand:
        """The next response; requests that the peer sends on its own are skipped."""
        while not self._ready:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError as fault:
                raise NetworkFault(f"{self.address}: {fault}") from fault
            if not data:
                raise NetworkFault(f"{self.address} closed the connection")
            self._ready.extend(c for c in self._receiver.receive(data) if c.is_response)
        return self._ready.popleft()

    def call(self, command: RemotingCommand) -> RemotingCommand:
        """Send one request and return its response; no other may be under way."""
        (opaque,) = self.send(command)
        response = self.receive()
        assert response.opaque == opaque, f"{response.opaque} answers {opaque}"
        return response

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect_when_ready(address: str, timeout_s: float = 30.0) -> BlockingConnection:
    """Connect to a server that may still be starting."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return BlockingConnection(address)
        except NetworkFault:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
