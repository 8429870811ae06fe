"""A cluster to look at: a DLedger group with content, a stopped group that migrates, and a console.

All servers are processes; the group is one of rmqpy or of Java. The content is hostile where a
client may choose it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from attrs import define

from harness.console import ACCOUNTS, OPERATOR
from harness.hostile_console import HOSTILE
from harness.upgrade import write_confs
from rmqpy.acl.signature import Credentials
from rmqpy.cli import main
from rmqpy.client import (
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    PushSettings,
    SendResult,
)
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.model.errors import RmqError
from rmqpy.model.names import TRACE_TOPIC
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    group_settings,
    python_environment,
)

BODY_MAX = 4 << 20
"""A record with the largest body: maxMessageSize is 4 MiB, properties included."""
MEMBERS = 3
BROKER = "orders-a"
SECONDS_MAX = 120
DEAD = "<b>no such customer</b>"


@define
class Tour:
    """The servers, and the paths of all screens."""

    names: ServerProcess
    members: list[ServerProcess]
    console: ServerProcess
    paths: list[str]
    received: list[MessageExt]

    @property
    def url(self) -> str:
        return f"http://{self.console.address}"


def console_process(root: Path, names: str, *words: str) -> ServerProcess:
    """Return a console as a process of its own."""
    port = free_port_block(1).first
    command = [sys.executable, "-P", "-m", "rmqpy.cli", "console", "-n", names]
    return ServerProcess(
        "console",
        [*command, "--port", str(port), *words],
        root / "console",
        port,
        re.compile(rb"^console at http", re.MULTILINE),
        environment=python_environment(),
    )


def migrating_group(golden_copy: Callable[[str], Path]) -> Path:
    """Return the directory of a stopped master, a lagging slave, and an empty member."""
    root = golden_copy("B-lagging-slave-v497")
    (root / "master").rename(root / "n0")
    (root / "slave").rename(root / "n1")
    (root / "n2").mkdir()
    write_confs(root)
    with contextlib.chdir(root):
        assert main(["upgrade", "init", "n0.conf", "n1.conf", "n2.conf"]) == 0
    return root


@asynccontextmanager
async def tour(
    root: Path, group: Path, site_of: Callable[[Path], Site] = RmqpySite
) -> AsyncIterator[Tour]:
    """Run everything; kill all processes at the end."""
    with ExitStack() as stack:
        names, members = _start_group(site_of(root / "servers"), stack)
        account = root / "tools.yml"
        account.write_text("accessKey: operator\nsecretKey: operators-secret\n")
        words = ["--allow-writes", "--credentials", str(account), "--group", str(group)]
        console = console_process(root, names.address, *words)
        stack.callback(console.kill)
        cluster = ClientSettings(
            name_servers=names.address,
            credentials=Credentials(OPERATOR["account"], OPERATOR["secret"]),
        )
        instance = await ClientInstance.open(cluster)
        try:
            paths = await _fill(instance)
            received: list[MessageExt] = []
            async with _consumer(instance, received):
                await asyncio.to_thread(console.start)
                yield Tour(names, members, console, paths, received)
        finally:
            await instance.close()


def _start_group(site: Site, stack: ExitStack) -> tuple[ServerProcess, list[ServerProcess]]:
    names = site.namesrv("names", free_port_block(1).first)
    stack.callback(names.kill)
    names.start()
    ports = list(free_port_block(MEMBERS))
    secret = '{"accessKey":"operator","secretKey":"operators-secret"}'
    own = {
        **FAST_ELECTION,
        "aclEnable": "true",
        "traceTopicEnable": "true",
        "innerClientAuthenticationCredentials": secret,
    }
    members = []
    for number in range(MEMBERS):
        home = site.root / f"n{number}"
        conf = home / "conf" / "plain_acl.yml"
        conf.parent.mkdir(parents=True)
        conf.write_text(ACCOUNTS)
        conf.chmod(0o640)
        spec = BrokerSpec(
            port=free_port_block(BROKER_PORT_COUNT).broker_port,
            namesrv=names.address,
            broker_name=BROKER,
            settings={
                **own,
                **group_settings(BROKER, ports, number),
                "rocketmqHome": str(home),
            },
        )
        members.append(site.broker(f"n{number}", spec))
        stack.callback(members[-1].kill)
        members[-1].launch()
    return names, members


async def _first(producer: Producer) -> SendResult:
    """Send a message as soon as the group has a leader."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with contextlib.suppress(RmqError):
                return await producer.send(Message(topic="orders", body=b'{"order": 0}', keys="k"))
            await asyncio.sleep(0.2)  # The members elect a leader, which then registers.


async def _fill(instance: ClientInstance) -> list[str]:
    """Send messages, let a group be behind, and return the paths of all screens."""
    traced = ProducerSettings(trace_topic=TRACE_TOPIC)
    async with (
        Producer("p", instance=instance, settings=traced) as producer,
        PullConsumer("billing", instance=instance) as consumer,
    ):
        sent = await _first(producer)
        for number in range(40):
            body = HOSTILE.encode() if number % 2 else b'{"order": %d, "items": ["a"]}' % number
            await producer.send(
                Message(topic="orders", body=body, keys="k", properties={"evil": HOSTILE})
            )
        large = Message(topic="orders", body=b"x\x00" * ((BODY_MAX - 1024) // 2), keys=HOSTILE)
        large_id = (await producer.send(large, sent.queue)).offset_msg_id
        await producer.send(Message(topic="invoices", body=b"\x00\x01\xff" * 40, tags="paid"))
        await producer.send(Message(topic="parcels", body=DEAD.encode(), keys=HOSTILE))
        for queue in await consumer.queues("orders"):
            await consumer.commit_offset(queue, 1)
    place = f"topic=orders&broker={BROKER}&queue={sent.queue.queue_id}"
    return [
        "/",
        "/topics",
        "/topic?name=orders",
        f"/messages?{place}&offset=0",
        f"/message?id={sent.offset_msg_id}",
        f"/message?id={large_id}&as=hex",
        "/groups",
        "/group?name=billing",
        "/dead-letters?group=shipping",
        "/replication",
        f"/elections?name={BROKER}",
        "/map",
        "/migration",
        "/login",
    ]


@asynccontextmanager
async def _consumer(instance: ClientInstance, received: list[MessageExt]) -> AsyncIterator[None]:
    """Consume the parcels: the first delivery fails, which makes a dead letter of it."""

    async def listen(messages: Sequence[MessageExt]) -> ConsumeResult:
        received.extend(messages)
        return ConsumeResult.RECONSUME_LATER if len(received) == 1 else ConsumeResult.SUCCESS

    consumer = PushConsumer(
        "shipping",
        instance=instance,
        listener=listen,
        settings=PushSettings(max_reconsume_times=0),
    )
    consumer.subscribe("parcels", "*")
    async with consumer:
        yield
