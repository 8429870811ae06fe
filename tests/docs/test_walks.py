"""The walks of docs/explanation/architecture.md, compared with the order of real calls.

A walk is a fenced block ``walk NAME``; each line is a dotted name and, after two spaces, a remark.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest

import rmqpy
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client import Message, Producer, PullConsumer, SendResult
from rmqpy.codec.backend import implementation
from rmqpy.model.errors import RmqError
from rmqpy.testing.in_process import broker_in_process, name_server_in_process
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import FAST_ELECTION, dledger_settings, group_settings

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
WALK = re.compile(r"^```walk (\S+)\n(.*?)^```", flags=re.S | re.M)
PACKAGE = str(Path(rmqpy.__file__).parent)
TOPIC = "TopicTest"


def walks() -> dict[str, list[str]]:
    return {
        name: [line.split("  ")[0] for line in text.splitlines()]
        for name, text in WALK.findall(PAGE.read_text(encoding="utf-8"))
    }


class Calls:
    """The functions of rmqpy in the order of their calls, while recording is on.

    Threads are watched from their start, so `watched` must be entered before brokers start.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._on = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._on and event == "call" and code.co_filename.startswith(PACKAGE):
            module = code.co_filename[len(PACKAGE) - len("rmqpy") : -len(".py")].replace("/", ".")
            self.names.append(f"{module}.{code.co_qualname}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def on(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False


class Site:
    """The brokers and the producer of a walk, which run in this loop."""

    def __init__(self, root: Path, stack: AsyncExitStack, name_server: str) -> None:
        self.root, self.calls, self.name_server = root, Calls(), name_server
        self._stack = stack

    async def broker(self, folder: str = "a", **settings: str) -> BrokerRuntime:
        return await self._stack.enter_async_context(
            broker_in_process(self.root / folder, self.name_server, settings)
        )

    async def producer(self) -> Producer:
        return await self._stack.enter_async_context(Producer("walkers", self.name_server))


async def send(producer: Producer) -> SendResult:
    """Send until the name server knows a leader, and return the result."""
    while True:
        try:
            return await producer.send(Message(topic=TOPIC, body=b"walk"))
        except RmqError:
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def traced_send(site: Site, *brokers: BrokerRuntime) -> None:
    """Record the calls of the third message to a queue.

    The first creates topic, files, and connections; the second sets up the fast path.
    """
    stores = [broker.broker.store for broker in brokers]

    def equal() -> bool:
        ends = {store.log.max_offset for store in stores}
        return len(ends) == 1 and all(not store.dispatcher.behind_bytes for store in stores)

    producer = await site.producer()
    queue = (await send(producer)).queue
    await producer.send(Message(topic=TOPIC, body=b"walk"), queue)
    await until(equal)
    end = stores[0].log.max_offset
    with site.calls.on():
        await producer.send(Message(topic=TOPIC, body=b"walk"), queue)
        await until(lambda: equal() and stores[0].log.max_offset > end)


async def send_classic(site: Site) -> None:
    await traced_send(site, await site.broker())


async def send_sync_flush(site: Site) -> None:
    await traced_send(site, await site.broker(flushDiskType="SYNC_FLUSH"))


async def send_sync_master(site: Site) -> None:
    known = {"replicationAddresses": "127.0.0.1"}  # from the start, not from the name server
    master = await site.broker("master", brokerRole="SYNC_MASTER", **known)
    slave = await site.broker("slave", brokerRole="SLAVE", brokerId="1")
    replication = master.broker.replication
    await until(lambda: replication.runtime_info()["haSlaveCount"] == "1")
    await traced_send(site, master, slave)


async def dledger_group(site: Site) -> list[BrokerRuntime]:
    blocks = [free_port_block() for _ in range(3)]
    ports = [block[0] for block in blocks]
    return [
        await site.broker(f"n{number}", **FAST_ELECTION, **group_settings("a", ports, number))
        for number in range(3)
    ]


async def send_dledger(site: Site) -> None:
    await traced_send(site, *await dledger_group(site))


async def role_change(site: Site) -> None:
    """Stop the leader; the producer succeeds as soon as there is a new one."""
    async with AsyncExitStack() as leader_stack:
        leading = Site(site.root, leader_stack, site.name_server)
        members = await dledger_group(leading)
        producer = await site.producer()
        await send(producer)
        leader = next(member for member in members if not member.broker.identity.is_slave)
        with site.calls.on():
            await leader.stop()
            await send(producer)


async def first_start(site: Site) -> None:
    await write_message(site)
    with site.calls.on():
        await site.broker(**single_member())


async def pull_across(site: Site) -> None:
    await write_message(site)
    await write_message(site, **single_member())
    broker = await site.broker(**single_member())
    async with PullConsumer("walkers", site.name_server) as consumer:
        await until(lambda: not broker.broker.store.dispatcher.behind_bytes)
        queue = (await consumer.queues(TOPIC))[0]
        with site.calls.on():
            page = await consumer.pull(queue, 0)
    assert len(page.messages) >= 2


async def write_message(site: Site, **settings: str) -> None:
    """Start a broker, send a message to queue 0, and stop the broker."""
    async with broker_in_process(site.root / "a", site.name_server, settings):
        producer = await site.producer()
        await send(producer)
        queue = (await producer.queues(TOPIC))[0]
        await producer.send(Message(topic=TOPIC, body=b"walk"), queue)


def single_member() -> dict[str, str]:
    return dledger_settings("a", free_port_block()[0])


async def recovery(site: Site) -> None:
    broker = await site.broker()
    await send(await site.producer())
    await until(lambda: not broker.broker.store.dispatcher.behind_bytes)
    # A table that is being written has a temporary name.
    tables = shutil.ignore_patterns("*.tmp")
    shutil.copytree(site.root / "a" / "store", site.root / "killed" / "store", ignore=tables)
    with site.calls.on():
        await site.broker("killed")


SCENARIOS: dict[str, Callable[[Site], Awaitable[None]]] = {
    "send-classic": send_classic,
    "send-fast-path": send_classic,
    "send-sync-flush": send_sync_flush,
    "send-sync-master": send_sync_master,
    "send-dledger": send_dledger,
    "role-change": role_change,
    "first-start": first_start,
    "pull-across": pull_across,
    "recovery": recovery,
}


def test_every_walk_of_the_page_has_a_scenario() -> None:
    assert set(walks()) == set(SCENARIOS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_functions_are_called_in_the_documented_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_fast = name == "send-fast-path"
    if is_fast and implementation != "c":
        pytest.skip("the C core is not in use")
    monkeypatch.setenv("RMQPY_FAST", "1" if is_fast else "0")

    async def main() -> list[str]:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            name_server = await stack.enter_async_context(name_server_in_process(tmp_path))
            site = Site(tmp_path, stack, name_server)
            stack.enter_context(site.calls.watched())
            await SCENARIOS[name](site)
            return site.calls.names

    called = asyncio.run(main())
    rest = iter(called)
    for step in walks()[name]:
        assert step in rest, f"{step}: {'too late' if step in called else 'not called'}"
