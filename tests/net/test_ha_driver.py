"""Replication over real loopback sockets: master and slave, and peers that are neither."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.net import SkewedScheduler

from rmqpy.config.loading import SecuritySettings
from rmqpy.ha.frames import TransferFrame, encode_report, encode_transfer
from rmqpy.ha.link import LinkSettings, SlaveLink
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net import ha
from rmqpy.net.ha import HaServer, dial
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import tls_of
from rmqpy.store.files.watermark import Watermark

FILE = 64 << 10
SETTINGS = LinkSettings(file_size=FILE)
DEADLINE_S = 5


class Log:
    """A master's log in memory."""

    min_offset = PhysicalOffset(0)

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.written = Watermark("written", len(data))

    @property
    def confirm_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.written.value)

    def append(self, data: bytes) -> None:
        self.data += data
        self.written.advance(len(self.data))

    def read(self, offset: PhysicalOffset, size: int) -> memoryview:
        return memoryview(bytes(self.data[offset : offset + size]))


@define
class Copy:
    """A slave that stores into memory."""

    begin_at: int | None = None
    data: bytearray = field(factory=bytearray)
    first: int | None = None
    ends: list[str] = field(factory=list)
    full_at: int | None = None

    def connected(self, now_ms: int) -> SlaveLink:
        place = None if self.begin_at is None else PhysicalOffset(self.begin_at)
        end = PhysicalOffset((self.first or 0) + len(self.data))
        return SlaveLink(SETTINGS, end, now_ms, begin_at=place)

    def store(self, transfer: TransferFrame) -> None:
        if self.full_at is not None and transfer.end > self.full_at:
            raise StoreError("commitlog", "no space", "space", "make some")
        if self.first is None:
            self.first = transfer.offset
        self.data += transfer.body

    def ended(self, link: SlaveLink | None, reason: str) -> None:
        self.ends.append(reason)


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def serve(scheduler, log):
    server = HaServer(log, SETTINGS, scheduler)
    return server, await server.listen("127.0.0.1", 0)


def test_a_slave_gets_what_is_there_and_what_comes(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        log = Log(bytes(3 * FILE) + b"old")
        server, address = await serve(scheduler, log)
        slave = Copy(begin_at=FILE)
        connection = dial(address, slave, scheduler)
        await until(lambda: server.replicated.value == len(log.data))
        for number in range(100):
            log.append(b"%d," % number)
        await until(lambda: server.replicated.value == len(log.data))
        assert slave.first == FILE
        assert slave.data == log.data[FILE:]
        (view,) = server.slaves
        assert (view.acknowledged, view.sent) == (len(log.data), len(log.data))
        connection.close()
        await until(lambda: not server.has_slaves)
        assert slave.ends == []
        await server.close()

    in_loop(main)


def test_a_long_log_arrives_whole(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        data = bytes(range(256)) * (FILE // 256) * 120
        log = Log(data)
        server, address = await serve(scheduler, log)
        slave = Copy(begin_at=0)
        connection = dial(address, slave, scheduler)
        await until(lambda: server.replicated.value == len(data))
        assert slave.data == data and slave.first == 0
        connection.close()
        await server.close()

    in_loop(main)


def test_a_slave_that_cannot_store_ends_and_reports_nothing_more(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        log = Log(b"x" * 100)
        server, address = await serve(scheduler, log)
        slave = Copy(full_at=150)
        dial(address, slave, scheduler)
        await until(lambda: server.replicated.value == 100)
        log.append(b"y" * 100)
        await until(lambda: slave.ends)
        assert "no space" in slave.ends[0]
        assert server.replicated.value == 100
        await server.close()

    in_loop(main)


def test_nobody_there_is_an_end_too(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        server, address = await serve(scheduler, Log())
        await server.close()
        slave = Copy()
        dial(address, slave, scheduler)
        await until(lambda: slave.ends)
        assert "cannot be reached" in slave.ends[0]
        await asyncio.sleep(0)
        assert len(slave.ends) == 1

    in_loop(main)


def test_a_port_in_use_is_refused_by_name(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        server, (host, port) = await serve(scheduler, Log())
        with pytest.raises(ConfigError, match="slaves' port"):
            await HaServer(Log(), SETTINGS, scheduler).listen(host, port)
        await server.close()

    in_loop(main)


@pytest.mark.parametrize(
    "sent", [b"\xff" * 8, encode_report(1 << 40), encode_report(0) + b"GET / HTTP/1.1\r\n\r\n    "]
)
def test_what_is_no_report_closes_the_connection(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None], sent
) -> None:
    async def main(scheduler):
        log = Log(b"x" * 100)
        server, address = await serve(scheduler, log)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = await reader.read()
        assert len(received) <= 112
        assert server.replicated.value == 0
        await until(lambda: not server.has_slaves)
        assert server.last_refused.startswith("127.0.0.1:")
        writer.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_silence_closes_the_connection(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        server, address = await serve(scheduler, Log())
        reader, writer = await asyncio.open_connection(*address)
        scheduler.skew_ms = 30_000
        with pytest.raises(ConnectionResetError):
            assert await reader.read() == b""
            raise ConnectionResetError
        writer.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_a_peer_that_does_not_read_costs_bounded_memory(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        log = Log(bytes(16 << 20))
        server, address = await serve(scheduler, log)
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(encode_report(1))
        await until(lambda: server.has_slaves)
        for _ in range(50):
            await asyncio.sleep(0.002)
            (slave,) = server._slaves
            assert slave._transport.get_write_buffer_size() <= ha.ROOM_BYTES + FILE
        (view,) = server.slaves
        assert view.sent < len(log.data)
        writer.transport.abort()
        await server.close()

    in_loop(main)


def test_too_many_connections_are_turned_away(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ha, "SLAVES_MAX", 2)

    async def main(scheduler):
        server, address = await serve(scheduler, Log(b"abc"))
        peers = [await asyncio.open_connection(*address) for _ in range(2)]
        await until(lambda: len(server._slaves) == 2)
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert server.turned_away == 1
        for _, other in [*peers, (reader, writer)]:
            other.close()
        await server.close()

    in_loop(main)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x00" * 8 + b"\x7f\xff\xff\xff", "allowed are 0 to"),
        (b"\xff" * 12, "allowed are 0 to"),
        (b"\xff" * 8 + b"\x00" * 4, "impossible offset"),
        (encode_transfer(7, b"abc"), "no start of a file"),
        (encode_transfer(0, b"a" * 10) + encode_transfer(11, b"b"), "the two logs have parted"),
        (encode_transfer(0, bytes(FILE + 1)), "across the end of a file"),
        (b"RPC0" * 100, "impossible offset|allowed are"),
    ],
)
def test_frames_of_a_master_that_cannot_be_are_refused(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None], sent, reason
) -> None:
    async def main(scheduler):
        def answer(reader, writer):
            writer.write(sent)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        slave = Copy()
        dial(server.sockets[0].getsockname()[:2], slave, scheduler)
        await until(lambda: slave.ends)
        assert any(part in slave.ends[0] for part in reason.split("|")), slave.ends
        assert len(slave.data) in (0, 10)
        server.close()

    in_loop(main)


def test_the_log_travels_behind_tls(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    tls_folder: Path,
) -> None:
    async def main(scheduler):
        settings = SecuritySettings(
            tls_server_cert_path=str(tls_folder / "server.pem"),
            tls_server_key_path=str(tls_folder / "server.key"),
            tls_client_trust_cert_path=str(tls_folder / "ca.pem"),
            tls_client_auth_server=True,
            ha_tls_enable=True,
        )
        tls = tls_of(settings)
        assert tls.client is None  # requests stay plain
        log = Log(bytes(2 * FILE) + b"secret")
        server = HaServer(log, SETTINGS, scheduler, ListenerSecurity(tls.replication))
        address = await server.listen("127.0.0.1", 0)
        plain = Copy(begin_at=0)
        dial(address, plain, scheduler)
        slave = Copy(begin_at=0)
        connection = dial(address, slave, scheduler, tls.to_master)
        await until(lambda: server.replicated.value == len(log.data))
        assert slave.data == log.data
        await until(lambda: plain.ends)
        assert plain.data == b""
        connection.close()
        await server.close()

    in_loop(main)


def test_an_address_that_is_not_admitted_gets_nothing(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
) -> None:
    async def main(scheduler):
        log = Log(b"x" * 100)
        server = HaServer(log, SETTINGS, scheduler, ListenerSecurity(allows=lambda _address: False))
        address = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(bytes(8))  # what makes Java's port give the whole log
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await server.close()

    in_loop(main)
