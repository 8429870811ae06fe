"""The steps of the demo, from a classic pair to DLedger and back.

The steps are: a master and a slave that lags, check, align, switch to three members under load,
kill of the leader, certificate, and the way back.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from attrs import define, field

from rmqpy.audit.replicas.certificate_text import certificate_lines, moved_text
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.client.core.message import Message
from rmqpy.client.producer import Producer
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.demo.cluster import BROKER_NAME, MEMBERS, DemoCluster
from rmqpy.demo.comparison import Reading, compare, read_all_topics
from rmqpy.demo.store_copy import copy_store, detected_sizes, queues_on_disk
from rmqpy.demo.workload import LOAD_TOPIC, SendWorkload
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text
from rmqpy.net.loop import run
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.steps.planning import plan_alignment, plan_leaving, plan_switch

GROUP = "demo_group"
SECONDS_MAX = 120.0

_DEMO_SIZES = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}
_SIZE_KEYS = (
    *_DEMO_SIZES,
    "messageDelayLevel",
    "enabledAppendPropCRC",
)
_BATCH_SIZE = 16
_STEPS = 11
_LAGGING = 200
"""The number of messages that the slave does not receive."""


@define(frozen=True)
class DemoPlan:
    """The options of the demo.

    ``store`` is a store to copy; ``config`` is the broker.conf with which it was written. ``keep``
    is the directory for all files; without it a temporary one is used and removed.
    """

    store: str | None = None
    keep: str | None = None
    config: str | None = None


def run_demo(plan: DemoPlan) -> bool:
    """Run the demo and print its steps. Return whether all messages are the same afterwards.

    Raise RmqError or OSError if a step cannot be carried out.
    """
    folder = Path(plan.keep) if plan.keep else Path(tempfile.mkdtemp(prefix="rmqpy-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "n0").exists():
        raise RmqError(f"{folder / 'n0'} exists already; --keep needs a directory without a store")
    cluster = None
    try:
        settings = _settings(plan)
        if plan.store is not None:
            for member in MEMBERS[:2]:
                copy_store(Path(plan.store), folder / member / "store")
        cluster = DemoCluster(folder.resolve(), settings)
        walkthrough = _Walkthrough(plan, cluster)
        return run(lambda _scheduler: walkthrough.run())
    finally:
        if cluster is not None:
            cluster.close()
        if not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _settings(plan: DemoPlan) -> dict[str, str]:
    """Return the settings with which the files were written."""
    if plan.store is None:
        return dict(_DEMO_SIZES)
    if plan.config is None:
        return detected_sizes(Path(plan.store))
    lines = parse_properties(decode_properties_bytes(Path(plan.config).read_bytes()))
    return {line.key: line.value for line in lines if line.key in _SIZE_KEYS}


@define
class _Walkthrough:
    plan: DemoPlan
    cluster: DemoCluster
    version_2: bool = False
    started: float = field(factory=time.monotonic)
    _step: int = 0

    @property
    def name_server(self) -> str:
        return self.cluster.namesrv.address

    async def run(self) -> bool:
        cluster = self.cluster
        await asyncio.to_thread(cluster.namesrv.start)
        before = await self._master_and_slave()
        async with SendWorkload(self.name_server) as load:
            await cluster.stop("n0")
            self._say("the master is stopped too, while a producer keeps trying")
            manifest = await self._check_and_align()
            await self._switch(load)
            await self._kill_the_leader(load)
            await load.wait_for(100)
        after = await self._read()
        same = compare(before, after, self._divided())
        lost = set(load.acknowledged) - _keys(after)
        await cluster.stop_group()
        equal = await self._certify(manifest, "after the switch")
        back = await self._way_back(manifest, load)
        for line in same.table():
            print(line)
        print(
            f"{len(load.acknowledged):,} messages of the producer acknowledged,"
            f" {count_text(load.attempts_failed, 'attempt')} refused meanwhile, {len(lost)} lost"
        )
        self._print_folder()
        return same.is_same and equal and back and not lost

    async def _master_and_slave(self) -> Reading:
        cluster = self.cluster
        await cluster.start("n0", "n1")
        await cluster.master_is_known()
        if self.plan.store is None:
            count = await _fill(self.name_server, "before", 1500)
            self._say(f"a master and its slave, new: {count:,} messages sent")
        else:
            self._say(f"a master and its slave serve copies of {self.plan.store}")
        await cluster.slave_has_all()
        await cluster.stop("n1")
        async with Producer("demo_producer", self.name_server) as producer:
            late = [_message("DemoNormal", "late", number) for number in range(_LAGGING)]
            await _send_all(producer, late)
        before = await self._read()
        self._say(
            f"the slave is stopped, the master accepts {_LAGGING} more;"
            f" {len(before.messages):,} messages read"
        )
        return before

    async def _check_and_align(self) -> Manifest:
        context = self.cluster.context()
        found = await asyncio.to_thread(run_checks, context.group)
        bad = [each for each in found if not each.is_note]
        self._say(
            f"rmqpy upgrade check: {count_text(len(bad), 'finding')},"
            f" {count_text(len(found) - len(bad), 'note')}"
        )
        for each in bad[:4]:
            print(f"           [{each.check}] {each.replica}: {each.text}"[:150])
        manifest = context.group.survey("n0").manifest
        self.version_2 = any(survey.version_2 for survey in context.group.surveys)
        count = await self.cluster.carry_out(context, plan_alignment, "aligned")
        again = await asyncio.to_thread(run_checks, self.cluster.context().group)
        left = [each for each in again if not each.is_note]
        for each in left:
            print(f"           [{each.check}] {each.replica}: {each.text}"[:150])
        self._say(
            f"rmqpy upgrade plan, apply: {count_text(count, 'operation')},"
            f" {count_text(len(left), 'finding')} left"
        )
        return manifest

    async def _switch(self, load: SendWorkload) -> None:
        cluster = self.cluster
        context = cluster.context()
        await cluster.carry_out(context, plan_switch, "switched")
        await cluster.start(*MEMBERS)
        leader = await cluster.leader()
        await load.wait_for(100)
        self._say(
            f"rmqpy upgrade switch: three members, {leader} leads, dividedCommitlogOffset"
            f" {self._divided()}; no send was acknowledged for {load.longest_gap_s():.1f} s"
        )

    async def _kill_the_leader(self, load: SendWorkload) -> None:
        cluster = self.cluster
        leader = await cluster.leader()
        cluster.brokers[leader].kill()
        await load.wait_for(20)
        gap_s = load.longest_gap_s()
        new = await cluster.leader()
        await cluster.start(leader)
        self._say(
            f"the leader is killed (SIGKILL): {new} leads, no send was acknowledged for"
            f" {gap_s:.1f} s; {leader} is back"
        )

    async def _certify(self, manifest: Manifest, when: str) -> bool:
        certificate = await asyncio.to_thread(self.cluster.certificate, manifest)
        compared = certificate.comparisons[0]
        self._say(
            f"rmqpy upgrade verify, {when}: {certificate.verdict.word.value};"
            f" {compared.same:,} messages the same on all three, {compared.missing} missing,"
            f" {compared.different} different, {moved_text(compared)} moved"
        )
        if not certificate.holds:
            for line in certificate_lines(certificate):
                print(f"           {line}")
        return certificate.holds

    async def _way_back(self, manifest: Manifest, load: SendWorkload) -> bool:
        cluster = self.cluster
        context = cluster.context(self.version_2)
        count = await cluster.carry_out(context, plan_leaving, "left")
        self._say(f"rmqpy upgrade leave: {count_text(count, 'operation')}, a classic log again")
        equal = await self._certify(manifest, "after the way back")
        await cluster.start("n0", "n1")
        await cluster.master_is_known()
        reading = await self._read()
        lost = set(load.acknowledged) - _keys(reading)
        sent = await _fill(self.name_server, "back", 100)
        await cluster.stop("n1", "n0")
        self._say(
            f"master and slave again: {len(reading.messages):,} messages read, {len(lost)} lost,"
            f" {sent} more sent"
        )
        return equal and not lost

    async def _read(self) -> Reading:
        stores = [queues_on_disk(self.cluster.store(member)) for member in MEMBERS]
        queues = sorted({(each.topic, each.queue_id) for store in stores for each in store})
        async with PullConsumer(GROUP, self.name_server) as consumer:
            return await read_all_topics(consumer, BROKER_NAME, queues)

    def _divided(self) -> int:
        last = max((self.cluster.store("n0") / "commitlog").iterdir())
        return int(last.name) + last.stat().st_size

    def _say(self, text: str) -> None:
        self._step += 1
        seconds = time.monotonic() - self.started
        print(f"[{self._step:2}/{_STEPS}] {seconds:5.1f} s  {text}", flush=True)

    def _print_folder(self) -> None:
        folder = self.cluster.folder
        if self.plan.keep:
            print(f"stores, configurations and certificate.json are in {folder}")
        else:
            print(f"everything was in {folder}, now removed (rmqpy demo --keep DIR keeps it)")


def _keys(reading: Reading) -> set[str]:
    """Return the keys of the workload's messages that were read."""
    return {
        dict(value.properties)["KEYS"]
        for (topic, _, _), value in reading.messages.items()
        if topic == LOAD_TOPIC
    }


async def _fill(name_server: str, prefix: str, count: int) -> int:
    """Send normal, keyed, tagged, and batched messages; return the number of acknowledged ones."""
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
    slots = asyncio.Semaphore(in_flight)

    async def send(message: Message) -> None:
        async with slots:
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
