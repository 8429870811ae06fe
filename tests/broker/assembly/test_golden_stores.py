"""Stores written by the Java broker and served by ours over sockets: a consumer receives every
message as Java's consumer did, before and after the switch to DLedger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client.core.message import MessageExt
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.codec.hashes import crc32
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.flags import COMPRESSED
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.testing.ports import free_port_block

CLASSIC = [
    ("A-classic-clean-v497", "store"),
    ("A-classic-killed-v497", "store"),
    ("A-classic-clean-v533", "store"),
    ("B-master-slave-v497", "master"),
    ("B-master-slave-v497", "slave"),
]
DIVIDED = {"C-upgraded-v497": 262144, "C-upgraded-v533": 196608}
DLEDGER = [
    (name, node)
    for name in (*DIVIDED, "D-dledger-v497", "D-dledger-v533")
    for node in ("n0", "n1", "n2")
]
ADDED_BY_THE_JAVA_CLIENT = ("MIN_OFFSET", "MAX_OFFSET")
SIZES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "maxMessageSize": "32768",
}


def member(name: str) -> dict[str, str]:
    """Return the settings of a group of one member, except its address."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "golden",
        "dLegerSelfId": name,
    }


def as_java_received(message: dict[str, Any]) -> dict[str, Any]:
    names = (
        ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "sysFlag", "flag")
        + ("preparedTransactionOffset", "reconsumeTimes", "bornTimestamp", "storeTimestamp")
        + ("msgId", "offsetMsgId", "bodyCRC")
    )
    properties = {
        name: value
        for name, value in message["props"].items()
        if name not in ADDED_BY_THE_JAVA_CLIENT
    }
    seen = {name: message[name] for name in names}
    # The 5.x client clears the flag when it decompresses the body.
    seen["sysFlag"] &= ~COMPRESSED
    return seen | {"props": properties, "crc": message["crc"]}


def as_read(message: MessageExt) -> dict[str, Any]:
    stored = message.stored
    assert crc32(stored.body) == stored.body_crc
    return {
        "topic": stored.topic,
        "queueId": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "commitLogOffset": stored.physical_offset,
        "storeSize": stored.size,
        "sysFlag": stored.sys_flag & ~COMPRESSED,
        "flag": stored.flag,
        "preparedTransactionOffset": stored.prepared_transaction_offset,
        "reconsumeTimes": stored.reconsume_times,
        "bornTimestamp": stored.born_timestamp_ms,
        "storeTimestamp": stored.store_timestamp_ms,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "bodyCRC": stored.body_crc,
        "props": dict(stored.properties),
        "crc": crc32(message.body),
    }


async def read_queues(
    store: Path, settings: dict[str, str], queues: set[tuple[str, int]]
) -> tuple[dict[tuple[str, int, int], dict[str, Any]], int | None]:
    """Return all messages of ``queues``, pulled through a name server and a broker, and the divided
    offset.
    """
    scheduler = AsyncioScheduler()
    ports = free_port_block(5)
    if "dLegerSelfId" in settings:
        settings = settings | {"dLegerPeers": f"{settings['dLegerSelfId']}-127.0.0.1:{ports[4]}"}
    namesrv = NamesrvProcess(
        load_namesrv_configuration(
            None,
            {"listenPort": str(ports[1]), "kvConfigPath": str(store.parent / "kv.json")},
            {"HOME": str(store)},
        ).configuration,
        scheduler,
    )
    broker = BrokerRuntime(
        load_broker_configuration(
            None,
            SIZES
            | settings
            | {
                "brokerName": "golden",
                "listenPort": str(ports.broker_port),
                "brokerIP1": "127.0.0.1",
                "namesrvAddr": f"127.0.0.1:{ports[1]}",
                "storePathRootDir": str(store),
            },
            {"HOME": str(store)},
        ).configuration,
        scheduler,
    )
    await namesrv.start()
    await broker.start()
    found = {}
    async with PullConsumer("golden_reader", f"127.0.0.1:{ports[1]}") as consumer:
        for topic, queue_id in sorted(queues):
            queue = MessageQueue(topic=topic, broker_name="golden", queue_id=queue_id)
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                page = await consumer.pull(queue, offset)
                assert page.next_begin_offset > offset
                for message in page.messages:
                    found[topic, queue_id, message.queue_offset] = as_read(message)
                offset = page.next_begin_offset
    divided = broker.store.opened.divided_offset
    await broker.stop()
    await namesrv.stop()
    await scheduler.close()
    return found, divided


def check(store: Path, expected: list[dict[str, Any]], settings: dict[str, str]) -> int | None:
    expected_messages = {
        (message["topic"], message["queueId"], message["queueOffset"]): as_java_received(message)
        for message in expected
    }
    assert len(expected_messages) > 200
    queues = {(topic, queue_id) for topic, queue_id, _ in expected_messages}
    found, divided = asyncio.run(read_queues(store, settings, queues))
    assert {place: found.get(place) for place in expected_messages} == expected_messages
    return divided


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), CLASSIC)
def test_a_classic_store_is_served_and_again_after_the_switch(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    store = golden_copy(name) / node
    messages = manifest(name)["messages"]
    assert check(store, messages, {}) is None
    divided = check(store, messages, member("n0"))
    assert divided is not None and divided % 65536 == 0
    assert (store / f"dledger-n0/data/{divided:020d}").exists()
    assert check(store, messages, member("n0")) == divided


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), DLEDGER)
def test_a_dledger_store_is_served(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    divided = check(golden_copy(name) / node, manifest(name)["messages"], member(node))
    assert divided == DIVIDED.get(name)
