"""Groups of 4.9 that a controller of 5.3.3 takes over: with the epochs, and without them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    ControllerGroup,
    check_equal,
    controller_group,
    epochs,
    hand_over,
    manifest,
    take_over,
    upgrade,
    verified,
)
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.interop


@pytest.fixture(params=[LAGGING])
def group(
    request: pytest.FixtureRequest,
    servers: InteropServers,
    golden_copy: Callable[[str], Path],
    tmp_path: Path,
) -> Iterator[ControllerGroup]:
    with controller_group(servers, golden_copy, request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("leader", ["master", "slave"])
def test_a_controller_takes_over_a_group_whose_slave_lagged(
    group: ControllerGroup, leader: str
) -> None:
    before = manifest(group.store("master"), group.root / "before.json")
    hand_over(group)
    take_over(group, leader, kill=True)
    check_equal(group, before)


@pytest.mark.parametrize("group", ["C-upgraded-v497", "D-dledger-v497"], indirect=True)
def test_a_dledger_group_goes_to_a_controller_and_back_by_the_printed_runbooks(
    group: ControllerGroup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command is run as it is printed; the steps between them are the operator's."""

    def follow(*words: str) -> str:
        """Run the commands of a runbook up to the one that needs brokers; return that one."""
        capsys.readouterr()
        upgrade(*words, "--runbook", "java")
        lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] != "#"]
        for line in lines:
            if "--until returned" in line:
                return line
            done = subprocess.run(
                ["sh", "-ec", line], env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
        return ""

    scripts = sysconfig.get_path("scripts")
    environment = python_environment({"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"})
    driving = tmp_path / "driving"
    driving.mkdir()
    monkeypatch.chdir(driving)
    before = manifest(group.store("n0"), driving / "before.json")
    upgrade("init", *(str(group.conf(member)) for member in group.brokers))
    assert follow("leave")
    follow("switch", "--to", "controller", "--controllers", group.addresses)
    take_over(group, "n1", kill=True)
    check_equal(group, before)
    last = follow("leave")
    for member in group.brokers:
        group.start(member)
    assert group.send(3000) == SENT
    group.await_level()
    assert main(shlex.split(last)[1:]) == 0, last
    for member in reversed(group.brokers):
        group.brokers[member].stop()
    assert len({b"".join(group.logs(member).values()) for member in group.brokers}) == 1
    upgrade("verify", *group.stores, "--before", before)


def test_a_controller_takes_over_a_group_whose_first_files_have_expired(
    group: ControllerGroup,
) -> None:
    """The smallest offsets are above 0, and differ: the replicas have expired different files."""
    for member, count in (("master", 2), ("slave", 1)):
        for path in sorted((group.store(member) / "commitlog").iterdir())[:count]:
            path.unlink()
    before = manifest(group.store("master"), group.root / "before.json")
    hand_over(group)
    begins = {member: min(map(int, group.logs(member))) for member in group.brokers}
    assert 0 < begins["slave"] < begins["master"]
    assert [each.start_offset for each in epochs(group, "master")] == [begins["slave"]]
    take_over(group, "slave", kill=True)
    code, printed = verified(group, before)
    assert code == 2, printed
    assert "CONTAINED: master before in master, slave, which have 40 messages more" in printed
    assert "; master in slave, which has " in printed, "only what has expired at the master differs"
    assert group.logs("master").items() < group.logs("slave").items(), "equal, but for one file"
    assert epochs(group, "master") == epochs(group, "slave")


def test_a_controller_takes_over_a_group_whose_brokers_were_killed(
    group: ControllerGroup, servers: InteropServers
) -> None:
    """Neither the 4.9 group nor the leader of the controller group was stopped."""
    for member in group.brokers:
        (group.store(member) / "abort").touch()
    words = "--to", "controller", "--controllers", group.addresses
    assert main(["upgrade", "switch", *words, *group.replicas]) == 2
    for member, spec in group.specs.items():
        repairing = servers.rmqpy.broker(f"repairing-{member}", spec)
        servers.take(repairing.start()).stop()
    before = manifest(group.store("master"), group.root / "before.json")
    hand_over(group)
    take_over(group, "master", kill=True)
    check_equal(group, before)


def test_a_new_machine_is_served_from_the_first_offset(group: ControllerGroup) -> None:
    """It is started after the master: with epoch 0 it gets the whole log, and no error."""
    before = manifest(group.store("master"), group.root / "before.json")
    hand_over(group)
    shutil.rmtree(group.store("slave"))
    for count, member in enumerate(("master", "slave"), 1):
        group.start(member)
        group.await_sync(count)
    assert group.send(1000) == SENT
    group.await_level()
    group.stop_all()
    assert group.logs("slave") == group.logs("master")
    assert [each.number for each in epochs(group, "slave")] == [0, 1]
    assert epochs(group, "slave") == epochs(group, "master")
    upgrade("verify", f"master={group.store('master')}", "--before", before)


def test_without_epochs_the_first_start_of_a_lagging_slave_loses_messages(
    group: ControllerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way of the manual of 5.x: nothing says so, and acknowledged messages are gone."""
    before = manifest(group.store("master"), group.root / "before.json")
    group.configure_by_hand()
    take_over(group, "slave")
    assert group.logs("master") != group.logs("slave")
    assert main(["upgrade", "verify", *group.stores, "--before", before]) == 2
    assert "DIFFERENT" in capsys.readouterr().out
