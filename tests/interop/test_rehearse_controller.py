"""``rmqpy rehearse`` beside a live controller group of 5.3.3: a learner that nobody counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    WAIT_SECONDS_MAX,
    ControllerGroup,
    controller_group,
    hand_over,
)
from harness.interop import InteropServers

from rmqpy.codec.epochs import decode_epochs
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.interop


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    with controller_group(servers, golden_copy, LAGGING, tmp_path) as made:
        yield made


def rehearse(group: ControllerGroup, folder: Path) -> tuple[int, str]:
    words = ["rehearse", "-n", group.controller.address, "-b", group.name, "--dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "rmqpy.cli", *words],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def members_of(group: ControllerGroup) -> tuple[int, set[str]]:
    """Return the id of the master, and the addresses in the SyncStateSet and beside it."""
    info = group.replicas_info()
    known = [*info["inSyncReplicas"], *info["notInSyncReplicas"]]
    return info["masterBrokerId"], {each["brokerAddress"] for each in known}


def test_a_live_controller_group_is_copied_by_a_learner_and_certified(
    group: ControllerGroup, tmp_path: Path
) -> None:
    hand_over(group)
    for count, member in enumerate(("master", "slave"), 1):
        group.start(member)
        group.await_sync(count)
    assert group.send(1000) == SENT
    before = members_of(group)
    folder = tmp_path / "rehearsal"
    code, printed = rehearse(group, folder)
    assert code == 0, printed
    assert "READY: golden left its controller on the copy, and lost nothing" in printed
    assert members_of(group) == before and len(before[1]) == 2
    first = json.loads((folder / "report.json").read_text())

    group.brokers["master"].kill()  # The slave is elected: another epoch, and another address.
    assert group.send(2000) == SENT
    assert group.master() == "slave"
    code, printed = rehearse(group, folder)
    assert code == 0, printed
    assert members_of(group)[1] == before[1]
    second = json.loads((folder / "report.json").read_text())
    assert second["begin"] == first["begin"] and second["end"] > first["end"]
    group.brokers["slave"].stop()
    end = second["end"]
    log = b"".join(data for _, data in sorted(group.logs("slave").items()))
    files = sorted((folder / "shadow/store/commitlog").iterdir())
    copied = b"".join(file.read_bytes() for file in files)[:end]
    assert copied == log[:end]
    epochs = decode_epochs((folder / "shadow/epochFileCheckpoint").read_bytes())
    assert [each.number for each in epochs] == [0, 1, 2]
