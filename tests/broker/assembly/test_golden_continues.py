"""A golden store is cut where delays, half messages, or retries were unfinished; our broker
continues from there, and its messages are compared with those that Java stored then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from harness.broker import queue_messages

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.codec.hashes import crc32
from rmqpy.codec.message import decode_message
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.flags import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_NOT_TYPE
from rmqpy.model.message import StoredMessage
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.headers import (
    CheckTransactionStateRequestHeader,
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    QueryConsumerOffsetRequestHeader,
)
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.ports import free_port_block

STORES = [("A-classic-clean-v497", "store"), ("B-master-slave-v497", "master")]
HALF, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
RETRY, DEAD = "%RETRY%CID_retry", "%DLQ%CID_retry"
FILE_SIZE = 65536


def cut(root: Path, offset: int) -> None:
    """Cut a store as if the broker had been killed when its log ended at ``offset``, before it
    saved the progress of delays and transaction checks.
    """
    for path in (root / "commitlog").iterdir():
        first = int(path.name)
        if first >= offset:
            path.unlink()
        elif first + FILE_SIZE > offset:
            kept = path.read_bytes()[: offset - first]
            path.write_bytes(kept.ljust(FILE_SIZE, b"\0"))
    (root / "abort").touch()
    for name in ("delayOffset.json", "consumerOffset.json"):
        for path in (root / "config" / name, root / "config" / f"{name}.bak"):
            path.unlink(missing_ok=True)


def opened(build: BuildBroker, root: Path, now_ms: int) -> BrokerHarness:
    return build(
        files=OsFileSystem(),
        scheduler=ManualScheduler(start_ms=now_ms),
        store_path_root_dir=str(root),
        store_path_commit_log=f"{root}/commitlog",
        max_message_size=32768,
        mapped_file_size_consume_queue=2000,
        transaction_check_interval=2_000,
        transaction_time_out=1_000,
        file_reserved_time=1_000_000,
    )


def stored_by_java(
    manifest: dict[str, Any], topics: Iterable[str], since: int
) -> list[dict[str, Any]]:
    """Return the messages that Java stored in ``topics`` from an offset on, in the order of the
    log.
    """
    found = [m for m in manifest["messages"] if m["topic"] in topics]
    return [as_java(m) for m in found if m["commitLogOffset"] >= since]


def as_java(message: dict[str, Any]) -> dict[str, Any]:
    names = ("topic", "queueId", "flag", "reconsumeTimes", "bornTimestamp", "props", "crc")
    return {name: message[name] for name in names} | {"sysFlag": message["sysFlag"]}


def stored_by_us(store: MessageStore, topics: Iterable[str], since: int) -> list[dict[str, Any]]:
    return [as_ours(m) for m in in_order(store, topics) if m.physical_offset >= since]


def as_ours(message: StoredMessage) -> dict[str, Any]:
    assert not message.sys_flag & COMPRESSED
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp_ms,
        "props": dict(message.properties),
        "crc": crc32(message.body),
        "sysFlag": message.sys_flag,
    }


def in_order(store: MessageStore, topics: Iterable[str]) -> list[StoredMessage]:
    found = [
        message
        for topic, queue_id in store.reader.queue_names()
        if topic in topics
        for message in queue_messages(store, topic, queue_id)
    ]
    return sorted(found, key=lambda message: message.physical_offset)


def sorted_by_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(messages, key=str)


def at(manifest: dict[str, Any], topic: str, place: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = [m for m in manifest["messages"] if m["topic"] == topic][place]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), STORES)
def test_delays_and_half_messages(
    build: BuildBroker,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    name: str,
    part: str,
) -> None:
    """The store is cut before the first delivery. The producer answers checks as Java's did: it
    commits "u" at the first check, and never knows the outcome of "p".
    """
    java, root = manifest(name), golden_copy(name) / part
    first = at(java, "Delay")
    since = first["commitLogOffset"]
    cut(root, since)
    harness = opened(build, root, first["storeTimestamp"])
    assert harness.store.log.max_offset == since
    group = "PID_tx_a" if name.startswith("A") else "PID_tx_b"
    for _ in range(80):
        if harness.scheduler.monotonic_ms() % 10_000 == 0:
            harness.heartbeat(group=None, producer=group)
        harness.scheduler.advance(500)
        for check in [command for command in harness.channel.take() if command.code == 39]:
            answer_check(harness, check)
    topics = ("Delay", "Tx", HALF)
    theirs = [m for m in stored_by_java(java, topics, since) if m["props"].get("DELAY") != "5"]
    assert sorted_by_text(stored_by_us(harness.store, topics, since)) == sorted_by_text(theirs)
    assert len(theirs) > 35
    keys = [m["props"]["KEYS"] for m in stored_by_us(harness.store, [GIVEN_UP], since)]
    pending = [m["props"]["KEYS"] for m in theirs if m["props"].get("txp") == "p"]
    assert sorted(keys) == sorted(set(pending)) and len(keys) == 2
    assert all(count == 15 for count in Counter(pending).values())
    harness.store.shutdown()


def answer_check(harness: BrokerHarness, check: RemotingCommand) -> None:
    header = CheckTransactionStateRequestHeader.decode(check.ext_fields)
    half = decode_message(memoryview(check.body))
    known = half.properties["txp"] == "u"
    end = EndTransactionRequestHeader(
        producer_group=half.properties["PGROUP"],
        tran_state_table_offset=header.tran_state_table_offset,
        commit_log_offset=header.commit_log_offset,
        commit_or_rollback=TRANSACTION_COMMIT if known else TRANSACTION_NOT_TYPE,
        from_transaction_check=True,
        msg_id=half.properties["UNIQ_KEY"],
    )
    command = RemotingCommand.request(37, end)
    command.flag |= FLAG_ONEWAY
    harness.deliver(command)


@pytest.mark.parametrize(("name", "part"), STORES)
def test_retries_and_dead_letters(
    build: BuildBroker,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    name: str,
    part: str,
) -> None:
    """The store is cut where three messages of a consumer wait for a retry, which fails again."""
    java, root = manifest(name), golden_copy(name) / part
    first = at(java, RETRY)
    since = first["commitLogOffset"]
    cut(root, since)
    harness = opened(build, root, first["storeTimestamp"])
    harness.scheduler.advance(3_000)
    assert stored_by_us(harness.store, [RETRY], since) == stored_by_java(java, [RETRY], since)
    for message in in_order(harness.store, [RETRY]):
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group="CID_retry",
            delay_level=0,
            origin_msg_id=message.properties["ORIGIN_MESSAGE_ID"],
            origin_topic="Retry",
            max_reconsume_times=1,
        )
        assert harness.call(36, header).code == 0
    dead = stored_by_us(harness.store, [DEAD], since)
    theirs = stored_by_java(java, [DEAD], since)
    assert len(dead) == 3
    assert sorted_by_text(dead) == sorted_by_text(theirs)
    harness.store.shutdown()


def test_a_retry_that_java_left_waiting(
    build: BuildBroker,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    """5.3.3 had sent back three messages that were not fetched yet; the group receives them."""
    root = golden_copy("A-classic-clean-v533") / "store"
    java = manifest("A-classic-clean-v533")
    harness = opened(build, root, max(m["storeTimestamp"] for m in java["messages"]))
    header = QueryConsumerOffsetRequestHeader(consumer_group="CID_retry", topic=RETRY, queue_id=0)
    found = harness.call(14, header)
    assert (found.code, found.ext_fields["offset"]) == (0, "0")
    page = harness.pull(consumer_group="CID_retry", topic=RETRY, queue_offset=0)
    assert (page.code, page.ext_fields["nextBeginOffset"]) == (0, "3")
    assert stored_by_us(harness.store, [RETRY], 0) == stored_by_java(java, [RETRY], 0)
    harness.store.shutdown()


@pytest.mark.slow
def test_delays_are_delivered_after_the_switch_as_java_delivered_them(
    golden_copy: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    """The store C is B after Java's switch: two messages had waited in the classic log."""
    root = golden_copy("B-master-slave-v497") / "master"
    ports = free_port_block(4)
    settings = {
        "brokerName": "golden",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(ports.broker_port),
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
        "maxMessageSize": "32768",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "golden",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{ports[1]}",
    }

    async def main() -> list[dict[str, Any]]:
        scheduler = AsyncioScheduler()
        loaded = load_broker_configuration(None, settings, {"HOME": str(root)})
        process = BrokerRuntime(loaded.configuration, scheduler)
        await process.start()
        assert process.store.opened.divided_offset is not None
        async with asyncio.timeout(20):
            while process.store.reader.max_queue_offset("Delay", 1) < 3:
                await asyncio.sleep(0.01)
        stored = stored_by_us(process.store, ["Delay"], process.store.opened.divided_offset)
        await process.stop()
        await scheduler.close()
        return stored

    java = manifest("C-upgraded-v497")
    theirs = [m for m in stored_by_java(java, ["Delay"], 0) if m["props"]["DELAY"] == "5"]
    assert asyncio.run(main()) == theirs
    assert len(theirs) == 2
