"""The overview: roles, versions, rates, and alarms in words."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harness.console import CountedBrokers, SetClock, browsing, collecting

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.console.facts import BrokerFacts, Moment
from rmqpy.console.history import RateHistory
from rmqpy.console.views.alarms import alarms_of
from rmqpy.console.views.overview import overview_of
from rmqpy.testing.in_process import name_server_and_broker

Collector = collecting.Collector


def broker(name: str = "a", broker_id: int = 0, **info: str) -> BrokerFacts:
    values = {"brokerVersionDesc": "V4_9_7", "commitLogMaxOffset": "1000", **info}
    address = f"10.0.0.{broker_id + 1}:10911"
    return BrokerFacts(cluster="c", name=name, broker_id=broker_id, address=address, info=values)


def texts(*brokers: BrokerFacts, fault: str = "") -> list[str]:
    found = alarms_of(Moment(time_ms=0, brokers=brokers, fault=fault))
    return [f"{each.severity.value}: {each.text}" for each in found]


def test_a_healthy_cluster_has_no_alarms() -> None:
    assert texts(broker(), broker(broker_id=1)) == []


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([], "warning: No broker is registered."),
        ([broker(broker_id=1)], "critical: a has no master: nothing can be sent to it."),
        (
            [broker(commitLogDiskRatio="0.93")],
            "critical: The disk of the commit log is 93% full; the broker refuses messages.",
        ),
        (
            [broker(commitLogDiskRatio="0.80")],
            "warning: The disk of the commit log is 80% full.",
        ),
        (
            [broker(commitLogMaxOffset=str(200 << 20)), broker(broker_id=1)],
            "warning: This replica is 200.0 MiB behind.",
        ),
        (
            [broker(), broker(broker_id=1, brokerVersionDesc="V5_3_3")],
            "warning: The brokers have different versions: V4_9_7, V5_3_3.",
        ),
        (
            [broker(dispatchBehindBytes=str(1 << 30))],
            "warning: 1.0 GiB of the log are not in the consume queues yet, so consumers do not"
            " see these messages.",
        ),
        (
            [broker(sendThreadPoolQueueHeadWaitTimeMills="5000")],
            "warning: A message has waited 5 s to be stored.",
        ),
    ],
)
def test_alarms_are_sentences(brokers: list[BrokerFacts], expected: str) -> None:
    assert texts(*brokers) == [expected]


def test_values_that_are_no_numbers_raise_no_alarm() -> None:
    odd = broker(commitLogDiskRatio="much", dispatchBehindBytes="²", commitLogMaxOffset="-")
    assert texts(odd, broker(broker_id=1)) == []


def test_a_poll_costs_brokers_the_same_for_any_number_of_viewers() -> None:
    async def run() -> None:
        addresses = {("a", 0): "10.0.0.1:10911", ("a", 1): "10.0.0.2:10911"}
        brokers = CountedBrokers(
            addresses, {each: {"msgPutTotalTodayNow": "7"} for each in addresses.values()}
        )
        collector = Collector(brokers, SetClock())
        await collector.poll()
        asked = brokers.requests.total()
        async with browsing(collector) as client:
            for _ in range(10):
                assert (await client.get("/")).status == 200
        assert brokers.requests.total() == asked
        await collector.poll()
        assert brokers.requests == {
            "cluster_info": 2,
            "runtime_info": 4,
            "broker_config": 2,
            "RMQPY_DLEDGER_STATUS": 2,  # both have refused it
        }

    asyncio.run(run())


def test_killed_servers_show_up_and_recover() -> None:
    async def run() -> None:
        brokers = CountedBrokers({("a", 0): "x:1"}, {"x:1": {"msgPutTotalTodayNow": "0"}})
        clock = SetClock()
        collector = Collector(brokers, clock)
        async with browsing(collector) as client:
            await collector.poll()
            info = brokers.infos.pop("x:1")
            await collector.poll()
            assert "The broker does not answer" in await (await client.get("/")).text()
            brokers.is_namesrv_up = False
            await collector.poll()
            page = await (await client.get("/")).text()
            assert "No name server answers" in page and "the last one known" in page
            brokers.is_namesrv_up, brokers.infos["x:1"] = True, info
            clock.time_ms += 5000
            info["msgPutTotalTodayNow"] = "500"
            await collector.poll()
            page = await (await client.get("/?live")).text()
            assert "no alarms" in page and "<html" not in page

    asyncio.run(run())


def test_a_broker_that_left_the_name_server_is_shown_for_an_hour() -> None:
    """A name server drops a broker at once if its connection ends."""

    async def run() -> None:
        brokers = CountedBrokers({("a", 0): "x:1", ("a", 1): "x:2"}, {"x:1": {}, "x:2": {}})
        clock = SetClock()
        collector = Collector(brokers, clock)
        await collector.poll()
        del brokers.brokers["a", 0]
        info = brokers.infos.pop("x:1")
        await collector.poll()
        clock.time_ms += 65_000
        found = [each.text for each in alarms_of(await collector.poll())]
        assert found == [
            "The broker left the name server 1 min 5 s ago, and does not answer: x:1: connection"
            " refused.",
            "a has no master: nothing can be sent to it.",
        ]
        brokers.infos["x:1"] = info
        assert alarms_of(await collector.poll())[0].text == (
            "The broker answers, but has not been registered for 1 min 5 s: clients do not find it."
        )
        async with browsing(collector) as client:
            page = await (await client.get("/")).text()
            assert "not registered" in page and "x:1" in page
        brokers.brokers["a", 0] = "x:1"
        assert alarms_of(await collector.poll()) == []
        del brokers.brokers["a", 1]
        await collector.poll()
        clock.time_ms += 3_600_000
        assert [each.address for each in (await collector.poll()).brokers] == ["x:1"]

    asyncio.run(run())


def test_the_replica_that_was_made_master_is_not_the_one_that_left() -> None:
    async def run() -> None:
        brokers = CountedBrokers({("a", 0): "x:1", ("a", 2): "x:2"}, {"x:1": {}, "x:2": {}})
        collector = Collector(brokers, SetClock())
        await collector.poll()
        brokers.brokers = {("a", 0): "x:2"}
        del brokers.infos["x:1"]
        moment = await collector.poll()
        master = moment.master_of("a")
        assert master is not None and master.address == "x:2"
        assert [each.address for each in moment.masters()] == ["x:2"]
        (alarm,) = alarms_of(moment)
        assert alarm.severity.value == "warning" and "left the name server" in alarm.text

    asyncio.run(run())


def test_rates_are_those_of_masters_and_charts_have_their_columns() -> None:
    async def run() -> None:
        info = {"msgPutTotalTodayNow": "0", "msgGetTotalTodayNow": "0"}
        brokers = CountedBrokers({("a", 0): "x:1"}, {"x:1": info})
        clock = SetClock()
        collector = Collector(brokers, clock)
        await collector.poll()
        clock.time_ms += 5000
        info |= {"msgPutTotalTodayNow": "500", "msgGetTotalTodayNow": "50"}
        await collector.poll()
        (cluster,) = overview_of(collector.moment, collector.history).clusters
        assert (cluster.rate_in, cluster.rate_out) == (100.0, 10.0)
        async with browsing(collector) as client:
            answer = await client.get("/rates", params={"cluster": "DefaultCluster"})
            columns = json.loads(await answer.text())
        assert columns == [[clock.time_ms / 1000], [100.0], [10.0]]

    asyncio.run(run())


def test_names_of_a_hostile_name_server_are_text() -> None:
    async def run() -> None:
        hostile = "<script>alert(1)</script>\"'\x00\u202e"
        brokers = CountedBrokers({(hostile, 0): hostile}, {hostile: {"brokerVersionDesc": hostile}})
        brokers.cluster = hostile
        collector = Collector(brokers, SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            page = await (await client.get("/")).text()
        assert (
            "<script>alert" not in page
            and "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;" in page
        )

    asyncio.run(run())


def test_roles_and_programs() -> None:
    java = broker()
    own = BrokerFacts(
        cluster="c",
        name="b",
        broker_id=0,
        address="10.0.0.9:1",
        info={"brokerVersionDesc": "V4_9_7"},
        settings={"securityMode": "compatible", "brokerRole": "SYNC_MASTER"},
    )
    member = BrokerFacts(
        cluster="c", name="d", broker_id=1, address="10.0.0.8:1", status={"role": "FOLLOWER"}
    )
    (view,) = overview_of(Moment(time_ms=0, brokers=[java, own, member]), RateHistory()).clusters
    assert [(row.role, row.program) for row in view.brokers] == [
        ("master", "4.9.7"),
        ("master, SYNC_MASTER", "rmqpy, speaks 4.9.7"),
        ("follower", "rmqpy"),
    ]


def test_the_events_of_a_poll_reach_a_page() -> None:
    async def run() -> None:
        collector = Collector(CountedBrokers({}), SetClock())
        async with browsing(collector) as client:
            answer = await client.get("/events")
            assert answer.content_type == "text/event-stream"
            await collector.poll()
            assert await answer.content.readline() == b"event: tick\n"
            answer.close()

    asyncio.run(run())


@pytest.mark.slow
def test_a_running_broker_is_shown(tmp_path: Path) -> None:
    async def run() -> None:
        async with name_server_and_broker(tmp_path) as servers:
            instance = await ClientInstance.open(ClientSettings(name_servers=servers.name_server))
            admin = Admin(instance, (servers.name_server,))
            collector = Collector(admin, instance.clock)
            try:
                async with collector.running(), browsing(collector) as client:
                    page = await (await client.get("/")).text()
            finally:
                await instance.close()
        assert servers.broker_address in page
        assert "master, ASYNC_MASTER" in page and "rmqpy, speaks 4.9.7" in page

    asyncio.run(run())
