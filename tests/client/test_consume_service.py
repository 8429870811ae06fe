"""``QueueConsumer`` and its workers: every message reaches the listener once, whether calls wait
or not, and its offset is committed when all before it are finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define, field
from harness.store import MemoryRig
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.client.consuming.consume_service import (
    ConsumerContext,
    ConsumeResult,
    ConsumeSettings,
    QueueConsumer,
    Subscription,
)
from rmqpy.client.consuming.consumer_stats import ConsumerStats
from rmqpy.client.consuming.process_queue import ProcessQueue
from rmqpy.client.consuming.work_queue import WorkQueue
from rmqpy.client.core.base_consumer import PullOrder, PullResult, PullStatus
from rmqpy.client.core.message import MessageExt, messages_of
from rmqpy.client.core.quiet_log import QuietLog
from rmqpy.codec.backend import received_records
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.testing.manual_scheduler import ManualScheduler

QUEUE = MessageQueue("Topic", "broker-a", 0)
COUNT = 12


def stored_messages() -> list[MessageExt]:
    rig = MemoryRig()
    store = rig.open()
    rig.put(store, *range(COUNT), queue_id=0)
    store.shutdown()
    ((_, records),) = rig.records().items()
    return messages_of(QUEUE, received_records(b"".join(records))[0])


MESSAGES = stored_messages()


@define
class Context(ConsumerContext):
    """A consumer whose broker has ``MESSAGES``, and takes back what is sent back."""

    pull_max: int
    sent_back: list[int] = field(factory=list)
    errors: list[str] = field(factory=list)
    rates: ConsumerStats = field(factory=ConsumerStats)
    clock: ManualScheduler = field(factory=ManualScheduler)
    has_total_limit: bool = False

    @property
    def log(self) -> QuietLog:
        return QuietLog(self.clock)

    async def pull(self, queue: MessageQueue, order: PullOrder) -> PullResult:
        await asyncio.sleep(0)
        found = MESSAGES[order.offset : order.offset + self.pull_max]
        if not found:
            await asyncio.Event().wait()
        return PullResult(
            status=PullStatus.FOUND,
            next_begin_offset=order.offset + len(found),
            min_offset=0,
            max_offset=COUNT,
            messages=found,
        )

    async def send_back(self, message: MessageExt) -> bool:
        await asyncio.sleep(0)
        self.sent_back.append(message.queue_offset)
        return True

    def has_total_room(self, queue: QueueConsumer) -> bool:
        return True

    def room_changed(self) -> None:
        raise AssertionError("there is no limit")

    def dropping(self, queue: MessageQueue) -> None:
        pass

    def report(self, error: Exception, queue: MessageQueue) -> None:
        self.errors.append(str(error))

    def is_exhausted(self, message: MessageExt) -> bool:
        return False


@define
class Delivery:
    """A listener that does with each message what its entry in ``ways`` says, the first time."""

    ways: Sequence[str]
    calls: list[int] = field(factory=list)
    running: int = 0
    most: int = 0

    async def listen(self, messages: Sequence[MessageExt]) -> ConsumeResult | None:
        first = messages[0].queue_offset
        self.calls += (each.queue_offset for each in messages)
        self.running += 1
        self.most = max(self.most, self.running)
        way = self.ways[first]
        try:
            if "waits" in way:
                for _ in range(3):
                    await asyncio.sleep(0)
            if "raises" in way:
                raise ValueError(way)
            return ConsumeResult.RECONSUME_LATER if "later" in way else None
        finally:
            self.running -= 1


def consume_all(ways: Sequence[str], workers: int, pull_max: int, batch_max: int) -> None:
    delivery, context = Delivery(ways), Context(pull_max)
    work: WorkQueue[QueueConsumer] = WorkQueue()
    subscription = Subscription("*", "TAG", 1)
    settings = ConsumeSettings(batch_max=batch_max, pull_max=pull_max)
    queue = ProcessQueue(next_offset=0)

    async def main() -> None:
        consumer = QueueConsumer(
            QUEUE, queue, subscription, delivery.listen, settings, context, work
        )

        async def worker() -> None:
            while True:
                rest = (work.take() or await work.get()).consume()
                if rest is not None:
                    await rest

        tasks = [asyncio.create_task(worker()) for _ in range(workers)]
        consumer.start()
        for _ in range(40 * COUNT):
            if queue.commit_offset == COUNT and not queue.count:
                break
            await asyncio.sleep(0)
        await consumer.drop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert queue.commit_offset == COUNT
    assert sorted(delivery.calls) == list(range(COUNT))
    assert delivery.most <= workers
    if batch_max == 1:
        refused = [n for n, way in enumerate(ways) if "later" in way or "raises" in way]
        assert sorted(context.sent_back) == refused
        assert len(context.errors) == sum("raises" in way for way in ways)
        totals = context.rates._totals_of(QUEUE.topic)
        assert (totals.calls, totals.failed) == (COUNT, len(refused))
        assert totals.consumed == COUNT - len(refused)
    if workers == 1:
        assert delivery.calls == list(range(COUNT))


WAYS = ("returns", "waits", "later", "waits, later", "raises", "waits, raises")


@given(
    st.lists(st.sampled_from(WAYS), min_size=COUNT, max_size=COUNT),
    st.integers(1, 4),
    st.integers(1, COUNT),
    st.integers(1, 3),
)
def test_each_message_is_consumed_once(
    ways: list[str], workers: int, pull_max: int, batch_max: int
) -> None:
    consume_all(ways, workers, pull_max, batch_max)


def test_calls_that_wait_run_beside_each_other() -> None:
    delivery = Delivery(["waits"] * COUNT)
    context, work = Context(COUNT), WorkQueue[QueueConsumer]()
    settings = ConsumeSettings(pull_max=COUNT)
    queue = ProcessQueue(next_offset=0)

    async def main() -> None:
        subscription = Subscription("*", "TAG", 1)
        consumer = QueueConsumer(
            QUEUE, queue, subscription, delivery.listen, settings, context, work
        )
        queue.put(MESSAGES)
        rests = []
        consumer._notify_workers()
        while (offered := work.take()) is not None:
            rest = offered.consume()
            assert rest is not None
            rests.append(rest)
        assert len(rests) == delivery.running == COUNT
        await asyncio.gather(*rests)

    asyncio.run(main())
    assert queue.commit_offset == 0 and not queue.count
