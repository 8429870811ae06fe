"""The story of the demo, step by step: fill or copy, read, switch in place, write more, read again,
compare.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import define, field

from rmqpy.broker.process import BrokerProcess
from rmqpy.client.message import Message
from rmqpy.client.producer import Producer
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.reading import Reading, compare, read_everything
from rmqpy.demo.store_copy import copy_store, detected_sizes, queues_on_disk
from rmqpy.model.config import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.errors import RmqError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.testing.ports import free_port_block

BROKER_NAME = "demo-broker"
GROUP = "demo_group"
SECONDS_MAX = 55.0

_DEMO_SIZES = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
_BATCH_SIZE = 16


@define(frozen=True)
class DemoPlan:
    """``store``: work on a copy of it (``config`` is the broker.conf it was written with).
    ``keep``: where everything is put, and left; without it a temporary directory is used and
    removed.
    """

    store: str | None = None
    keep: str | None = None
    config: str | None = None


def run_demo(plan: DemoPlan) -> bool:
    """Run the demo and print what happens; True when everything reads the same. Raises RmqError,
    OSError.
    """
    folder = Path(plan.keep) if plan.keep else Path(tempfile.mkdtemp(prefix="rmqpy-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "store"
    if store.exists():
        raise RmqError(f"{store} exists already; --keep wants a directory without a store")
    try:
        return run(lambda scheduler: _Story(plan, folder, scheduler).tell())
    finally:
        if not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)


@define
class _Story:
    plan: DemoPlan
    folder: Path
    scheduler: AsyncioScheduler
    started: float = field(factory=time.monotonic)

    async def tell(self) -> bool:
        ports = free_port_block(4)
        ports.release()
        overrides = self._settings(ports.broker_port)
        name_server_port = ports[1]
        async with _name_server(self.scheduler, self.folder, name_server_port) as name_server:
            overrides["namesrvAddr"] = name_server
            if self.plan.store is not None:
                copied = copy_store(Path(self.plan.store), self.store)
                overrides.update(detected_sizes(self.store) if self.plan.config is None else {})
                self._say(1, f"copied {self.plan.store} ({copied:,} bytes) to {self.store}")
            else:
                self._say(1, f"a new classic store in {self.store}")
            return await self._before_and_after(overrides, name_server)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    async def _before_and_after(self, overrides: dict[str, str], name_server: str) -> bool:
        async with _broker(self.plan, overrides, self.scheduler) as broker:
            if self.plan.store is None:
                count = await _fill(name_server, "before", 1500)
                self._say(2, f"classic broker at {broker.address}: {count:,} messages sent")
            else:
                self._say(2, f"classic broker at {broker.address} serves the copy")
            before = await self._read(name_server)
        files = sorted((self.store / "commitlog").iterdir())
        self._say(3, f"read {len(before.messages):,} messages from {len(files)} commit log files")

        ports = free_port_block(1)
        ports.release()
        overrides |= {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": BROKER_NAME,
            "dLegerPeers": f"n0-127.0.0.1:{ports[0]}",
            "dLegerSelfId": "n0",
        }
        async with _broker(self.plan, overrides, self.scheduler) as broker:
            divided = broker.store.divided_offset
            self._say(
                4, f"restarted with enableDLegerCommitLog=true: dividedCommitlogOffset {divided}"
            )
            count = await _fill(name_server, "after", 500)
            self._say(5, f"{count:,} more messages sent into the DLedger log")
            after = await self._read(name_server)
        self._say(
            6, f"read {len(after.messages):,} messages from both logs, by offset, by key and by id"
        )
        same = compare(before, after, divided or 0)
        for line in same.table():
            print(line)
        self._print_places()
        return same.is_same

    async def _read(self, name_server: str) -> Reading:
        queues = [(queue.topic, queue.queue_id) for queue in queues_on_disk(self.store)]
        async with PullConsumer(GROUP, name_server) as consumer:
            return await read_everything(consumer, BROKER_NAME, queues)

    def _settings(self, port: int) -> dict[str, str]:
        common = {
            "brokerName": BROKER_NAME,
            "brokerClusterName": "DemoCluster",
            "brokerRole": "ASYNC_MASTER",
            "brokerId": "0",
            "listenPort": str(port),
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "autoCreateTopicEnable": "true",
            "enableDLegerCommitLog": "false",
        }
        return common | (_DEMO_SIZES if self.plan.store is None else {})

    def _say(self, step: int, text: str) -> None:
        print(f"[{step}/6] {time.monotonic() - self.started:5.1f} s  {text}", flush=True)

    def _print_places(self) -> None:
        if self.plan.keep:
            print(f"classic files: {self.store / 'commitlog'}")
            print(f"DLedger files: {self.store / 'dledger-n0' / 'data'}")
        else:
            print(f"everything was in {self.folder}, now removed (rmqpy demo --keep DIR leaves it)")


@asynccontextmanager
async def _name_server(scheduler: AsyncioScheduler, folder: Path, port: int) -> AsyncIterator[str]:
    overrides = {"listenPort": str(port), "kvConfigPath": str(folder / "kvConfig.json")}
    loaded = load_namesrv_configuration(None, overrides, os.environ)
    process = NamesrvProcess(loaded.configuration, scheduler)
    await process.start()
    try:
        yield process.address
    finally:
        await process.stop()


@asynccontextmanager
async def _broker(
    plan: DemoPlan, overrides: dict[str, str], scheduler: AsyncioScheduler
) -> AsyncIterator[BrokerProcess]:
    loaded = load_broker_configuration(plan.config, overrides, os.environ)
    process = BrokerProcess(loaded.configuration, scheduler)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def _fill(name_server: str, prefix: str, count: int) -> int:
    """Normal, keyed, tagged and batched messages; returns how many were acknowledged."""
    async with Producer("demo_producer", name_server) as producer:
        await producer.send(_message("DemoNormal", prefix, 0))
        await producer.send(_message("DemoKeyed", prefix, 0))
        await producer.send_batch(_batch(prefix, 0))
        single = [_message("DemoNormal", prefix, number) for number in range(1, count)]
        keyed = [_message("DemoKeyed", prefix, number) for number in range(1, count // 2)]
        await _send_all(producer, [*single, *keyed])
        batches = range(1, count // 2 // _BATCH_SIZE)
        for number in batches:
            await producer.send_batch(_batch(prefix, number * _BATCH_SIZE))
        return 2 + len(single) + len(keyed) + _BATCH_SIZE * (1 + len(batches))


async def _send_all(producer: Producer, messages: Iterable[Message], in_flight: int = 64) -> None:
    room = asyncio.Semaphore(in_flight)

    async def send(message: Message) -> None:
        async with room:
            await producer.send(message)

    await asyncio.gather(*(send(message) for message in messages))


def _message(topic: str, prefix: str, number: int) -> Message:
    keyed = topic == "DemoKeyed"
    return Message(
        topic=topic,
        body=f"{topic} {prefix} {number} ".encode() * (1 + number % 7),
        tags=("TagA", "TagB", "TagC")[number % 3] if keyed else None,
        keys=f"{prefix}-{number}" if keyed else "",
        properties={"number": str(number)},
    )


def _batch(prefix: str, first: int) -> list[Message]:
    return [_message("DemoBatch", prefix, first + number) for number in range(_BATCH_SIZE)]
