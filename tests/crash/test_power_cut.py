"""Power cuts under load on one store of a real broker: each page that was not synced is kept or
lost at random. The broker always starts without an operator, with every message that was promised.

RMQPY_CRASH_ROUNDS is the number of cuts per mode (default 6). RMQPY_CRASH_SEED repeats the random
choices of a run. In each round, some messages are flushed before the cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.crash_target import (
    crash_broker,
    places_of,
    read_served,
    repeatable_random,
    site_of,
    wait_for_leader,
)
from harness.kill_load import (
    Load,
    Place,
    kill_under_load,
    read_acknowledged,
    read_times,
)
from harness.power_cut import SMALL_FILES, FlushedAndMore, PowerCut
from harness.preload import SHADOW, build_preloaded

from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES = "load", 3
ACKNOWLEDGEMENTS_AFTER_A_FLUSH = (1, 3000)


@pytest.fixture
def disk(target: str, tmp_path: Path) -> PowerCut:
    return PowerCut.of(target, build_preloaded(SHADOW, tmp_path), tmp_path / "disk")


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def broker(target: str, flush: str, disk: PowerCut, tmp_path: Path) -> Iterator[ServerProcess]:
    site = site_of(target, tmp_path, disk.environment())
    settings = {"flushDiskType": flush, **SMALL_FILES}
    with crash_broker(site, disk.root, settings) as server:
        yield server


def test_a_power_cut_loses_only_what_was_not_promised(
    broker: ServerProcess, target: str, flush: str, disk: PowerCut, tmp_path: Path
) -> None:
    """SYNC_FLUSH: nothing that was acknowledged. ASYNC_FLUSH: nothing that a flush had written. The
    rest loses the end of each queue at most; what is left stays as it was acknowledged, and nothing
    is stored twice.
    """
    rng = repeatable_random()
    first_seed = rng.getrandbits(24)
    acknowledged: dict[Place, str] = {}
    sent = lost_count = durable_lost = unreachable = damaged = lost_pages = 0
    oldest_s = 0.0

    def durable_places() -> dict[Place, str]:
        return places_of(disk.durable_messages(), TOPIC)

    broker.start()
    for turn in range(ROUNDS):
        wait_for_leader([broker], TOPIC, QUEUES)
        file = tmp_path / f"acknowledged-{turn}"
        more = rng.randint(*ACKNOWLEDGEMENTS_AFTER_A_FLUSH)
        enough = FlushedAndMore(
            [disk], lambda: places_of(disk.durable_messages(), TOPIC), file, more
        )
        load = Load(TOPIC, QUEUES, first_seed + turn)
        killed_at = kill_under_load([broker], load, file, enough)
        newly = read_acknowledged(file)
        sent += len(newly)
        acknowledged |= newly
        durable = durable_places()
        lost_pages += disk.cut(rng)

        broker.start()  # without an operator
        wait_for_leader([broker], TOPIC, QUEUES)
        served = read_served(broker, TOPIC, QUEUES)
        lost = served.missing(acknowledged)
        if target == "rmqpy":
            assert not served.problems
            assert not served.missing(durable), "messages lost that were on the disk"
            assert not lost & served.ids.keys(), "other messages at acknowledged places"
            assert flush != "SYNC_FLUSH" or not lost
        durable_lost += len(lost & durable.keys())
        damaged += len(served.problems)
        logged = places_of(read_store(disk.root).messages, TOPIC)
        unreachable += sum(logged.get(place) == acknowledged[place] for place in lost)
        lost_count += len(lost)
        times = read_times(file)
        oldest_s = max([oldest_s, *(killed_at - times[place] for place in lost & times.keys())])
        for place in lost:
            del acknowledged[place]
        if target == "rmqpy":
            broker.kill()
            broker.start()  # a second time, from what the first start left
            wait_for_leader([broker], TOPIC, QUEUES)
            again = read_served(broker, TOPIC, QUEUES)
            assert not (again.problems or again.missing(acknowledged))
    broker.stop()
    assert target == "java" or read_store(disk.root).problems == []
    print(
        f"{target} {flush}: {ROUNDS} cuts, {lost_pages} pages lost, {sent} acknowledged, "
        f"{lost_count} lost, the oldest {oldest_s:.2f} s before the cut, {durable_lost} of them "
        f"synced, {unreachable} in the log but not delivered; {damaged} damaged places in queues"
    )
