"""A broker and a name server in one loop, well-behaved clients at both, and the checks after a
siege.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from attrs import define, field
from fuzz.attack import Target
from fuzz.frames import probe_frame

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.codec.message import decode_message
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model import names
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.message import StoredMessage
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import PullMessageRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite

DEADLINE_S = 3600.0 if "RMQPY_HOSTILE_FRAMES" in os.environ else 120.0

HEALTH_MS = 1000
"""The longest time to the answer of a new request, at any time: in CPU time of this process, so
that other processes on the machine do not count.
"""

GROWTH_BYTES = 512 << 20
"""The largest growth of the process, attackers included, over a siege. Frames of 16 MiB are part of
it, and not all freed memory is returned; a leaking process grows by gigabytes.
"""

MIB = 1 << 20

GROUP_OF_ONE = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "broker-a",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:{port}",
}
"""The settings of a DLedger group of one, for :func:`running_broker`."""

SIZES = {"mappedFileSizeCommitLog": str(64 * MIB)}

SENTINEL = "Sentinel"
"""The topic of the message that is stored before a siege."""

HONEST = "Honest"
"""The topic of the messages that are sent during a siege."""


@define
class HonestClient:
    """A well-behaved connection, with one request at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _receiver: FrameDecoder = field(factory=FrameDecoder)
    _opaque: int = 0

    @classmethod
    async def connect(cls, address: str) -> HonestClient:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, command: RemotingCommand) -> RemotingCommand:
        self._opaque += 1
        command.opaque = self._opaque
        self.writer.write(encode_command(command))
        return await self.answer()

    async def answer(self) -> RemotingCommand:
        while True:
            data = await self.reader.read(1 << 18)
            assert data, "the connection of a well-behaved client was closed"
            for command in self._receiver.receive(data):
                if command.is_response:
                    return command

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@define
class BesiegedSite:
    """The servers under attack, and the counters of the health checks."""

    root: Path
    broker: BrokerRuntime
    namesrv: NamesrvProcess
    scheduler: AsyncioScheduler
    worst_ms: float = 0.0
    checks: int = 0
    honest_sent: int = 0
    over: bool = False

    @property
    def addresses(self) -> tuple[str, str]:
        return self.broker.address, self.namesrv.address

    async def until_over(self, siege: Awaitable[object]) -> None:
        """Run ``siege`` while well-behaved clients continue, and check that they are served."""
        before = resident_bytes()
        self.over = False
        watchers = [asyncio.ensure_future(self._watch(each)) for each in self.addresses]
        watchers.append(asyncio.ensure_future(self._send_honestly()))
        try:
            await siege
        finally:
            self.over = True
            await asyncio.gather(*watchers)
        growth = resident_bytes() - before
        assert growth < GROWTH_BYTES, f"the process has grown by {growth >> 20} MiB"
        await self.check_health()

    async def check_health(self) -> None:
        """Check that both servers answer in time and have not failed."""
        for address in self.addresses:
            await self._check(address)
        assert self.worst_ms < HEALTH_MS
        assert self.scheduler.failure_log.failures == 0
        assert self.broker.store.health.failure is None

    async def _watch(self, address: str) -> None:
        while not self.over:
            await self._check(address)
            await asyncio.sleep(0.02)

    async def _check(self, address: str) -> None:
        """Send one request over a new connection, and measure the time to its answer."""
        start = time.process_time()
        client = await HonestClient.connect(address)
        client.writer.write(probe_frame())
        answer = await client.answer()
        self.worst_ms = max(self.worst_ms, (time.process_time() - start) * 1000)
        self.checks += 1
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await client.close()

    async def _send_honestly(self) -> None:
        client = await HonestClient.connect(self.broker.address)
        while not self.over:
            body = b"honest %d" % self.honest_sent
            answer = await client.call(send_request(HONEST, 0, [body]))
            assert answer.code == ResponseCode.SUCCESS, answer
            assert answer.ext_fields["queueOffset"] == str(self.honest_sent)
            self.honest_sent += 1
            await asyncio.sleep(0.005)
        await client.close()

    async def read(self, topic: str) -> list[StoredMessage]:
        """Return the messages of queue 0 of ``topic``, pulled from the broker."""
        client = await HonestClient.connect(self.broker.address)
        found: list[StoredMessage] = []
        while True:
            header = PullMessageRequestHeader(
                consumer_group="reader",
                topic=topic,
                queue_id=0,
                queue_offset=len(found),
                max_msg_nums=32,
                sys_flag=4,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription="*",
                sub_version=0,
            )
            answer = await client.call(RemotingCommand.request(RequestCode.PULL_MESSAGE, header))
            if answer.code != ResponseCode.SUCCESS:
                await client.close()
                return found
            position = 0
            while position < len(answer.body):
                found.append(decode_message(answer.body, position))
                position += found[-1].size

    async def check_messages(self) -> None:
        """Check that all acknowledged messages are stored."""
        (sentinel,) = await self.read(SENTINEL)
        assert (sentinel.body, sentinel.queue_offset, sentinel.physical_offset) == (b"before", 0, 0)
        honest = await self.read(HONEST)
        assert [each.body for each in honest] == [
            b"honest %d" % number for number in range(self.honest_sent)
        ]

    def check_files(self) -> None:
        """Check that no file is outside the two folders, and that queues have valid names."""
        outside = [
            path
            for path in self.root.parents[3].rglob("*")
            if path.is_file() and not path.is_relative_to(self.root)
        ]
        assert outside == []
        assert {path.name for path in self.root.iterdir()} <= {"store", "namesrv"}
        allowed = {"abort", "checkpoint", "lock", "commitlog", "consumequeue", "index", "config"}
        assert {path.name for path in (self.root / "store").iterdir()} <= allowed | {"rmqpy"}
        for queue in (self.root / "store" / "consumequeue").iterdir():
            names.check_topic(queue.name)

    def check_tables(self) -> None:
        """Check that the tables of the broker have only valid names."""
        broker = self.broker.broker
        for topic in broker.topics.topics:
            names.check_topic(topic)
        for group in broker.groups.groups:
            names.check_group(group)
        for key in broker.offsets.wrapper().offset_table:
            topic, _, group = key.rpartition("@")
            names.check_topic(topic)
            names.check_group(group)


def resident_bytes() -> int:
    """Return the anonymous resident memory of this process; 0 if the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) << 10 if found else 0


@contextlib.asynccontextmanager
async def besieged_site(folder: Path, scheduler: AsyncioScheduler) -> AsyncIterator[BesiegedSite]:
    """Run a broker and a name server in a folder four levels below ``folder``."""
    root = folder / "four" / "folders" / "further" / "down"
    (root / "namesrv").mkdir(parents=True)
    ports = free_port_block(5)
    namesrv = NamesrvProcess(
        load_namesrv_configuration(
            None,
            {
                "listenPort": str(ports[4]),
                "kvConfigPath": str(root / "namesrv" / "kvConfig.json"),
                "configStorePath": str(root / "namesrv" / "namesrv.properties"),
            },
            {},
        ).configuration,
        scheduler,
    )
    await namesrv.start()
    settings = {
        "brokerName": "broker-a",
        "brokerClusterName": "c",
        "brokerId": "0",
        "listenPort": str(ports.broker_port),
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": namesrv.address,
        "storePathRootDir": str(root / "store"),
        "storePathCommitLog": str(root / "store" / "commitlog"),
        "mappedFileSizeCommitLog": str(16 << 20),
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        "maxMessageSize": str(64 << 10),
        "diskMaxUsedSpaceRatio": "95",
        "longPollingEnable": "true",
    }
    broker = BrokerRuntime(load_broker_configuration(None, settings, {}).configuration, scheduler)
    await broker.start()
    try:
        yield BesiegedSite(root, broker, namesrv, scheduler)
    finally:
        await broker.stop()
        await namesrv.stop()


Besiege = Callable[[Callable[[BesiegedSite], Awaitable[None]]], None]
"""The fixture ``besiege``: it runs ``test(site)`` and checks the site afterwards."""


@contextlib.contextmanager
def running_broker(root: Path, **settings: str) -> Iterator[tuple[Target, BlockingConnection, int]]:
    """Run a broker; yield it, a connection to it, and a free port that ``settings`` may name."""
    ports = free_port_block(BROKER_PORT_COUNT + 2)
    free = ports[BROKER_PORT_COUNT]
    settings = {key: value.format(port=free) for key, value in settings.items()}
    spec = BrokerSpec(
        port=ports.broker_port,
        namesrv=f"127.0.0.1:{ports[BROKER_PORT_COUNT + 1]}",
        sizes=SIZES,
        settings={"diskMaxUsedSpaceRatio": "95", **settings},
    )
    broker = RmqpySite(root).broker("broker", spec)
    broker.start()
    try:
        with connect_when_ready(broker.address) as client:
            yield Target("broker", broker), client, free
    finally:
        broker.kill()


def still_answers(client: BlockingConnection) -> None:
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    for _ in range(3):
        assert client.call(request).code == ResponseCode.SUCCESS
