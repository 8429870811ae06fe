"""A sync of the log fails (EIO) under load with SYNC_FLUSH, and later the power fails: nothing that
rmqpy acknowledged is lost. The same with Java's broker shows what it acknowledged nevertheless.

RMQPY_CRASH_ROUNDS is the number of failures per mode (default 6). RMQPY_CRASH_SEED repeats the
random choices of a run. Java's group is told to sync, too, but never waits for its disks.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from harness.crash_target import (
    crash_broker,
    read_served,
    repeatable_random,
    site_of,
    wait_for_leader,
)
from harness.kill_load import (
    LOAD_SECONDS_MAX,
    Load,
    Place,
    acknowledged_count,
    read_acknowledged,
    start_sender,
)
from harness.power_cut import SMALL_FILES, PowerCut
from harness.preload import FAULTY, SHADOW, Faults, build_preloaded

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES = "load", 3
BEFORE_THE_FAULT, AFTER_THE_FAULT = (1, 500), 500


@pytest.mark.parametrize("dledger", [False, True], ids=["classic", "dledger"])
def test_nothing_is_acknowledged_after_a_failed_sync(
    target: str, dledger: bool, tmp_path: Path
) -> None:
    rng = repeatable_random()
    first_seed = rng.getrandbits(24)
    disk = PowerCut.of(target, build_preloaded(SHADOW, tmp_path), tmp_path / "disk")
    faults = Faults(tmp_path / "faults", build_preloaded(FAULTY, tmp_path))
    site = site_of(target, tmp_path, faults.environment(disk.environment()))
    settings = {"flushDiskType": "SYNC_FLUSH", **SMALL_FILES}
    log = "/data/" if dledger else "/commitlog/"
    acknowledged: dict[Place, str] = {}
    sent = lost_count = 0
    with crash_broker(site, disk.root, settings, dledger=dledger) as broker:
        broker.start()
        for turn in range(ROUNDS):
            wait_for_leader([broker], TOPIC, QUEUES)
            file = tmp_path / f"acknowledged-{turn}"
            sender = start_sender(broker.address, Load(TOPIC, QUEUES, first_seed + turn), file)
            deadline = time.monotonic() + LOAD_SECONDS_MAX
            before = rng.randint(*BEFORE_THE_FAULT)
            while acknowledged_count(file) < before:
                assert sender.poll() is None, sender.communicate()[1]
                assert time.monotonic() < deadline, "no load"
                time.sleep(0.002)
            faults.set(f"sync {errno.EIO} {log}")
            enough = acknowledged_count(file) + AFTER_THE_FAULT
            while sender.poll() is None and acknowledged_count(file) < enough:
                assert time.monotonic() < deadline, "messages are neither accepted nor refused"
                time.sleep(0.002)
            broker.kill()
            _, printed = sender.communicate(timeout=30)
            assert "refused: " in printed or (target == "java" and sender.returncode == 0), printed
            newly = read_acknowledged(file)
            sent += len(newly)
            acknowledged |= newly
            disk.cut(rng)
            faults.clear()

            broker.start()
            wait_for_leader([broker], TOPIC, QUEUES)
            served = read_served(broker, TOPIC, QUEUES)
            lost = served.missing(acknowledged)
            assert target == "java" or not (lost or served.problems)
            lost_count += len(lost)
            for place in lost:
                del acknowledged[place]
        print(
            f"{target}, {'DLedger' if dledger else 'classic'}: {ROUNDS} failed syncs, "
            f"{sent} acknowledged, {lost_count} lost"
        )
