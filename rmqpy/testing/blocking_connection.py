"""A blocking connection to a broker or name server, for tests and small tools without a loop.

The functions cover the few requests that every such tool needs: create a topic, send, read a queue.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.codec.message import BatchItem, decode_message, encode_batch_body
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)

RECEIVE_BYTES = 1 << 18
DEFAULT_TIMEOUT_S = 10.0
PULL_COUNT = 32
PULL_HAS_SUBSCRIPTION = 4
PERM_READ_WRITE = 6
GROUP = "rmqpy-testing"
PUSHED_KEPT_MAX = 1_000


@define
class BlockingConnection:
    """A connection that sends requests and returns responses in the order in which they arrive.

    ``pushed`` has the requests that the peer sent, at most ``PUSHED_KEPT_MAX``.
    """

    address: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    credentials: Credentials | None = None
    """The credentials that sign requests."""
    pushed: deque[RemotingCommand] = field(
        factory=lambda: deque(maxlen=PUSHED_KEPT_MAX), init=False
    )
    _socket: socket.socket = field(init=False)
    _receiver: FrameDecoder = field(factory=FrameDecoder, init=False)
    _ready: deque[RemotingCommand] = field(factory=deque, init=False)
    _opaque: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), self.timeout_s)
        except OSError as fault:
            raise NetworkError(f"{self.address}: {fault}") from fault
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, *commands: RemotingCommand) -> list[int]:
        """Write all commands at once and return the opaque of each."""
        if self.credentials is not None:
            commands = tuple(self.credentials.signed(command) for command in commands)
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
        self._write(b"".join(encode_command(command) for command in commands))
        return [command.opaque for command in commands]

    def receive(self) -> RemotingCommand:
        """Return the next response."""
        while not self._ready:
            self._read()
        return self._ready.popleft()

    def receive_pushed(self, code: int | None = None) -> RemotingCommand:
        """Return the next request of the peer that has ``code``, or the next one if it is None.

        Earlier requests with other codes are dropped.
        """
        while True:
            while self.pushed:
                command = self.pushed.popleft()
                if code in (None, command.code):
                    return command
            self._read()

    def answer(self, response: RemotingCommand) -> None:
        """Send the response to a request of the peer."""
        self._write(encode_command(response))

    def _read(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError as fault:
            raise NetworkError(f"{self.address}: {fault}") from fault
        if not data:
            raise NetworkError(f"{self.address} closed the connection")
        for command in self._receiver.receive(data):
            (self._ready if command.is_response else self.pushed).append(command)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as fault:
            raise NetworkError(f"{self.address}: {fault}") from fault

    def call(self, command: RemotingCommand) -> RemotingCommand:
        """Send one request and return its response; no other request may be pending."""
        (opaque,) = self.send(command)
        response = self.receive()
        assert response.opaque == opaque, f"{response.opaque} answers {opaque}"
        return response

    def close(self) -> None:
        """Close the connection. NetworkError is raised in a thread that waits for a command."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
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
    """Connect to a server that may still be starting. Raise NetworkError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return BlockingConnection(address)
        except NetworkError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def create_topic(connection: BlockingConnection, topic: str, queue_count: int) -> None:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queue_count,
        write_queue_nums=queue_count,
        perm=PERM_READ_WRITE,
        topic_filter_type="SINGLE_TAG",
    )
    request = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    response = connection.call(request)
    if response.code != ResponseCode.SUCCESS:
        raise RequestRejectedError(response.code, response.remark or "")


def send_request(
    topic: str, queue_id: int, bodies: Sequence[bytes], properties: str = ""
) -> RemotingCommand:
    """Return a request that sends one message, or a batch of several, to one queue."""
    batch = len(bodies) > 1
    header = SendMessageRequestHeaderV2(
        producer_group=GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=properties,
        reconsume_times=0,
        batch=batch,
    )
    if not batch:
        return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, bodies[0])
    items = [BatchItem(0, body, properties.encode()) for body in bodies]
    return RemotingCommand.request(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch_body(items))


def pull_request(topic: str, queue_id: int, offset: int) -> RemotingCommand:
    """Return a request for the messages of one queue from ``offset``, which does not wait."""
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=PULL_COUNT,
        sys_flag=PULL_HAS_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def read_queue(connection: BlockingConnection, topic: str, queue_id: int) -> list[StoredMessage]:
    """Return every message that the broker serves from one queue, starting at offset 0."""
    messages: list[StoredMessage] = []
    offset = 0
    while True:
        response = connection.call(pull_request(topic, queue_id, offset))
        next_offset = int(response.ext_fields.get("nextBeginOffset", offset))
        if response.code == ResponseCode.SUCCESS:
            messages += _records(response.body)
        elif next_offset == offset:
            return messages
        offset = next_offset


def _records(body: bytes) -> list[StoredMessage]:
    view, position, found = memoryview(body), 0, []
    while position < len(view):
        found.append(decode_message(view, position))
        position += found[-1].size
    return found
