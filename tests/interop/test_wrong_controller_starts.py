"""Wrong starts of a controller group with brokers of 5.3.3: what they do, what the checks say,
and that the way of docs/explanation/from-4.9-to-5.x.md repairs it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.controller import (
    LAGGING,
    WAIT_SECONDS_MAX,
    ControllerGroup,
    controller_group,
    hand_over,
)
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.model.codes import ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

pytestmark = pytest.mark.interop

IDENTITY = "brokerIdentity"


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    """A group that was handed over, and has not been started yet."""
    with controller_group(servers, golden_copy, LAGGING, tmp_path) as made:
        hand_over(made)
        yield made


def failed_checks(group: ControllerGroup, capsys: pytest.CaptureFixture[str]) -> set[str]:
    capsys.readouterr()
    main(["upgrade", "check", *group.replicas, "--format", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {each["check"] for each in found}


def start_both(group: ControllerGroup) -> None:
    for count, member in enumerate(("master", "slave"), 1):
        group.start(member)
        group.await_sync(count)


def kill_both(group: ControllerGroup) -> None:
    for member in group.brokers:
        group.brokers[member].kill()
        (group.store(member) / "abort").unlink(missing_ok=True)


def members(group: ControllerGroup) -> list[dict[str, Any]]:
    """Return all replicas that the controller knows."""
    info = group.replicas_info()
    return [*info.get("inSyncReplicas", ()), *info.get("notInSyncReplicas", ())]


def put(group: ControllerGroup, member: str) -> RemotingCommand:
    with BlockingConnection(group.brokers[member].address) as connection:
        return connection.call(send_request("Normal", 0, [b"put"]))


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def is_in_log(group: ControllerGroup, member: str, text: str) -> Callable[[], bool]:
    """Return whether a broker has logged ``text``; its log is deleted before the start."""
    log = group.brokers[member].directory / "logs/broker.log"
    log.unlink(missing_ok=True)
    return lambda: log.exists() and text in log.read_text(errors="replace")


def test_the_store_of_another_group_gets_no_role(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    (group.store("slave") / IDENTITY).write_text("DefaultCluster#other#1")
    assert failed_checks(group, capsys) == {"identities"}
    group.start("master")
    group.await_sync(1)
    refused = is_in_log(group, "slave", "Register to broker failed")
    group.start("slave")
    wait_until(refused)
    assert put(group, "slave").code != ResponseCode.SUCCESS
    assert put(group, "master").code == ResponseCode.SUCCESS
    assert len(members(group)) == 1
    kill_both(group)
    (group.store("slave") / IDENTITY).unlink()
    start_both(group)


def test_a_copied_store_takes_the_place_of_its_original(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two masters: until the copy has an identity of its own."""
    start_both(group)
    group.stop_all()
    shutil.rmtree(group.store("slave"))
    shutil.copytree(group.store("master"), group.store("slave"))
    assert failed_checks(group, capsys) == {"identities"}
    kept = group.root / "kept"
    shutil.copytree(group.store("slave"), kept)
    group.start("master")
    group.await_sync(1)
    group.start("slave")
    wait_until(lambda: group.replicas_info()["masterAddress"] == group.brokers["slave"].address)
    answers = [put(group, member) for member in ("master", "slave")]
    assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 2
    assert len({each.ext_fields["queueOffset"] for each in answers}) == 1, "given twice"
    kill_both(group)
    for member in group.brokers:
        shutil.rmtree(group.store(member))
        shutil.copytree(kept, group.store(member))
    (group.store("slave") / IDENTITY).unlink()
    assert not failed_checks(group, capsys)
    start_both(group)
