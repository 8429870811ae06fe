"""``rmqpy.testing.Broker`` in this process: its faults and its clock, as clients see them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.client import Message, Producer, ProducerSettings, SendStatus
from rmqpy.client.blocking import BlockingProducer
from rmqpy.model.errors import NetworkError, RmqError
from rmqpy.testing import Broker, BrokerClosedError, NameServer
from rmqpy.testing.dev.nodes import DevError

ONE_TRY = ProducerSettings(timeout_ms=300, retries=0)


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """A broker for tests that leave it running; each uses topics of its own."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    if not shared.status()["broker"]["leads"]:
        shared.start()
    return shared


def bodies(broker: Broker, topic: str) -> list[bytes]:
    return sorted(message.body for message in broker.messages(topic))


def test_the_first_send_to_a_new_topic_succeeds() -> None:
    with Broker(topics=["known:2"]) as broker:
        assert broker.send("known", b"1").status is SendStatus.SEND_OK
        assert broker.send("unknown", b"2").status is SendStatus.SEND_OK
        assert {message.queue.queue_id for message in broker.messages("known")} <= {0, 1}


def test_what_was_acknowledged_survives_a_kill(broker: Broker) -> None:
    producer = broker.producer("killed")
    for number in range(50):
        producer.send(Message(topic="Kill", body=b"%02d" % number))
    broker.kill()
    with pytest.raises(NetworkError):
        producer.send(Message(topic="Kill", body=b"lost"), timeout_ms=200)
    broker.start()
    assert bodies(broker, "Kill") == [b"%02d" % number for number in range(50)]


def test_a_stopped_broker_leaves_no_abort_file_and_a_killed_one_does(broker: Broker) -> None:
    broker.stop()
    assert not (broker.store / "abort").exists()
    broker.start()
    broker.kill()
    assert (broker.store / "abort").exists()


def test_a_paused_broker_accepts_connections_and_answers_after_its_pause(broker: Broker) -> None:
    broker.create_topic("Pause")
    with BlockingProducer("before", broker.name_server, settings=ONE_TRY) as producer:
        producer.send(Message(topic="Pause", body=b"before"))
        with broker.paused(), pytest.raises(NetworkError, match="did not answer"):
            producer.send(Message(topic="Pause", body=b"meanwhile"))
        producer.send(Message(topic="Pause", body=b"after"), timeout_ms=5_000)
    assert {b"before", b"after"} <= set(bodies(broker, "Pause"))


def test_a_paused_broker_can_be_killed_and_stopped(broker: Broker) -> None:
    broker.pause()
    broker.kill()
    broker.start()
    broker.pause()
    broker.stop()
    assert broker.status()["broker"]["state"] == "stopped"


def test_a_slow_disk_delays_synchronous_flushes_only_while_it_lasts() -> None:
    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "100"}
    with Broker(topics=["Slow"], settings=settings) as broker:
        assert broker.send("Slow", b"1").status is SendStatus.SEND_OK
        broker.slow_disk(30)
        assert broker.send("Slow", b"2").status is SendStatus.FLUSH_DISK_TIMEOUT
        broker.slow_disk(0)
        assert broker.send("Slow", b"3").status is SendStatus.SEND_OK
        assert bodies(broker, "Slow") == [b"1", b"2", b"3"]


def test_a_delayed_message_is_there_when_its_time_was_skipped(broker: Broker) -> None:
    broker.send("Delay", b"in two hours", delay_level=18)
    broker.advance(7_100)
    assert bodies(broker, "Delay") == []
    broker.advance(200)
    assert bodies(broker, "Delay") == [b"in two hours"]


def test_a_skipped_day_disconnects_no_client(broker: Broker) -> None:
    producer = broker.producer("patient")
    producer.send(Message(topic="Day", body=b"1"))
    broker.advance(86_400)
    with BlockingProducer("other", broker.name_server, settings=ONE_TRY) as other:
        other.send(Message(topic="Day", body=b"2"))
    producer.send(Message(topic="Day", body=b"3"), timeout_ms=300)
    assert bodies(broker, "Day") == [b"1", b"2", b"3"]


def test_files_expire_when_their_time_was_skipped() -> None:
    settings = {"mappedFileSizeCommitLog": "65536", "maxMessageSize": "32768"}
    with Broker(topics=["Old:1"], settings=settings) as broker:
        for _ in range(12):
            broker.send("Old", os.urandom(20_000))
        first = min((broker.store / "commitlog").iterdir())
        broker.advance(4 * 86_400)
        assert not first.exists()
        assert len(broker.messages("Old")) < 12


def test_servers_share_a_name_server_and_survive_its_absence() -> None:
    with NameServer() as name_server, Broker(name_server=name_server, topics=["Shared"]) as broker:
        assert broker.name_server == name_server.address
        producer = broker.producer()
        producer.send(Message(topic="Shared", body=b"1"))
        name_server.stop()
        producer.send(Message(topic="Shared", body=b"2"))
        name_server.start()
        name_server.pause()
        producer.send(Message(topic="Shared", body=b"3"))
        name_server.resume()
        assert "namesrv" not in broker.status()


def test_a_broker_serves_a_coroutine_of_any_loop() -> None:
    async def main() -> SendStatus:
        async with Broker() as broker, Producer("loop", broker.name_server) as producer:
            return (await producer.send(Message(topic="Loop", body=b"1"))).status

    assert asyncio.run(main()) is SendStatus.SEND_OK


def test_a_closed_broker_says_so_and_leaves_nothing() -> None:
    broker = Broker()
    assert repr(broker) == "Broker(closed)"
    with pytest.raises(BrokerClosedError, match="with block"):
        broker.kill()
    with broker:
        folder = broker.store.parents[1]
        assert re.fullmatch(r"Broker\(name server 127.*, broker 127.*\)", repr(broker))
        with pytest.raises(BrokerClosedError, match="run already"):
            broker.open()
    assert not folder.exists()
    broker.close()
    with broker:
        assert broker.send("Again", b"1").queue_offset == 0


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RmqError, match="flushDiskType"), Broker(settings={"flushDiskType": "x"}):
        pass
    with pytest.raises(DevError, match="NAME:QUEUES"), Broker(topics=["orders:many"]):
        pass
    with pytest.raises(DevError, match="expected 0 to"), Broker(members=100):
        pass
    with pytest.raises(DevError, match="expected broker"), Broker(stores={"n7": tmp_path}):
        pass


def test_a_file_of_settings_overrides_the_defaults(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=mine\nlistenPort=1\nstorePathRootDir=/nowhere\n")
    with Broker(config=config, root=tmp_path / "kept") as broker:
        assert broker.send("Mine", b"1").queue.broker_name == "mine"
    assert (tmp_path / "kept" / "broker" / "store" / "commitlog").is_dir()
    with Broker(stores={"broker": tmp_path / "kept" / "broker" / "store"}) as again:
        assert bodies(again, "Mine") == [b"1"]


@pytest.mark.slow
def test_a_group_elects_another_leader_without_one_that_is_separated() -> None:
    with Broker(members=3, topics=["Group"]) as group:
        first = group.leader()
        group.send("Group", b"1")
        with pytest.raises(DevError, match="expected one of n0, n1, n2"):
            group.kill()
        group.kill(first)
        second = group.leader()
        assert second != first
        group.send("Group", b"2", keys="k")
        group.start(first)
        group.partition(second, "namesrv")
        group.heal()
        group.send("Group", b"3")
        assert bodies(group, "Group") == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_the_topics_of_a_group_are_known_to_the_next_leader() -> None:
    with Broker(members=3, topics=["Group:7"]) as group:
        group.kill(group.leader())
        group.leader()
        sent = {group.send("Group", b"%d" % number).queue.queue_id for number in range(7)}
        assert sent == set(range(7))
