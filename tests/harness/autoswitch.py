"""A stand-in for the master of a 5.x group: it feeds replicas of 5.3.3 with the log of another one.

It registers one replica with the controller, for all members of a DLedger group; reads the log that
the leader serves to classic slaves, without counting as one of them; and serves it in the frames of
AutoSwitchHA. No product has it: it shows how far such a group gets, and what is missing.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import Any

from attrs import define, field

from rmqpy.codec.epochs import Epoch
from rmqpy.ha.frames import TransferReceiver, encode_report
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.processes import LOOPBACK

ALTER, ELECT, REGISTER, NEXT_ID, APPLY_ID, HEARTBEAT = 1001, 1002, 1003, 1012, 1013, 904
BEAT_SECONDS = 0.3
ALIVE_MS = 3_000
"""How long the controller takes the replica for alive after a heartbeat."""
BATCH = 32 << 10
HANDSHAKE, TRANSFER = 1, 2
_SLAVE_HANDSHAKE = Struct(">ihhq")
_SLAVE_REPORT = Struct(">iq")
_MASTER_HANDSHAKE = Struct(">iiqi")
_EPOCH = Struct(">iq")
_TRANSFER = Struct(">iiqiqq")


@define
class Controller:
    """The requests of one replica of a group to its controller."""

    address: str
    group: str
    broker_id: int = 0

    def call(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        with BlockingConnection(self.address) as connection:
            return connection.call(self.request(code, body, **fields))

    def request(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        request = RemotingCommand.request(code, body=body)
        names = {"clusterName": "DefaultCluster", "brokerName": self.group, **fields}
        request.ext_fields = {name: str(value) for name, value in names.items()}
        return request

    def apply(self, address: str) -> int:
        """Have an id assigned to a new replica."""
        number = int(self.call(NEXT_ID).ext_fields["nextBrokerId"])
        code = f"{address};{time.time_ns()}"
        answer = self.call(APPLY_ID, appliedBrokerId=number, registerCheckCode=code)
        assert answer.code == 0, answer.remark
        return number

    def register(self, address: str) -> None:
        answer = self.call(REGISTER, brokerId=self.broker_id, brokerAddress=address)
        assert answer.code == 0, answer.remark

    def beat(self, connection: BlockingConnection, address: str, epoch: int, end: int) -> None:
        """Send a heartbeat. When its connection ends, the controller takes the replica for dead."""
        request = self.request(
            HEARTBEAT,
            brokerAddr=address,
            brokerId=self.broker_id,
            epoch=epoch,
            maxOffset=end,
            confirmOffset=end,
            heartbeatTimeoutMills=ALIVE_MS,
            electionPriority=0,
        )
        assert connection.call(request).code == 0

    def elect(self, broker_id: int, *, designate: bool = False) -> RemotingCommand:
        return self.call(ELECT, brokerId=broker_id, designateElect=str(designate).lower())

    def alter(self, epoch: int, in_sync: list[int], set_epoch: int) -> RemotingCommand:
        body = json.dumps({"syncStateSet": in_sync, "syncStateSetEpoch": set_epoch})
        fields: dict[str, Any] = {"masterBrokerId": self.broker_id, "masterEpoch": epoch}
        return self.call(ALTER, body.encode(), **fields)


@define
class StandIn:
    """The log of a group, as replicas of 5.3.3 see it."""

    log: bytearray = field(factory=bytearray, init=False)
    epochs: list[Epoch] = field(factory=list, init=False)
    reports: dict[int, int] = field(factory=dict, init=False)
    """Replica -> the end of its log, as it said last."""
    faults: list[str] = field(factory=list, init=False)
    _grown: threading.Condition = field(factory=threading.Condition, init=False)
    _open: list[socket.socket] = field(factory=list, init=False)
    _closing: bool = field(default=False, init=False)

    def begin_epoch(self, number: int) -> None:
        with self._grown:
            start = len(self.log) if self.epochs else 0
            self.epochs.append(Epoch(number, start))
            self._grown.notify_all()

    def follow(self, port: int) -> None:
        """Read the log of a member from where the copy ends, until that member is gone."""
        self._spawn(partial(self._follow, port))

    def listen(self, port: int) -> None:
        """Serve replicas of 5.x on ``port``."""
        server = socket.create_server((LOOPBACK, port))
        self._open.append(server)
        self._spawn(lambda: self._accept(server))

    def replace_in_answers(
        self, port: int, server: tuple[str, int], words: dict[bytes, bytes]
    ) -> None:
        """Listen on ``port`` for connections to ``server``, in whose answers words are replaced by
        others of the same length.
        """
        assert all(len(old) == len(new) for old, new in words.items()), words
        listening = socket.create_server((LOOPBACK, port))
        self._open.append(listening)

        def accept() -> None:
            while not self._closing:
                near, _ = listening.accept()
                far = socket.create_connection(server, 10)
                far.settimeout(None)
                self._open += near, far
                self._spawn(partial(_pump, near, far, {}))
                self._spawn(partial(_pump, far, near, words))

        self._spawn(accept)

    def close(self) -> None:
        self._closing = True
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _spawn(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except OSError as fault:
                if not self._closing:
                    self.faults.append(str(fault))

        threading.Thread(target=guarded, daemon=True).start()

    def _follow(self, port: int) -> None:
        first = len(self.log)
        receiver = TransferReceiver()
        with socket.create_connection((LOOPBACK, port), 10) as upstream:
            self._open.append(upstream)
            upstream.settimeout(1)
            reported = 0.0
            while not self._closing:
                if time.monotonic() - reported > 1:
                    upstream.sendall(encode_report(first))  # An observer: never more.
                    reported = time.monotonic()
                try:
                    data = upstream.recv(1 << 18)
                except TimeoutError:
                    continue
                if not data:
                    return
                for frame in receiver.receive(data):
                    if frame.body:
                        with self._grown:
                            assert frame.offset == len(self.log), (frame.offset, len(self.log))
                            self.log += frame.body
                            self._grown.notify_all()

    def _accept(self, server: socket.socket) -> None:
        while not self._closing:
            replica, _ = server.accept()
            self._open.append(replica)
            self._spawn(partial(self._serve, replica))

    def _serve(self, replica: socket.socket) -> None:
        state, _, _, broker_id = _SLAVE_HANDSHAKE.unpack(_exactly(replica, _SLAVE_HANDSHAKE.size))
        assert state == HANDSHAKE
        epochs = list(self.epochs)
        body = b"".join(_EPOCH.pack(each.number, each.start_offset) for each in epochs)
        last = epochs[-1].number
        head = _MASTER_HANDSHAKE.pack(HANDSHAKE, len(body), len(self.log), last)
        replica.sendall(head + body)
        position = self._report(replica, broker_id)
        self._spawn(lambda: self._read_reports(replica, broker_id))
        while not self._closing:
            epoch, end = self._next(position)
            body = bytes(self.log[position:end])
            numbers = epoch.number, epoch.start_offset
            replica.sendall(_TRANSFER.pack(TRANSFER, len(body), position, *numbers, end) + body)
            position = end

    def _next(self, position: int) -> tuple[Epoch, int]:
        """Return the epoch and the end of the next bytes of the log; no bytes after a second."""
        with self._grown:
            if len(self.log) == position:
                self._grown.wait(1)
            index = max(n for n, e in enumerate(self.epochs) if e.start_offset <= position)
            limit = len(self.log)
            if index + 1 < len(self.epochs):
                limit = min(limit, self.epochs[index + 1].start_offset)
            return self.epochs[index], min(limit, position + BATCH)

    def _read_reports(self, replica: socket.socket, broker_id: int) -> None:
        while not self._closing:
            self._report(replica, broker_id)

    def _report(self, replica: socket.socket, broker_id: int) -> int:
        state, end = _SLAVE_REPORT.unpack(_exactly(replica, _SLAVE_REPORT.size))
        assert state == TRANSFER
        self.reports[broker_id] = int(end)
        return int(end)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the replica closed its connection")
        data += more
    return data


def _pump(source: socket.socket, target: socket.socket, words: dict[bytes, bytes]) -> None:
    while data := source.recv(1 << 18):
        for old, new in words.items():
            data = data.replace(old, new)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
