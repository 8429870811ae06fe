"""Repeated kill -9 under load on one store: every acknowledged message is available at the place
that was acknowledged.

RMQPY_CRASH_ROUNDS is the number of kills per mode (default 6). RMQPY_CRASH_SEED repeats the random
choices of a run. RMQPY_CRASH_TARGET=java runs the Java broker instead, to check this test itself.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.kill_load import Load, Place, kill_under_load, read_acknowledged

from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.model.message import StoredMessage
from rmqpy.testing.blocking_connection import (
    connect_when_ready,
    create_topic,
    read_queue,
    send_request,
)
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
)
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TARGET = os.environ.get("RMQPY_CRASH_TARGET", "rmqpy")
TOPIC, QUEUES = "load", 3
ACKNOWLEDGEMENTS_BEFORE_A_KILL = (1, 3000)
SETTLE_SECONDS_MAX = 60


def settings_of(mode: str) -> tuple[PortBlock | None, dict[str, str]]:
    """Return the port block to hold while the broker runs, if any, and the settings of ``mode``."""
    if mode == "dledger":
        block = free_port_block(1)
        return block, dledger_settings("broker-a", block.first)
    return None, {"flushDiskType": "SYNC_FLUSH"} if mode == "classic-sync-flush" else {}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    if TARGET != "java":
        return RmqpySite(tmp_path)
    reason = JavaHome().missing()
    if reason is not None:
        pytest.skip(reason)
    return JavaSite(tmp_path, JavaHome())


@pytest.fixture(params=["classic", "classic-sync-flush", "dledger"])
def broker(request: pytest.FixtureRequest, site: Site) -> Iterator[ServerProcess]:
    namesrv_port, broker_ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
    member_port, settings = settings_of(request.param)
    with site.namesrv("namesrv", namesrv_port.first) as namesrv:
        spec = BrokerSpec(port=broker_ports.broker_port, namesrv=namesrv.address, settings=settings)
        server = site.broker("broker", spec)
        yield server
        server.kill()
    del member_port  # held until here


def test_no_acknowledged_message_is_lost(broker: ServerProcess, tmp_path: Path) -> None:
    seed = int(os.environ.get("RMQPY_CRASH_SEED", "0")) or int.from_bytes(os.urandom(3))
    print(f"RMQPY_CRASH_SEED={seed}")
    rng = random.Random(seed)
    acknowledged: dict[Place, str] = {}
    served: dict[Place, StoredMessage] = {}
    for turn in range(ROUNDS):
        broker.start()
        served = check_served(broker, acknowledged, served)
        file = tmp_path / f"acknowledged-{turn}"
        load = Load(TOPIC, QUEUES, seed + turn)
        kill_under_load(broker, load, file, rng.randint(*ACKNOWLEDGEMENTS_BEFORE_A_KILL))
        acknowledged |= read_acknowledged(file)

    broker.start()
    served = check_served(broker, acknowledged, served)
    assert broker.stop() in (0, 143 if TARGET == "java" else 0)
    assert broker.store is not None
    reading = read_store(broker.store)
    assert reading.problems == []
    on_disk = {
        (message.queue_id, message.queue_offset): message.body
        for message in reading.messages
        if message.topic == TOPIC
    }
    assert on_disk == {place: message.body for place, message in served.items()}

    broker.start()
    assert check_served(broker, acknowledged, served) == served
    assert broker.stop() in (0, 143 if TARGET == "java" else 0)
    print(f"{ROUNDS} kills, {len(acknowledged)} acknowledged, {len(served)} stored, 0 lost")


def check_served(
    broker: ServerProcess,
    acknowledged: dict[Place, str],
    served_before: dict[Place, StoredMessage],
) -> dict[Place, StoredMessage]:
    """Return the messages that consumers receive now, by place.

    Assert that all acknowledged messages are among them, none twice, and that those of
    ``served_before`` are unchanged.
    """
    wait_until_settled(broker)
    served: dict[Place, StoredMessage] = {}
    with connect_when_ready(broker.address) as connection:
        for queue_id in range(QUEUES):
            messages = read_queue(connection, TOPIC, queue_id)
            assert [message.queue_offset for message in messages] == list(range(len(messages)))
            served |= {(queue_id, message.queue_offset): message for message in messages}
    lost = {place: name for place, name in acknowledged.items() if place not in served}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages lost: {lost}"
    for place, name in acknowledged.items():
        assert served[place].body[:16] == name.encode(), f"another message is at {place}"
    for place, message in served_before.items():
        assert served[place] == message
    ids = [message.body[:16] for message in served.values()]
    assert len(set(ids)) == len(ids), "a message is stored twice"
    return served


def wait_until_settled(broker: ServerProcess) -> None:
    """Wait until the topic exists and a send to another one succeeds: the broker has recovered and,
    with DLedger, leads.
    """
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        try:
            with connect_when_ready(broker.address) as connection:
                create_topic(connection, TOPIC, QUEUES)
                create_topic(connection, "settled", 1)
                response = connection.call(send_request("settled", 0, [b"settled"]))
                if response.code == 0:
                    return
                reason = str(response)
        except (NetworkError, RequestRejectedError) as fault:
            reason = str(fault)
        assert broker.running, f"the broker ended on its own: {broker.printed()[-3000:]}"
        printed = broker.printed()[-3000:]
        assert time.monotonic() < deadline, f"no send succeeds: {reason}\n{printed}"
        time.sleep(0.05)
