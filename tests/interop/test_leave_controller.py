"""A group of a 5.3.3 controller that loses its master to a kill, and becomes master and slave."""

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
    hand_over,
    manifest,
    take_over,
    upgrade,
)
from harness.interop import InteropServers

from rmqpy.testing.java import JavaHome, JavaSite

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
