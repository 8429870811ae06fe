"""Whole groups in one loop, on loopback sockets: Java's sample configurations, and name servers
that are dead or wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client import Message, Producer
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.net.server.server import RemotingServer
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import RegisterBrokerResponseHeader
from rmqpy.store.commitlog.interface import read_span
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

DEADLINE_S = 60
COMMON = {
    "brokerClusterName": "DefaultCluster",
    "deleteWhen": "04",
    "fileReservedTime": "48",
    "flushDiskType": "ASYNC_FLUSH",
}


def sample(name: str, role: str, broker_id: int = 0) -> dict[str, str]:
    """Return the settings of one of the files in RocketMQ's conf/2m-*."""
    return {**COMMON, "brokerName": name, "brokerId": str(broker_id), "brokerRole": role}


SAMPLES = {
    "2m-2s-sync": [
        sample("broker-a", "SYNC_MASTER"),
        sample("broker-a", "SLAVE", 1),
        sample("broker-b", "SYNC_MASTER"),
        sample("broker-b", "SLAVE", 1),
    ],
    "2m-2s-async": [
        sample("broker-a", "ASYNC_MASTER"),
        sample("broker-a", "SLAVE", 1),
        sample("broker-b", "ASYNC_MASTER"),
        sample("broker-b", "SLAVE", 1),
    ],
    "2m-noslave": [
        sample("broker-a", "ASYNC_MASTER"),
        sample("broker-b", "ASYNC_MASTER"),
        sample("broker-trace", "ASYNC_MASTER"),
    ],
}


class LoopbackServers:
    """Creates servers in the loop of one test, which stop when it ends."""

    def __init__(self, root: Path, scheduler: AsyncioScheduler) -> None:
        self.root = root
        self.scheduler = scheduler
        self.ends: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def port(self, count: int = 1) -> int:
        block = free_port_block(count)
        return block.broker_port if count == BROKER_PORT_COUNT else block[0]

    async def namesrv(self) -> str:
        port = self.port()
        settings = {"listenPort": str(port), "kvConfigPath": str(self.root / f"kv-{port}.json")}
        loaded = load_namesrv_configuration(None, settings, {"HOME": str(self.root)})
        process = NamesrvProcess(loaded.configuration, self.scheduler)
        await process.start()
        self.ends.append(process.stop)
        return f"127.0.0.1:{port}"

    async def broker(
        self, name_servers: str, settings: Mapping[str, str], store: str | None = None
    ) -> BrokerRuntime:
        port = self.port(BROKER_PORT_COUNT)
        own = {
            "listenPort": str(port),
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": name_servers,
            "storePathRootDir": str(self.root / (store or f"store-{port}")),
        }
        loaded = load_broker_configuration(None, {**settings, **own}, {"HOME": str(self.root)})
        process = BrokerRuntime(loaded.configuration, self.scheduler)
        await process.start()
        self.ends.append(process.stop)
        return process


@asynccontextmanager
async def loopback_servers(root: Path) -> AsyncIterator[LoopbackServers]:
    scheduler = AsyncioScheduler()
    servers = LoopbackServers(root, scheduler)
    try:
        yield servers
    finally:
        for end in reversed(servers.ends):
            await end()
        await scheduler.close()


def in_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole(_: AsyncioScheduler) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    run(whole)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def info(process: BrokerRuntime) -> dict[str, str]:
    return process.broker.replication.runtime_info()


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_javas_sample_configurations_start_and_replicate(tmp_path: Path, sample: str) -> None:
    """Only paths and ports differ from the samples."""

    async def main() -> None:
        async with loopback_servers(tmp_path) as servers:
            server = await servers.namesrv()
            brokers = [await servers.broker(server, settings) for settings in SAMPLES[sample]]
            masters = [each for each in brokers if each.broker.identity.broker_id == 0]
            slaves = [each for each in brokers if each.broker.identity.broker_id == 1]
            for slave in slaves:
                # The slave learns of its master when it registers after it.
                slave.broker.registration.register()
            await until(lambda: all("connected" in info(each)["haState"] for each in slaves))
            if slaves:
                await until(lambda: all(info(each)["haSlaveCount"] == "1" for each in masters))
            async with Producer("P", server) as producer:
                for number in range(40):
                    result = await producer.send(Message(topic="TBW102", body=b"%d" % number))
                    assert result.status.name == "SEND_OK"
            ends = {each.broker.identity.name: each.store.log.max_offset for each in masters}
            await until(
                lambda: all(
                    each.store.log.max_offset == ends[each.broker.identity.name] for each in slaves
                )
            )
            assert ends["broker-a"] > 0 and ends["broker-b"] > 0
            for slave in slaves:
                name, end = slave.broker.identity.name, slave.store.log.max_offset
                (master,) = (each for each in masters if each.broker.identity.name == name)
                assert read_span(slave.store.log, 0, end) == read_span(master.store.log, 0, end)

    in_loop(main)


@pytest.mark.slow
@pytest.mark.parametrize("addresses", ["", "127.0.0.1"])
def test_a_stranger_acknowledges_nothing(
    tmp_path: Path, addresses: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's master counts the report of anybody. Its address does not say that it is a slave,
    unless a slave has registered it or the operator lists it.
    """

    async def main() -> None:
        async with loopback_servers(tmp_path) as servers:
            settings = sample("broker-a", "SYNC_MASTER") | {"replicationAddresses": addresses}
            server = await servers.namesrv()
            master = await servers.broker(server, settings)
            ha_port = int(master.address.split(":")[1]) + 1
            reader, writer = await asyncio.open_connection("127.0.0.1", ha_port)
            writer.write(bytes(8))
            await until(lambda: any("sent 0" in line for line in info(master).values()))
            reports = asyncio.create_task(report_all(reader, writer))
            async with Producer("P", server) as producer:
                result = await producer.send(Message(topic="TBW102", body=b"a"))
            counts = bool(addresses)
            assert result.status.name == ("SEND_OK" if counts else "SLAVE_NOT_AVAILABLE")
            await until(lambda: any("behind 0 B" in line for line in info(master).values()))
            assert info(master)["haSlaveCount"] == str(int(counts))
            assert master.broker.replication.lags() or not counts
            if not counts:
                await until(lambda: info(master)["replicationStrangers"] == "1")
                assert "its reports do not count" in caplog.text
            reports.cancel()
            writer.close()

    in_loop(main)


@pytest.mark.slow
def test_a_message_is_answered_when_two_slaves_have_it(tmp_path: Path) -> None:
    """With ``minInSyncReplicas=2`` one slave is enough to store it, and none is too few."""

    async def main() -> None:
        async with loopback_servers(tmp_path) as servers:
            server = await servers.namesrv()
            replicas = {
                "inSyncReplicas": "3",
                "minInSyncReplicas": "2",
                "replicationAddresses": "127.0.0.1",
            }
            master = await servers.broker(server, sample("broker-a", "SYNC_MASTER") | replicas)
            slaves = [
                await servers.broker(server, sample("broker-a", "SLAVE", number))
                for number in (1, 2)
            ]
            await until(lambda: info(master).get("haInSyncReplicas") == "3")
            async with Producer("P", server) as producer:
                for number in range(20):
                    result = await producer.send(Message(topic="TBW102", body=b"%d" % number))
                    assert result.status.name == "SEND_OK"
                    end = master.store.log.max_offset
                    assert [slave.store.log.max_offset for slave in slaves] == [end, end]
                await slaves[0].stop()
                await until(lambda: info(master)["haInSyncReplicas"] == "2")
                result = await producer.send(Message(topic="TBW102", body=b"for one slave"))
                assert result.status.name == "SLAVE_NOT_AVAILABLE"
                await slaves[1].stop()
                await until(lambda: info(master)["haInSyncReplicas"] == "1")
                end = master.store.log.max_offset
                with pytest.raises(RequestRejectedError, match="in-sync replicas not enough"):
                    await producer.send(Message(topic="TBW102", body=b"refused"))
                assert master.store.log.max_offset == end

    in_loop(main)


async def report_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Claim to have stored everything that the master sends."""
    while True:
        head = await reader.readexactly(12)
        offset, size = int.from_bytes(head[:8]), int.from_bytes(head[8:])
        await reader.readexactly(size)
        if size:
            writer.write((offset + size).to_bytes(8))


class StaleNameServer:
    """A name server that names a dead master to every broker."""

    def __init__(self, dead_master: str) -> None:
        self.dead_master = dead_master
        self.registrations = 0

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            if command.is_oneway:
                continue
            header = None
            if command.code == RequestCode.REGISTER_BROKER:
                self.registrations += 1
                host, port = self.dead_master.split(":")
                ha_address = f"{host}:{int(port) + 1}"
                header = RegisterBrokerResponseHeader(
                    ha_server_addr=ha_address, master_addr=self.dead_master
                )
            channel.write(encode_command(RemotingCommand.response_to(command, header=header)))

    def has_registered_after(self, count: int) -> bool:
        """Return whether a broker has registered since there were ``count`` registrations."""
        return self.registrations > count

    def turn_ended(self) -> None: ...

    def channel_closed(self, channel: Channel) -> None: ...


@pytest.mark.slow
def test_a_slave_keeps_its_master_with_one_dead_and_one_stale_name_server(tmp_path: Path) -> None:
    async def main() -> None:
        async with loopback_servers(tmp_path) as servers:
            dead_master = f"127.0.0.1:{servers.port(BROKER_PORT_COUNT)}"
            stale = StaleNameServer(dead_master)
            server = RemotingServer(stale, servers.scheduler)
            stale_address = "{}:{}".format(*await server.listen("127.0.0.1", 0))
            servers.ends.append(server.close)
            name_servers = ";".join(
                (f"127.0.0.1:{servers.port()}", stale_address, await servers.namesrv())
            )
            master = await servers.broker(name_servers, sample("broker-a", "SYNC_MASTER"))
            slave = await servers.broker(name_servers, sample("broker-a", "SLAVE", 1))
            for _ in range(3):
                rounds = stale.registrations
                slave.broker.registration.register()
                await until(partial(stale.has_registered_after, rounds))
                await until(lambda: "connected" in info(slave)["haState"])
                assert info(slave)["haMaster"] == master.address
            assert f"{stale_address} names {dead_master}" in info(slave)["haNameServersDisagree"]
            await until(lambda: info(master)["haSlaveCount"] == "1")

    in_loop(main)


@pytest.mark.slow
def test_a_slave_whose_log_diverged_receives_nothing(tmp_path: Path) -> None:
    """It was a master for a while, as happens when operators switch by hand."""

    async def main() -> None:
        async with loopback_servers(tmp_path) as servers:
            server = await servers.namesrv()
            master = await servers.broker(server, sample("broker-a", "ASYNC_MASTER"), "one")
            slave = await servers.broker(server, sample("broker-a", "SLAVE", 1), "two")
            await until(lambda: "connected" in info(slave)["haState"])
            await send(server, b"for both", 20)
            common = master.store.log.max_offset
            await until(lambda: slave.store.log.max_offset == common)
            await slave.stop()
            await send(server, b"for the master", 5)
            end = master.store.log.max_offset
            other = await servers.namesrv()
            alone = await servers.broker(other, sample("broker-a", "ASYNC_MASTER"), "two")
            await send(other, b"for the slave!", 5)
            await alone.stop()
            again = await servers.broker(server, sample("broker-a", "SLAVE", 1), "two")
            await until(lambda: "waiting" in info(again)["haState"])
            await until(lambda: "diverge at offset" in info(again)["haState"])
            diverged = int(info(again)["haState"].split("diverge at offset ")[1].split(":")[0])
            assert common <= diverged < common + 200
            before = read_span(again.store.log, 0, again.store.log.max_offset)
            await asyncio.sleep(1.2)  # The next attempt is refused as well.
            assert read_span(again.store.log, 0, again.store.log.max_offset) == before
            assert master.store.log.max_offset == end
            assert info(master)["haSlaveCount"] == "0"

    in_loop(main)


async def send(server: str, body: bytes, count: int) -> None:
    async with Producer("P", server) as producer:
        for _ in range(count):
            await producer.send(Message(topic="TBW102", body=body))
