"""A repeated heartbeat is recognised by its bytes, and has the effect of one that is applied."""

from __future__ import annotations

import random

import pytest

from rmqpy.broker.processors import client_manage
from rmqpy.broker.state.known_heartbeats import KnownHeartbeats
from rmqpy.broker.state.queue_locks import QueueLockTable
from rmqpy.remoting.bodies import (
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import UnregisterClientRequestHeader
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel

TOPICS = (SubscriptionData("T", "*", sub_version=5), SubscriptionData("U", "a || b", [], [1], 5))


def test_a_repeated_heartbeat_is_not_decoded(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.heartbeat(subscriptions=TOPICS, producer="PG")
    monkeypatch.setattr(HeartbeatData, "decode", None)
    harness.scheduler.advance(100_000)
    assert harness.heartbeat(subscriptions=TOPICS, producer="PG").code == 0
    harness.scheduler.advance(100_000)
    assert not harness.channel.closed, "its members were renewed"
    clients = harness.broker.clients
    (producer,) = clients.producers("PG").values()
    assert producer.updated_ms == harness.scheduler.monotonic_ms() - 100_000


def test_a_repeated_request_for_locks_is_not_decoded(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
    body = LockBatchRequestBody("CG", "c1", queues).encode()
    other = LockBatchRequestBody("CG", "c2", queues[:2]).encode()

    def granted(body: bytes) -> list[MessageQueue]:
        answer = harness.call(41, None, body)
        return LockBatchResponseBody.decode(answer.body).lock_ok_mq_set

    assert granted(body) == queues
    decode = LockBatchRequestBody.decode
    monkeypatch.setattr(LockBatchRequestBody, "decode", None)
    assert granted(body) == queues
    harness.scheduler.advance(60_001)
    monkeypatch.setattr(LockBatchRequestBody, "decode", decode)
    assert granted(other) == queues[:2], "the locks have expired"
    assert granted(body) == queues[2:]
    assert granted(body) == queues[2:]


def test_repeated_requests_for_locks_have_the_effect_of_decoded_ones(
    harness: BrokerHarness,
) -> None:
    """Compared with a table that renews nothing."""
    rng = random.Random(9)
    plain = QueueLockTable(harness.scheduler)
    queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
    channels = {"c1": MemoryChannel(), "c2": MemoryChannel()}
    for _ in range(400):
        client = rng.choice(["c1", "c1", "c2"])
        wanted = rng.choice([queues, queues, queues[:1], queues[1:], []])
        body = LockBatchRequestBody("CG", client, wanted).encode()
        if rng.random() < 0.2:
            assert harness.call(42, None, body, channels[client]).code == 0
            plain.unlock("CG", client, wanted)
        else:
            answer = harness.call(41, None, body, channels[client])
            granted = LockBatchResponseBody.decode(answer.body).lock_ok_mq_set
            assert granted == plain.lock("CG", client, wanted)
        harness.scheduler.advance(rng.choice([0, 0, 20_000, 59_999, 60_001]))
        if rng.random() < 0.1:
            harness.broker.locks.expire()
            plain.expire()


def test_an_unlock_with_the_same_bytes_does_not_replace_the_checks_of_a_lock(
    harness: BrokerHarness,
) -> None:
    body = LockBatchRequestBody("b@d group", "c1", [MessageQueue("T", "b", 1)]).encode()
    assert [harness.call(code, None, body).code for code in (42, 41, 42, 41)] == [0, 1, 0, 1]


def test_a_long_request_for_locks_is_not_kept(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_manage, "KNOWN_LOCK_BYTES_MAX", 10)
    body = LockBatchRequestBody("CG", "c1", [MessageQueue("T", "b", 1)]).encode()
    answers = [harness.call(41, None, body).body for _ in range(2)]
    assert answers[0] == answers[1]


def state_of(harness: BrokerHarness) -> object:
    clients = harness.broker.clients
    names = ("G1", "G2")
    groups = [clients.consumer_group(name) for name in names]
    return (
        [
            None
            if group is None
            else (
                group.settings,
                [repr(each) for each in group.subscriptions.values()],
                [repr(client) for client in group.members.values()],
            )
            for group in groups
        ],
        [[repr(each) for each in clients.producers(name).values()] for name in ("P1", "P2")],
        sorted(harness.broker.topics.topics),
        repr(harness.broker.groups.groups),
    )


def act(harness: BrokerHarness, channels: list[MemoryChannel], rng: random.Random) -> None:
    """Perform a random action; the same state of ``rng`` leads to the same action."""
    number = rng.randrange(len(channels))
    channel = channels[number]
    group = rng.choice(["G1", "G1", "G2"])
    version = rng.choice([5, 5, 5, 6])
    subscriptions = tuple(
        SubscriptionData(topic, rng.choice(["*", "*", "x"]), [], [], version, kind)
        for topic, kind in (("T", "TAG"), ("U", rng.choice(["TAG", "TAG", "SQL92"])))
        if rng.random() < 0.8
    )
    model = rng.choice(["CLUSTERING"] * 5 + ["BROADCASTING"])
    producer = rng.choice([None, "P1", "P2"])
    action = rng.random()
    harness.scheduler.advance(rng.choice([1, 1000, 40_000]))
    if channel.closed:
        channel = channels[number] = MemoryChannel(peer=("10.0.0.1", rng.randrange(60_000)))
    if action < 0.75:
        for _ in range(rng.choice([1, 2, 3])):
            harness.heartbeat(
                channel, f"c{number}", group, subscriptions, producer, message_model=model
            )
    elif action < 0.8:
        header = UnregisterClientRequestHeader(
            client_id=f"c{number}", producer_group="P1", consumer_group=group
        )
        harness.deliver(RemotingCommand.request(35, header), channel=channel)
    elif action < 0.85:
        harness.broker.server.channel_closed(channel)
        channel.close()
    elif action < 0.9:
        harness.broker.groups.delete(group)
    elif action < 0.95:
        harness.broker.topics.delete(f"%RETRY%{group}")
    else:
        harness.broker.groups.put(SubscriptionGroupConfig(group, retry_queue_nums=2))


@pytest.mark.parametrize("seed", range(8))
def test_the_tables_are_those_of_applied_heartbeats(
    build: BuildBroker, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    states = []
    for remembers in (True, False):
        if not remembers:
            monkeypatch.setattr(KnownHeartbeats, "renew", lambda *_: False)
        harness = build()
        rng = random.Random(seed)
        channels = [MemoryChannel(peer=("10.0.0.1", number)) for number in range(3)]
        found = []
        for _ in range(60):
            act(harness, channels, rng)
            found.append(state_of(harness))
        states.append(found)
    assert states[0] == states[1]
