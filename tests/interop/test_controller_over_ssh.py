"""Two hosts over ssh: to a controller of 5.3.3 and back, though a host is lost in the middle.

Each host is a network namespace with an sshd; the commands run on a third. The controller is
started with the configuration that ``switch`` has written, and the brokers of 5.3.3 run on the
stores of both hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    WAIT_SECONDS_MAX,
    ControllerGroup,
    controller_group,
    manifest,
    take_over,
    upgrade,
)
from harness.interop import InteropServers
from harness.ssh_hosts import SshHosts, missing, once_when, ssh_hosts

from rmqpy.cli import main
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.processes import LOOPBACK

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

ROLES = {"master": "SYNC_MASTER", "slave": "SLAVE"}
EPOCHS = "epochFileCheckpoint"


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    with controller_group(servers, golden_copy, LAGGING, tmp_path) as made:
        yield made


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHosts]:
    """Make the hosts, and drive them from a folder of its own."""
    with ssh_hosts(tmp_path, tuple(ROLES)) as made:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        driving = tmp_path / "driving"
        driving.mkdir()
        monkeypatch.chdir(driving)
        yield made


def test_a_group_on_two_hosts_goes_to_a_controller_and_back(
    servers: InteropServers,
    group: ControllerGroup,
    hosts: SshHosts,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    addresses = [f"ssh://{hosts.addresses[name]}{group.conf(name)}" for name in ROLES]
    upgrade("init", *addresses)
    upgrade("run", "--until", "aligned", "--yes")
    before = manifest(group.store("master"), Path("before.json"))

    # The host of the slave is gone when the master's has been switched.
    port = servers.block(1).first
    group.addresses = f"{LOOPBACK}:{port}"
    switch = ["upgrade", "switch", "--to", "controller", "--controllers", group.addresses]
    switch += ["--controller-conf", "."]
    lost = once_when((group.store("master") / EPOCHS).exists, lambda: hosts.lose("slave"))
    capsys.readouterr()
    assert main(switch) == 1
    assert lost() > 0
    told = capsys.readouterr().err
    assert "connecting again in 16 s" in told and "then run the command again" in told, told
    assert not (group.store("slave") / EPOCHS).exists()
    hosts.bring_back("slave")
    upgrade("status")
    assert "group golden: handing-over;" in capsys.readouterr().out
    assert main(switch) == 0
    upgrade("status")
    assert "group golden: handed-over;" in capsys.readouterr().out
    assert {(group.store(name) / EPOCHS).read_bytes()[-4:] for name in ROLES} == {b"0-0\n"}

    site = JavaSite(tmp_path / "java", JavaHome("5.3.3"))
    controller = site.mqcontroller("mqcontroller", Path("controller-n0.conf").absolute(), port)
    servers.take(controller).ready_timeout_s = WAIT_SECONDS_MAX
    controller.start()
    take_over(group, "master")
    upgrade("verify", *group.stores, "--before", before)

    # On the way back all connections are lost once, when the first host has moved its epochs aside.
    upgrade("leave", "--reader", "5")
    capsys.readouterr()
    first = group.store("master") / EPOCHS
    cut = once_when(lambda: not first.exists(), hosts.cut_connections)
    assert main(["upgrade", "apply"]) == 0
    assert cut() > 0
    assert "connecting again" in capsys.readouterr().err
    upgrade("verify", *group.stores, "--before", before)
    for name, role in ROLES.items():
        assert f"brokerRole={role}\n" in group.conf(name).read_text()
        group.start(name)
    assert group.send(3000) == SENT
    group.await_level()
    for name in ROLES:
        group.brokers[name].stop()
    controller.kill()
    assert group.logs("master") == group.logs("slave")
    upgrade("verify", *group.stores, "--before", before)
