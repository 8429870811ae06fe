"""A group that serves during a stage: its load, its hooks, and what its clients read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import define, field

from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.cluster import MEMBERS, DemoCluster
from rmqpy.demo.comparison import Reading, read_all_topics
from rmqpy.demo.store_copy import queues_on_disk
from rmqpy.demo.workload import LOAD_TOPIC, SendWorkload
from rmqpy.suite.cases import OpenCase
from rmqpy.suite.hooks import run_hook
from rmqpy.suite.suite_file import SuitePlan, SuiteStore

READER = "rmqpy-suite"


@define(slots=True, eq=False, repr=False)
class LiveGroup:
    """The group of ``cluster``, whose brokers the stages start, stop, and kill."""

    plan: SuitePlan
    store: SuiteStore
    cluster: DemoCluster
    _acknowledged: set[str] = field(factory=set, init=False)

    async def start_classic(self) -> None:
        """Start the name server, the master n0, and the slave n1, which has everything then."""
        await self.cluster.start_name_server()
        await self.cluster.start("n0", "n1")
        await self.cluster.master_is_known()
        await self.cluster.slave_has_all()

    @asynccontextmanager
    async def load(self) -> AsyncIterator[SendWorkload]:
        """Send until the end of the block. A group that accepts nothing for longer than the suite
        allows is an RmqError, with which the stage ends.
        """
        load = SendWorkload(
            self.cluster.namesrv.address,
            self.plan.per_second,
            prefix=f"{time.time_ns()}",
            stall_s=self.plan.stall_s,
        )
        async with load:
            await load.wait_for(self.plan.load_messages)
            yield load
        self._acknowledged |= set(load.acknowledged)

    async def run_hooks(self, case: OpenCase, when: str, stage: str) -> None:
        """Run the commands of the suite file; those that fail are findings."""
        variables = {
            "RMQPY_NAME_SERVER": self.cluster.namesrv.address,
            "RMQPY_BROKER": await self.cluster.master_is_known(),
            "RMQPY_STORE": self.store.name,
            "RMQPY_STAGE": stage,
            "RMQPY_WHEN": when,
        }
        for command in self.plan.hooks.get((when, stage), ()):
            failed = await run_hook(command, self.plan.folder, variables, self.plan.hook_s)
            if failed is not None:
                case.findings.append(failed)

    async def read_all(self) -> Reading:
        """Read every message of every queue, as clients do."""
        async with PullConsumer(READER, self.cluster.namesrv.address) as consumer:
            return await read_all_topics(consumer, self.cluster.broker_name, self.queues())

    async def count_lost(self, case: OpenCase) -> Reading:
        """Read everything, and look for each message that was acknowledged so far."""
        reading = await self.read_all()
        found = {
            dict(value.properties).get("KEYS")
            for (topic, _, _), value in reading.messages.items()
            if topic == LOAD_TOPIC
        }
        lost = self._acknowledged - found
        case.facts["lost"] = len(lost)
        if lost:
            shown = ", ".join(sorted(lost)[:3])
            case.findings.append(f"{len(lost)} acknowledged messages are missing: {shown}, ...")
        return reading

    def queues(self) -> list[tuple[str, int]]:
        """Return every queue that any member has on disk."""
        stores = [queues_on_disk(self.cluster.store(member)) for member in MEMBERS]
        return sorted({(each.topic, each.queue_id) for store in stores for each in store})
