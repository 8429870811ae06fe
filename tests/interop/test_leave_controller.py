"""A group of a 5.3.3 controller that loses its master to a kill, and becomes master and slave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.controller import (
    LAGGING,
    SENT,
    WAIT_SECONDS_MAX,
    ControllerGroup,
    controller_group,
    hand_over,
    manifest,
    take_over,
    upgrade,
)
from harness.interop import InteropServers

from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.processes import python_environment

pytestmark = pytest.mark.interop

ROLES = {"master": "SYNC_MASTER", "slave": "SLAVE"}


@pytest.fixture
def group(
    servers: InteropServers, golden_copy: Callable[[str], Path], tmp_path: Path
) -> Iterator[ControllerGroup]:
    with controller_group(servers, golden_copy, LAGGING, tmp_path) as made:
        yield made


@pytest.mark.parametrize(("version", "reader"), [("4.9.7", "4"), ("5.3.3", "5")])
def test_brokers_without_a_controller_have_every_message(
    group: ControllerGroup, servers: InteropServers, tmp_path: Path, version: str, reader: str
) -> None:
    hand_over(group)
    take_over(group, "master", kill=True)  # 20 messages before the kill, and 20 after it.
    before = manifest(group.store("slave"), tmp_path / "before.json")
    roles = [word for name, role in ROLES.items() for word in ("--role", f"{name}={role}")]
    upgrade("leave", *group.replicas, *roles, "--reader", reader, "--apply")
    upgrade("verify", *group.stores, "--before", before)
    if version != "5.3.3":
        site = JavaSite(tmp_path / version, JavaHome(version))
        for member, spec in group.specs.items():
            left = group.conf(member).read_text()
            group.brokers[member] = servers.take(site.broker(member, spec))
            group.brokers[member].ready_timeout_s = WAIT_SECONDS_MAX
            group.conf(member).write_text(left)
    for member in ROLES:
        group.start(member)
    assert group.send(3000) == SENT
    group.await_level()  # The slave learns the master's address from a later registration.
    found = group.offsets()
    for member in ROLES:
        group.brokers[member].stop()
    assert group.logs("master") == group.logs("slave")
    upgrade("verify", *group.stores, "--before", before)
    assert len(found) == len({*found}) > 3 * SENT, "every round, and what was there before"


@contextmanager
def served(group: ControllerGroup, folder: Path) -> Iterator[list[str]]:
    """Serve the directory of each member, as its host would; yield the arguments of ``init``."""
    (folder / "token").write_text("a-token-of-enough-characters\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=hosts"]
        + ["-addext", "subjectAltName=IP:127.0.0.1"],
        capture_output=True,
        cwd=folder,
        check=True,
    )
    words = ["--token-file", "token", "--authority", "cert.pem"]
    processes = []
    try:
        for member in group.brokers:
            serve = [sys.executable, "-m", "rmqpy.cli", "upgrade", "serve", "--drive"]
            serve += [str(group.store(member)), "-c", str(group.conf(member))]
            serve += ["--token-file", "token", "--certificate", "cert.pem", "--key", "key.pem"]
            process = subprocess.Popen(
                serve, stdout=subprocess.PIPE, text=True, cwd=folder, env=python_environment()
            )
            processes.append(process)
            assert process.stdout is not None
            ready, _, address = process.stdout.readline().strip().partition(": ")
            assert ready == "ready"
            words.append(address)
        yield words
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_group_on_two_hosts_is_handed_over_and_leaves(
    group: ControllerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hosts are aligned and handed over through ``serve``; brokers of 5.3.3 run in between."""
    folder = tmp_path / "driving"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with served(group, folder) as hosts:
        upgrade("init", *hosts)
        upgrade("run", "--until", "aligned", "--yes")
        upgrade("switch", "--to", "controller", "--controllers", group.addresses)
    assert not any("brokerRole" in group.conf(member).read_text() for member in ROLES)
    take_over(group, "master")
    before = manifest(group.store("slave"), folder / "before.json")
    roles = [word for name, role in ROLES.items() for word in ("--role", f"{name}={role}")]
    upgrade("leave", *group.replicas, *roles, "--reader", "5", "--apply")
    upgrade("verify", *group.stores, "--before", before)
    for member in ROLES:
        assert f"brokerRole={ROLES[member]}" in group.conf(member).read_text()
        group.start(member)
    assert group.send(3000) == SENT
    group.await_level()
    found = group.offsets()
    for member in ROLES:
        group.brokers[member].stop()
    assert group.logs("master") == group.logs("slave")
    upgrade("verify", *group.stores, "--before", before)
    assert len(found) == len({*found}) > 3 * SENT, "every round, and what was there before"
