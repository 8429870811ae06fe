"""Replication over real loopback sockets: master, slave, and peers that are neither."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from attrs import define, field
from harness.net import InLoop, SkewedScheduler, until

from rmqpy.config.loading import SecuritySettings
from rmqpy.ha.follower import FollowerLink, SlaveLink
from rmqpy.ha.frames import TransferFrame, encode_report, encode_transfer
from rmqpy.ha.link import LinkSettings
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net import ha
from rmqpy.net.ha import HaServer, dial
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import tls_of
from rmqpy.store.files.watermark import Watermark

FILE = 64 << 10
SETTINGS = LinkSettings(file_size=FILE)


class MemoryLog:
    """The log of a master, in memory."""

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
class MemorySlave:
    """A slave that stores in memory."""

    begin_at: int | None = None
    data: bytearray = field(factory=bytearray)
    first: int | None = None
    ends: list[str] = field(factory=list)
    full_at: int | None = None

    def connected(self, now_ms: int) -> SlaveLink:
        begin_at = None if self.begin_at is None else PhysicalOffset(self.begin_at)
        end = PhysicalOffset((self.first or 0) + len(self.data))
        return SlaveLink(SETTINGS, end, now_ms, begin_at=begin_at)

    def store(self, transfer: TransferFrame) -> None:
        if self.full_at is not None and transfer.end > self.full_at:
            raise StoreError("commitlog", "no space", "space", "free some")
        if self.first is None:
            self.first = transfer.offset
        self.data += transfer.body

    def ended(self, link: FollowerLink | None, reason: str) -> None:
        self.ends.append(reason)


async def serve(scheduler: SkewedScheduler, log: MemoryLog) -> tuple[HaServer, tuple[str, int]]:
    """Start a master on ``log`` and return it with its address."""
    server = HaServer(log, SETTINGS, scheduler)
    return server, await server.listen("127.0.0.1", 0)


def test_a_slave_receives_existing_and_new_bytes(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(bytes(3 * FILE) + b"old")
        server, address = await serve(scheduler, log)
        slave = MemorySlave(begin_at=FILE)
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
        await until(lambda: not server.count_at(0))
        assert slave.ends == []
        await server.close()

    in_loop(main)


READ_AT_ONCE = 256 << 10
"""The most bytes that a loop reads at once."""


def test_a_connection_reads_no_faster_than_its_rate(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        rate = 4 << 20
        log = MemoryLog(bytes(16 * FILE))
        server, address = await serve(scheduler, log)
        slave = MemorySlave(begin_at=0)
        begin_ms = scheduler.monotonic_ms()
        connection = dial(address, slave, scheduler, bytes_per_second=lambda: rate)
        await until(lambda: len(slave.data) == len(log.data))
        least_ms = 1000 * (len(log.data) - READ_AT_ONCE) // rate
        assert scheduler.monotonic_ms() - begin_ms >= least_ms - 1
        connection.close()
        await server.close()

    in_loop(main)


def test_only_a_slave_of_the_group_acknowledges(in_loop: InLoop) -> None:
    """Everybody can connect and report any offset."""

    async def main(scheduler: SkewedScheduler) -> None:
        known: set[str] = set()
        log = MemoryLog(bytes(500))
        server = HaServer(log, SETTINGS, scheduler, knows=known.__contains__)
        address = await server.listen("127.0.0.1", 0)
        slave = MemorySlave(begin_at=0)
        connection = dial(address, slave, scheduler)
        await until(lambda: len(slave.data) == 500)
        await until(lambda: [view.acknowledged for view in server.slaves] == [500])
        assert not server.slaves[0].counts
        assert [server.count_at(0), server.replicated.value] == [0, 0]
        known.add("127.0.0.1")
        server.count_again()
        assert [server.count_at(0), server.replicated.value] == [1, 500]
        known.clear()
        log.append(bytes(100))
        await until(lambda: server.replicated.value == 600)
        connection.close()
        await until(lambda: not server.count_at(0))
        await server.close()

    in_loop(main)


async def reporting(address: tuple[str, int], end: int) -> asyncio.StreamWriter:
    """Return a connection that has reported ``end``."""
    _, writer = await asyncio.open_connection(*address)
    writer.write(encode_report(PhysicalOffset(end)))
    return writer


def test_as_many_slaves_acknowledge_as_are_needed(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        needed = 2
        log = MemoryLog(bytes(500))
        server = HaServer(log, SETTINGS, scheduler, slaves_needed=lambda: needed)
        address = await server.listen("127.0.0.1", 0)
        first = await reporting(address, 300)
        await until(lambda: server.count_at(300) == 1)
        assert server.replicated.value == 0
        second = await reporting(address, 200)
        await until(lambda: server.count_at(200) == 2)
        first.write(encode_report(PhysicalOffset(400)))
        await until(lambda: server.replicated.value == 200)
        assert [server.count_at(400), server.count_at(401)] == [1, 0]
        needed = 1  # Fewer are needed when fewer are in sync.
        second.close()
        await until(lambda: server.replicated.value == 400)
        first.close()
        await server.close()

    in_loop(main)


def test_a_slave_that_has_come_back_does_not_count_twice(in_loop: InLoop) -> None:
    """The end of its first connection has not been noticed: it says nothing any more."""

    async def main(scheduler: SkewedScheduler) -> None:
        server = HaServer(MemoryLog(bytes(500)), SETTINGS, scheduler, slaves_needed=lambda: 2)
        address = await server.listen("127.0.0.1", 0)
        silent = await reporting(address, 300)
        await until(lambda: server.count_at(300) == 1)
        back = await reporting(address, 300)
        await until(lambda: server.count_at(300) == 2)
        assert server.replicated.value == 0
        silent.write(encode_report(PhysicalOffset(300)))  # It is another slave of that host.
        await until(lambda: server.replicated.value == 300)
        silent.close()
        back.close()
        await server.close()

    in_loop(main)


def test_a_long_log_is_copied_completely(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        data = bytes(range(256)) * (FILE // 256) * 120
        log = MemoryLog(data)
        server, address = await serve(scheduler, log)
        slave = MemorySlave(begin_at=0)
        connection = dial(address, slave, scheduler)
        await until(lambda: server.replicated.value == len(data))
        assert slave.data == data and slave.first == 0
        connection.close()
        await server.close()

    in_loop(main)


def test_a_slave_that_cannot_store_ends_and_sends_no_more_reports(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(b"x" * 100)
        server, address = await serve(scheduler, log)
        slave = MemorySlave(full_at=150)
        dial(address, slave, scheduler)
        await until(lambda: server.replicated.value == 100)
        log.append(b"y" * 100)
        await until(lambda: slave.ends)
        assert "no space" in slave.ends[0]
        assert server.replicated.value == 100
        await server.close()

    in_loop(main)


def test_an_unreachable_master_ends_the_connection_once(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await serve(scheduler, MemoryLog())
        await server.close()
        slave = MemorySlave()
        dial(address, slave, scheduler)
        await until(lambda: slave.ends)
        assert "cannot be reached" in slave.ends[0]
        await asyncio.sleep(0)
        assert len(slave.ends) == 1

    in_loop(main)


def test_the_error_for_a_port_in_use_names_its_purpose(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, (host, port) = await serve(scheduler, MemoryLog())
        with pytest.raises(ConfigError, match="slaves' port"):
            await HaServer(MemoryLog(), SETTINGS, scheduler).listen(host, port)
        await server.close()

    in_loop(main)


@pytest.mark.parametrize(
    "sent", [b"\xff" * 8, encode_report(1 << 40), encode_report(0) + b"GET / HTTP/1.1\r\n\r\n    "]
)
def test_an_invalid_report_closes_the_connection(in_loop: InLoop, sent: bytes) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(b"x" * 100)
        server, address = await serve(scheduler, log)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = await reader.read()
        assert len(received) <= 112
        assert server.replicated.value == 0
        await until(lambda: not server.count_at(0))
        assert server.last_refused.startswith("127.0.0.1:")
        writer.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_silence_closes_the_connection(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await serve(scheduler, MemoryLog())
        reader, writer = await asyncio.open_connection(*address)
        scheduler.skew_ms = 30_000
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await server.close()

    in_loop(main)


@pytest.mark.slow
def test_a_slave_that_does_not_read_uses_bounded_memory(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(bytes(16 << 20))
        server, address = await serve(scheduler, log)
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(encode_report(1))
        await until(lambda: server.count_at(0) == 1)
        for _ in range(50):
            await asyncio.sleep(0.002)
            (slave,) = server._slaves
            assert slave._transport is not None
            assert slave._transport.get_write_buffer_size() <= ha.ROOM_BYTES + FILE
        (view,) = server.slaves
        assert view.sent < len(log.data)
        writer.transport.abort()
        await server.close()

    in_loop(main)


def test_connections_above_the_limit_are_rejected(
    in_loop: InLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ha, "SLAVES_MAX", 2)

    async def main(scheduler: SkewedScheduler) -> None:
        server, address = await serve(scheduler, MemoryLog(b"abc"))
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
        (b"\x00" * 8 + b"\x7f\xff\xff\xff", "expected 0 to"),
        (b"\xff" * 12, "expected 0 to"),
        (b"\xff" * 8 + b"\x00" * 4, "invalid offset"),
        (encode_transfer(7, b"abc"), "not the start of a file"),
        (encode_transfer(0, b"a" * 10) + encode_transfer(11, b"b"), "the two logs have diverged"),
        (encode_transfer(0, bytes(FILE + 1)), "across the end of a file"),
        (b"RPC0" * 100, "invalid offset|expected 0 to"),
    ],
)
def test_impossible_frames_of_a_master_are_refused(
    in_loop: InLoop, sent: bytes, reason: str
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(sent)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        slave = MemorySlave()
        dial(server.sockets[0].getsockname()[:2], slave, scheduler)
        await until(lambda: slave.ends)
        assert any(part in slave.ends[0] for part in reason.split("|")), slave.ends
        assert len(slave.data) in (0, 10)
        server.close()

    in_loop(main)


def test_the_log_is_sent_over_tls(
    in_loop: InLoop,
    tls_folder: Path,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        settings = SecuritySettings(
            tls_server_cert_path=str(tls_folder / "server.pem"),
            tls_server_key_path=str(tls_folder / "server.key"),
            tls_client_trust_cert_path=str(tls_folder / "ca.pem"),
            tls_client_auth_server=True,
            ha_tls_enable=True,
        )
        tls = tls_of(settings)
        assert tls.client is None  # Requests stay plain.
        log = MemoryLog(bytes(2 * FILE) + b"secret")
        server = HaServer(log, SETTINGS, scheduler, ListenerSecurity(tls.replication))
        address = await server.listen("127.0.0.1", 0)
        plain = MemorySlave(begin_at=0)
        dial(address, plain, scheduler)
        slave = MemorySlave(begin_at=0)
        connection = dial(address, slave, scheduler, tls.to_master)
        await until(lambda: server.replicated.value == len(log.data))
        assert slave.data == log.data
        await until(lambda: plain.ends)
        assert plain.data == b""
        connection.close()
        await server.close()

    in_loop(main)


def test_an_address_that_is_not_allowed_receives_nothing(in_loop: InLoop) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(b"x" * 100)
        server = HaServer(log, SETTINGS, scheduler, ListenerSecurity(allows=lambda _address: False))
        address = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(bytes(8))  # Java's port answers this with the whole log.
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await server.close()

    in_loop(main)


def test_a_loop_turn_reads_a_limited_part_of_the_log(in_loop: InLoop) -> None:
    """However many slaves follow: a log whose bytes are computed must not stop the broker."""

    async def main(scheduler: SkewedScheduler) -> None:
        log = MemoryLog(bytes(range(256)) * (FILE // 256) * 20)
        reads: list[int] = []
        read = log.read

        def counted(offset: PhysicalOffset, size: int) -> memoryview:
            reads.append(size)
            return read(offset, size)

        log.read = counted  # type: ignore[method-assign]
        server = HaServer(log, SETTINGS, scheduler, turn_bytes=40_000)
        address = await server.listen("127.0.0.1", 0)
        slaves = [MemorySlave(begin_at=0) for _ in range(5)]
        connections = [dial(address, slave, scheduler) for slave in slaves]
        while any(len(slave.data) < len(log.data) for slave in slaves):
            reads.clear()
            await asyncio.sleep(0)  # one turn of the loop
            assert sum(reads) <= 40_000 + SETTINGS.transfer_batch_size
        assert all(slave.data == log.data for slave in slaves)
        for connection in connections:
            connection.close()
        await server.close()

    in_loop(main)
