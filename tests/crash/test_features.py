"""Delays, transactions and ordered consumption while the leader of a DLedger group of three is
killed, or stopped in good order, under load: counts against the promises of
docs/reference/features.md.

==================  =====================================  ===================================
what                leader killed                          leader stopped
==================  =====================================  ===================================
delayed             each acknowledged at least once,       each acknowledged once
                    none before its time
committed           each at least once, also after a check the same
rolled back         never                                  never
ordered             first deliveries in order, none lacks  the same
==================  =====================================  ===================================

RMQPY_CRASH_ROUNDS is the number of leaders that end (default 1).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from attrs import define, field

from rmqpy.client import (
    ClientSettings,
    Message,
    MessageExt,
    Producer,
    ProducerSettings,
    PushConsumer,
    PushSettings,
    TransactionalProducer,
    TransactionState,
)
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    group_settings,
)

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "1"))
MEMBERS = 3
SETTINGS = {
    "messageDelayLevel": "1s 2s",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "500",
}
DELAY_MS = 1_000
SHARDS = 3
QUEUES = 4
"""As many as a topic has that is made by a send: a leader that ends before the others have heard of
a new topic leaves them to make it anew, and with another count a shard would be in another queue.
"""
PAUSE_S = 0.02
LOAD_S = 3.0
"""Before and after each end of a leader."""
GROWTH_MIN = 20
"""Acknowledgements of each kind between two of them."""
WAIT_S = 90
LINGER_S = 4.0
"""For what must not come."""

OUTCOMES = ("commit", "rollback", "commit when asked", "rollback when asked")


@define
class Group:
    name_server: str
    members: list[ServerProcess]

    def leader(self) -> ServerProcess | None:
        """Who acknowledges a message now."""
        for member in self.members:
            try:
                with BlockingConnection(member.address, 1.0) as connection:
                    create_topic(connection, "probe", 1)
                    if connection.call(send_request("probe", 0, [b"probe"])).code == 0:
                        return member
            except (NetworkError, RequestRejectedError):
                continue
        return None


@define
class Story:
    """What was acknowledged, and what came, in the order in which it came."""

    delayed: set[str] = field(factory=set)
    halves: dict[str, str] = field(factory=dict)
    """Body → outcome, of every attempt."""
    committed: set[str] = field(factory=set)
    """Of the acknowledged ones, those that must become visible."""
    ordered: dict[int, int] = field(factory=lambda: dict.fromkeys(range(SHARDS), 0))
    """How many of each shard are acknowledged."""
    refused: Counter[str] = field(factory=Counter)
    came: dict[str, list[str]] = field(factory=lambda: {"Delayed": [], "Paid": [], "Steps": []})
    early: list[str] = field(factory=list)
    ended: bool = False

    async def listen(self, messages: list[MessageExt]) -> None:
        for message in messages:
            body = message.body.decode()
            topic = body.partition(" ")[0]
            self.came[topic].append(body)
            waited_ms = message.stored.store_timestamp_ms - message.stored.born_timestamp_ms
            if topic == "Delayed" and waited_ms < DELAY_MS:
                self.early.append(f"{body} after {waited_ms} ms")

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.figures()}"
            await asyncio.sleep(0.05)

    def missing(self) -> list[str]:
        """What must come and has not."""
        steps = {
            f"Steps {shard} {number}"
            for shard, count in self.ordered.items()
            for number in range(count)
        }
        wanted = {"Delayed": self.delayed, "Paid": self.committed, "Steps": steps}
        return [body for topic, bodies in wanted.items() for body in bodies - set(self.came[topic])]

    def complete(self) -> bool:
        return not self.missing()

    def acknowledged(self) -> tuple[int, int, int]:
        return len(self.delayed), len(self.committed), sum(self.ordered.values())

    def figures(self) -> str:
        lines = []
        for topic, count in zip(self.came, self.acknowledged(), strict=True):
            came = Counter(self.came[topic])
            repeated = sum(times - 1 for times in came.values())
            lines.append(
                f"{topic}: {count} acknowledged, {self.refused[topic]} not, "
                f"{len(came)} came, {repeated} once more"
            )
        return "; ".join(lines) + f"; missing {sorted(self.missing())[:20]}"

    # -- load

    async def send_delayed(self, producer: Producer) -> None:
        number = 0
        while not self.ended:
            number += 1
            body = f"Delayed {number}"
            try:
                await producer.send(Message(topic="Delayed", body=body.encode(), delay_level=1))
                self.delayed.add(body)
            except RmqError:
                self.refused["Delayed"] += 1
            await asyncio.sleep(PAUSE_S)

    async def transact(self, producer: TransactionalProducer) -> None:
        number = 0
        while not self.ended:
            number += 1
            body, outcome = f"Paid {number}", OUTCOMES[number % len(OUTCOMES)]
            self.halves[body] = outcome
            try:
                await producer.send_in_transaction(
                    Message(topic="Paid", body=body.encode()), self.execute
                )
                if outcome.startswith("commit"):
                    self.committed.add(body)
            except RmqError:
                self.refused["Paid"] += 1
            await asyncio.sleep(PAUSE_S)

    async def execute(self, message: Message, _unique_id: str) -> TransactionState:
        outcome = self.halves[message.body.decode()]
        if "asked" in outcome:
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if outcome == "commit" else TransactionState.ROLLBACK

    async def check(self, message: MessageExt) -> TransactionState:
        outcome = self.halves[message.body.decode()]
        return (
            TransactionState.COMMIT if outcome.startswith("commit") else TransactionState.ROLLBACK
        )

    async def send_steps(self, producer: Producer, shard: int) -> None:
        """The next step only when the one before is acknowledged."""
        while not self.ended:
            body = f"Steps {shard} {self.ordered[shard]}"
            try:
                await producer.send_ordered(
                    Message(topic="Steps", body=body.encode()), sharding_key=f"shard-{shard}"
                )
                self.ordered[shard] += 1
            except RmqError:
                self.refused["Steps"] += 1
            await asyncio.sleep(PAUSE_S)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    site = RmqpySite(tmp_path)
    ports, name_port = free_port_block(MEMBERS), free_port_block(1)
    blocks = [free_port_block(BROKER_PORT_COUNT) for _ in range(MEMBERS)]
    with site.namesrv("namesrv", name_port.first) as namesrv:
        members = []
        for number, block in enumerate(blocks):
            own = group_settings("broker-a", list(ports), number) | FAST_ELECTION | SETTINGS
            spec = BrokerSpec(port=block.broker_port, namesrv=namesrv.address, settings=own)
            members.append(site.broker(f"broker-{number}", spec).start())
        yield Group(namesrv.address, members)
        for member in members:
            member.kill()


async def led(group: Group) -> ServerProcess:
    deadline = time.monotonic() + WAIT_S
    while (leader := await asyncio.to_thread(group.leader)) is None:
        assert time.monotonic() < deadline, "nobody leads"
        await asyncio.sleep(0.1)
    return leader


async def tell(group: Group, end: Callable[[ServerProcess], object]) -> Story:
    """The load, and leaders that end meanwhile; returns when all that must come has come."""
    story = Story()
    leader = await led(group)
    with BlockingConnection(leader.address, 5.0) as connection:
        for topic in story.came:
            create_topic(connection, topic, QUEUES)
    deps = ClientSettings(name_servers=group.name_server, route_refresh_ms=1_000)
    once = ProducerSettings(retries=0)
    consumers = []
    for topic in story.came:
        settings = PushSettings(
            ordered=topic == "Steps",
            from_where="CONSUME_FROM_FIRST_OFFSET",
            rebalance_ms=1_000,
            lock_ms=1_000,
            persist_ms=500,
        )
        consumers.append(
            PushConsumer(f"{topic}-readers", deps, listener=story.listen, settings=settings)
        )
        consumers[-1].subscribe(topic)
    producer = Producer("senders", deps, settings=once)
    steps = Producer("steppers", deps)
    payer = TransactionalProducer("payers", deps, check=story.check, settings=once)
    clients = [producer, steps, payer, *consumers]
    for client in clients:
        await client.start()
    load: list[Awaitable[None]] = [story.send_delayed(producer), story.transact(payer)]
    load += [story.send_steps(steps, shard) for shard in range(SHARDS)]
    tasks = [asyncio.ensure_future(each) for each in load]
    try:
        await grown(story)
        for _ in range(ROUNDS):
            leader = await led(group)
            await asyncio.to_thread(end, leader)
            await grown(story)
            await asyncio.to_thread(leader.start)
            await grown(story)
        story.ended = True
        await asyncio.gather(*tasks)
        await story.until("not all has come", story.complete)
        await asyncio.sleep(LINGER_S)
    finally:
        for task in tasks:
            task.cancel()
        for client in clients:
            await client.close()
    return story


async def grown(story: Story) -> None:
    goals = [count + GROWTH_MIN for count in story.acknowledged()]
    await asyncio.sleep(LOAD_S)
    await story.until(
        "the load goes on",
        lambda: all(now >= goal for now, goal in zip(story.acknowledged(), goals, strict=True)),
    )


def check_promises(story: Story) -> None:
    print(story.figures())
    assert story.early == []
    assert story.complete(), story.figures()
    visible = {story.halves[body] for body in story.came["Paid"]}
    assert visible == {"commit", "commit when asked"}
    for shard in range(SHARDS):
        steps = [body for body in story.came["Steps"] if body.startswith(f"Steps {shard} ")]
        firsts = [int(body.rpartition(" ")[2]) for body in dict.fromkeys(steps)]
        # Behind the last acknowledged one there may be one more, whose answer was lost.
        assert firsts == list(range(len(firsts))), f"shard {shard}"
        assert len(firsts) - story.ordered[shard] in (0, 1)


def test_a_killed_leader(group: Group) -> None:
    check_promises(asyncio.run(tell(group, lambda leader: leader.kill())))


def test_a_leader_that_is_stopped_delivers_delayed_messages_once(group: Group) -> None:
    story = asyncio.run(tell(group, lambda leader: leader.stop()))
    check_promises(story)
    repeated = [body for body, times in Counter(story.came["Delayed"]).items() if times > 1]
    assert repeated == []
