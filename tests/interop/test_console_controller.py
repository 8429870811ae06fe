"""The console's screen of a group whose master a controller of 5.3.3 elects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.console import browsing, collecting, page_of
from harness.interop import InteropServers, create_topic_when_ready, events_of

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.console.collecting.controller_reader import ControllerReader
from rmqpy.console.views.controllers import ControllerGroup
from rmqpy.model.clock import Clock
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import LOOPBACK, BrokerSpec, ServerProcess

pytestmark = pytest.mark.interop

SECONDS_MAX = 180
SENT = 20
Named = dict[str, ServerProcess]


@pytest.fixture
def servers_of_a_controller(servers: InteropServers, tmp_path: Path) -> Iterator[Named]:
    site = JavaSite(tmp_path / "java", JavaHome("5.3.3"))
    port, controller_port = servers.block(1).first, servers.block(1).first
    made: Named = {"controller": servers.take(site.controller("names", port, controller_port))}
    settings = {
        "enableControllerMode": "true",
        "controllerAddr": f"{LOOPBACK}:{controller_port}",
        "allAckInSyncStateSet": "true",
    }
    for name in ("first", "second"):
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=f"{LOOPBACK}:{port}",
            settings=settings,
        )
        broker = made[name] = servers.take(site.broker(name, spec))
        conf = next(Path(word) for word in broker.argv if word.endswith("broker.conf"))
        lines = conf.read_text().splitlines(keepends=True)
        conf.write_text("".join(each for each in lines if not each.startswith("brokerId=")))
    for server in made.values():
        server.ready_timeout_s = SECONDS_MAX
    yield made
    for server in made.values():
        server.kill()


async def group_when(
    poll: Callable[[], Awaitable[ControllerGroup]], is_so: Callable[[ControllerGroup], bool]
) -> ControllerGroup:
    """Return the group once it is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so(group := await poll()):
            await asyncio.sleep(0.5)  # The controller and its brokers act by timers.
    return group


def test_an_elected_master_is_lost_and_another_is_elected(
    servers_of_a_controller: Named, servers: InteropServers
) -> None:
    made = servers_of_a_controller
    for server in made.values():
        server.start()
    names, first, second = (made[name] for name in ("controller", "first", "second"))

    async def run() -> None:
        cluster = ClientSettings(name_servers=names.address)
        instance = await ClientInstance.open(cluster)
        try:
            clock: Clock = instance.clock
            collector = collecting.Collector(Admin(instance, (names.address,)), clock)
            await watch(collector)
        finally:
            await instance.close()

    async def watch(collector: Any) -> None:
        async def poll() -> ControllerGroup:
            found: list[ControllerGroup] = []
            while not found:  # before a broker has registered
                await collector.poll()
                found = await ControllerReader(collector).groups()  # a new one has no old answers
            return found[0]

        group = await group_when(
            poll, lambda each: [row.in_sync for row in each.replicas] == [True, True]
        )
        assert (group.master, group.master_epoch) == (first.address, 1)
        assert [each.role for each in group.controllers] == ["leads"] and not group.problems
        probe = servers.probe.at(names.address)
        await asyncio.to_thread(create_topic_when_ready, probe, "T", first)
        events = await asyncio.to_thread(
            probe.run, "send", topic="T", count=SENT, first=0, retryMs=60_000, timeout_s=120
        )
        assert len(events_of(events, "sent")) == SENT
        group = await group_when(poll, lambda each: {row.lag for row in each.replicas} == {0})
        ends = {row.end for row in group.replicas}
        assert ends == {group.confirm} and group.confirm
        assert [row.epochs for row in group.replicas] == [[(1, 0)], [(1, 0)]]

        first.kill()
        group = await group_when(
            poll, lambda each: each.master == second.address and each.confirm is not None
        )
        lost, led = group.replicas
        assert (lost.in_sync, lost.alive, led.role) == (False, False, "master")
        assert led.epochs == [(1, 0), (2, group.confirm)] and group.master_epoch == 2
        assert group.problems == [
            f"{first.address} is not in the SyncStateSet, and is not elected: it lacks"
            " acknowledged messages."
        ]
        async with browsing(collector) as client:
            page = await page_of(client, "/replication")
            assert f"{second.address} is the elected master of epoch 2" in page
            assert ">Java</abbr>" in page and "not in it" in page

        first.start()
        group = await group_when(poll, lambda each: all(row.in_sync for row in each.replicas))
        assert not group.problems
        names.kill()
        group = await group_when(poll, lambda each: each.controllers[0].role == "does not answer")
        assert group.problems[0].startswith("No controller answers")

    asyncio.run(run())
