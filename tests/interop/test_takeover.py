"""A rmqpy slave takes over from a running Java master while producers send: nothing that was
acknowledged is lost.

``RMQPY_CRASH_ROUNDS=100`` repeats that a hundred times for each role of the master, with a new
group each time; ``RMQPY_CRASH_SECONDS`` begins no round after that time. With the first,
``tests/admin/test_promote.py`` does the same between brokers of rmqpy.

The producers read their routes five times a second here, and not twice a minute, so the command
waits for two seconds without a new message, and not for 35;
``test_a_slave_takes_over_from_a_running_java_master`` (``test_replication.py``) does wait for them.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from harness.loaded_group import LoadedGroup
from harness.takeover import WAIT_S, ProducerLoad, take_over_from_java

from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.java.site import JvmSettings
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "1"))
SECONDS = float(os.environ.get("RMQPY_CRASH_SECONDS", "inf"))
BEFORE, AFTER = 300, 100
"""The messages that each master acknowledges, at least."""
QUIET_S, ROUTES_MS = 2, 200


def jvm_options(classes: Path) -> tuple[str, ...]:
    """Let the first JVM write its classes to a file, and the others start with it."""
    option = "SharedArchiveFile" if classes.exists() else "ArchiveClassesAtExit"
    return (*JvmSettings().options, f"-XX:{option}={classes}")


def take_over(root: Path, role: str, classes: Path) -> tuple[int, float]:
    """Let a slave take over, check that it has everything, and return how many messages were
    acknowledged, and the longest time in s between two.
    """
    settings = (
        {"brokerRole": role},
        {"brokerRole": "SLAVE", "brokerId": "1", "haFetchFromBeginning": "true"},
    )
    java = JavaSite(root / "java", JavaHome(), JvmSettings(options=jvm_options(classes)))
    group = LoadedGroup(root, settings, wait_s=WAIT_S, others={0: java})
    load = None
    try:
        group.start()
        master, slave = group.brokers
        load = ProducerLoad(group.servers[0].address, ROUTES_MS)
        load.start()
        load.wait_for_more(BEFORE)
        words = ["--quiet", str(QUIET_S), "--seconds", str(WAIT_S)]
        take_over_from_java(group.servers[0].address, master, slave, *words)
        assert not master.running
        load.wait_for_more(AFTER)
        load.stop()
        assert slave.stop() == 0
        assert slave.store is not None
        reading = read_store(slave.store)
        assert reading.problems == []
        lost = set(load.acknowledged) - {message.body for message in reading.messages}
        assert not lost, sorted(lost)
        return len(load.acknowledged), load.longest_gap_s
    finally:
        if load is not None:
            load.stop()
        group.close()


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_nothing_acknowledged_is_lost_when_a_slave_takes_over_from_java(
    tmp_path: Path, role: str
) -> None:
    begin_s, messages, gaps = time.monotonic(), 0, list[float]()
    while len(gaps) < ROUNDS and time.monotonic() - begin_s < SECONDS:
        root = tmp_path / str(len(gaps))
        acknowledged, gap_s = take_over(root, role, tmp_path / "classes.jsa")
        messages, gaps = messages + acknowledged, [*gaps, gap_s]
        shutil.rmtree(root)
        print(
            f"{role}: {len(gaps)} promotions, {messages} messages acknowledged, 0 lost; the longest"
            f" gap between two was {max(gaps):.1f} s, mostly {sorted(gaps)[len(gaps) // 2]:.1f} s"
        )
