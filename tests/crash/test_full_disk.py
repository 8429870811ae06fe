"""A disk that fills up within seconds, under load: nothing that was acknowledged is lost. The same
with Java's broker, which looks at the space of its disk every 10 s.

RMQPY_CRASH_ROUNDS is the number of times that the disk is full (default 6). RMQPY_CRASH_SEED
repeats the messages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.crash_target import (
    crash_broker,
    read_served,
    repeatable_random,
    site_of,
    wait_for_leader,
)
from harness.kill_load import LOAD_SECONDS_MAX, Load, Place, read_acknowledged, start_sender

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
TOPIC, QUEUES = "load", 3
BALLAST_BYTES = 12 << 20
SETTINGS = {"maxHashSlotNum": "1000", "maxIndexNum": "100000", "cleanFileForciblyEnable": "false"}


@pytest.mark.parametrize("dledger", [False, True], ids=["classic", "dledger"])
def test_a_disk_that_fills_up_loses_nothing(
    target: str, dledger: bool, small_disk: Path, tmp_path: Path
) -> None:
    """Each round begins with an empty store: the broker is killed when it no longer accepts
    messages, and started again when there is space.
    """
    first_seed = repeatable_random().getrandbits(24)
    sent = lost_count = ended = 0
    ballast, store = small_disk / "ballast", small_disk / "store"
    with crash_broker(site_of(target, tmp_path), store, SETTINGS, dledger=dledger) as broker:
        for turn in range(ROUNDS):
            ballast.write_bytes(bytes(BALLAST_BYTES))
            broker.start()
            wait_for_leader([broker], TOPIC, QUEUES)
            file = tmp_path / f"acknowledged-{turn}"
            sender = start_sender(broker.address, Load(TOPIC, QUEUES, first_seed + turn), file)
            try:
                _, printed = sender.communicate(timeout=LOAD_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                sender.kill()
                raise
            if target == "rmqpy":
                assert broker.running, broker.printed()[-3000:]
                assert "refused: 14" in printed, printed
            ended += not broker.running
            broker.kill()
            ballast.unlink()

            acknowledged: dict[Place, str] = read_acknowledged(file)
            broker.start()
            wait_for_leader([broker], TOPIC, QUEUES)
            served = read_served(broker, TOPIC, QUEUES)
            lost = served.missing(acknowledged)
            assert target == "java" or not (lost or served.problems)
            sent += len(acknowledged)
            lost_count += len(lost)
            broker.kill()
            shutil.rmtree(store)
    print(
        f"{target}, {'DLedger' if dledger else 'classic'}: {ROUNDS} full disks, "
        f"{sent} acknowledged, {lost_count} lost; the process ended {ended} times"
    )
