"""Repeated kill -9 under load on one store: every acknowledged message is available at the place
that was acknowledged.

RMQPY_CRASH_ROUNDS is the number of kills per mode (default 6). RMQPY_CRASH_SEED repeats the random
choices of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.crash_target import at_least, repeatable_random, site_of, wait_for_leader
from harness.interop import clean_exit_codes
from harness.kill_load import Load, Place, kill_under_load, read_acknowledged

from rmqpy.model.message import StoredMessage
from rmqpy.testing.blocking_connection import (
    connect_when_ready,
    read_queue,
)
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    ServerProcess,
    Site,
    dledger_settings,
)
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES = "load", 3
ACKNOWLEDGEMENTS_BEFORE_A_KILL = (1, 3000)


def settings_of(mode: str) -> tuple[PortBlock | None, dict[str, str]]:
    """Return the port block to hold while the broker runs, if any, and the settings of ``mode``."""
    if mode == "dledger":
        block = free_port_block(1)
        return block, dledger_settings("broker-a", block.first)
    return None, {"flushDiskType": "SYNC_FLUSH"} if mode == "classic-sync-flush" else {}


@pytest.fixture
def site(target: str, tmp_path: Path) -> Site:
    return site_of(target, tmp_path)


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


def test_no_acknowledged_message_is_lost(
    broker: ServerProcess, target: str, tmp_path: Path
) -> None:
    rng = repeatable_random()
    first_seed = rng.getrandbits(24)
    acknowledged: dict[Place, str] = {}
    served: dict[Place, StoredMessage] = {}
    for turn in range(ROUNDS):
        broker.start()
        served = check_served(broker, acknowledged, served)
        file = tmp_path / f"acknowledged-{turn}"
        load = Load(TOPIC, QUEUES, first_seed + turn)
        enough = at_least(rng.randint(*ACKNOWLEDGEMENTS_BEFORE_A_KILL))
        kill_under_load([broker], load, file, enough)
        acknowledged |= read_acknowledged(file)

    broker.start()
    served = check_served(broker, acknowledged, served)
    assert broker.stop() in clean_exit_codes(target)
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
    assert broker.stop() in clean_exit_codes(target)
    print(
        f"{target}: {ROUNDS} kills, {len(acknowledged)} acknowledged, {len(served)} stored, 0 lost"
    )


def check_served(
    broker: ServerProcess,
    acknowledged: dict[Place, str],
    served_before: dict[Place, StoredMessage],
) -> dict[Place, StoredMessage]:
    """Return the messages that consumers receive now, by place.

    Assert that all acknowledged messages are among them, none twice, and that those of
    ``served_before`` are unchanged.
    """
    wait_for_leader([broker], TOPIC, QUEUES)
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
