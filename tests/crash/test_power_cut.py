"""Power cuts under load on one store of a real broker: each page that was not synced is kept or
lost at random. The broker always starts without an operator, with every message that was promised.

RMQPY_CRASH_ROUNDS is the number of cuts per mode (default 6). RMQPY_CRASH_SEED repeats the random
choices of a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.kill_load import Load, Place, kill_under_load, read_acknowledged
from harness.power_cut import SOURCE, PowerCut, build_preloaded

from rmqpy.testing.blocking_connection import connect_when_ready, create_topic, read_queue
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES = "load", 3
ACKNOWLEDGEMENTS_BEFORE_A_CUT = (1, 3000)
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}
"""Small enough that files roll within a round, and that a copy at each sync is cheap."""


@pytest.fixture
def disk(tmp_path: Path) -> PowerCut:
    return PowerCut(build_preloaded(SOURCE, tmp_path), tmp_path / "store", tmp_path / "shadow")


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def broker(flush: str, disk: PowerCut, tmp_path: Path) -> Iterator[ServerProcess]:
    names, ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
    spec = BrokerSpec(
        port=ports.broker_port,
        namesrv=f"127.0.0.1:{names.first}",
        settings={"flushDiskType": flush, **SMALL_FILES},
        store=disk.root,
    )
    server = RmqpySite(tmp_path, environment=disk.environment()).broker("broker", spec)
    yield server
    server.kill()


def test_a_power_cut_loses_only_what_was_not_promised(
    broker: ServerProcess, flush: str, disk: PowerCut, tmp_path: Path
) -> None:
    """SYNC_FLUSH: nothing that was acknowledged. ASYNC_FLUSH: the end of each queue at most; what
    is left stays as it was acknowledged, and nothing is stored twice.
    """
    seed = int(os.environ.get("RMQPY_CRASH_SEED", "0")) or int.from_bytes(os.urandom(3))
    print(f"RMQPY_CRASH_SEED={seed}")
    rng = random.Random(seed)
    acknowledged: dict[Place, str] = {}
    sent = lost_count = lost_pages = 0
    broker.start()
    with connect_when_ready(broker.address) as connection:
        create_topic(connection, TOPIC, QUEUES)
    for turn in range(ROUNDS):
        file = tmp_path / f"acknowledged-{turn}"
        load = Load(TOPIC, QUEUES, seed + turn)
        kill_under_load(broker, load, file, rng.randint(*ACKNOWLEDGEMENTS_BEFORE_A_CUT))
        newly = read_acknowledged(file)
        sent += len(newly)
        acknowledged |= newly
        lost_pages += disk.cut(rng)

        broker.start()  # without an operator
        lost = lost_places(broker, acknowledged)
        assert flush != "SYNC_FLUSH" or not lost, f"{len(lost)} messages lost"
        lost_count += len(lost)
        for place in lost:
            del acknowledged[place]
        broker.kill()
        broker.start()  # a second time, from what the first start left
        assert not lost_places(broker, acknowledged)
    assert broker.stop() == 0
    assert read_store(disk.root).problems == []
    print(
        f"{flush}: {ROUNDS} cuts, {lost_pages} pages lost, {sent} acknowledged, {lost_count} lost"
    )


def lost_places(broker: ServerProcess, acknowledged: dict[Place, str]) -> set[Place]:
    """Return the acknowledged places that consumers no longer receive, all at the ends of their
    queues. Assert that all others have their messages, and none is stored twice.
    """
    ends: dict[int, int] = {}
    served: dict[Place, bytes] = {}
    with connect_when_ready(broker.address) as connection:
        for queue_id in range(QUEUES):
            messages = read_queue(connection, TOPIC, queue_id)
            assert [message.queue_offset for message in messages] == list(range(len(messages)))
            ends[queue_id] = len(messages)
            served |= {(queue_id, n): message.body[:16] for n, message in enumerate(messages)}
    assert len(set(served.values())) == len(served), "a message is stored twice"
    for place, name in acknowledged.items():
        assert place not in served or served[place] == name.encode(), f"another message at {place}"
    return {place for place in acknowledged if place[1] >= ends[place[0]]}
