"""Groups: lists that cost requests per page, lags, members, and conflicting subscriptions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from attrs import define
from harness.console import CountedBrokers, SetClock, browsing, collecting, readers

from rmqpy.console.views.groups import Backlog, backlog_of, group_view
from rmqpy.console.views.paging import PAGE_ROWS
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import (
    Connection,
    ConsumerConnection,
    ConsumeStats,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from rmqpy.remoting.bodies.statistics import OffsetWrapper
from rmqpy.remoting.bodies.topics import DataVersion

GROUPS = 2_000
HOSTILE = "<script>alert(1)</script>"


def stats(*ends: int, broker: str = "a") -> ConsumeStats:
    table = {
        MessageQueue("orders", broker, number): OffsetWrapper(end, 10, 1_700_000_000_000)
        for number, end in enumerate(ends)
    }
    return ConsumeStats(table, 2.5)


def members(expression: str, *clients: str) -> ConsumerConnection:
    return ConsumerConnection(
        [Connection(each, "10.0.0.1:5", "JAVA", 401) for each in clients],
        {"orders": SubscriptionData("orders", expression)},
        message_model="CLUSTERING",
    )


@define
class ManyGroups(CountedBrokers):
    """A broker with many groups, of which one has members."""

    count: int = GROUPS

    async def all_groups(self, _address: str) -> SubscriptionGroupWrapper:
        self.requests["all_groups"] += 1
        names = [f"group-{number:04}" for number in range(self.count)]
        table = {name: SubscriptionGroupConfig(name) for name in names}
        return SubscriptionGroupWrapper(DataVersion(0), table)

    async def consume_stats(self, _address: str, _group: str) -> ConsumeStats:
        self.requests["consume_stats"] += 1
        return stats(15, 30)

    async def consumer_connections(self, _address: str, group: str) -> ConsumerConnection:
        self.requests["consumer_connections"] += 1
        if group != "group-0001":
            raise RequestRejectedError(206, "not online")
        return members(HOSTILE, "c1", HOSTILE)


def test_a_list_of_many_groups_costs_requests_per_page() -> None:
    async def run() -> None:
        brokers: Any = ManyGroups({("a", 0): "x:1"}, {"x:1": {}})
        clock = SetClock()
        collector = collecting.Collector(brokers, clock)
        await collector.poll()
        brokers.requests.clear()
        async with browsing(collector) as client:
            for _ in range(10):
                page = await (await client.get("/groups")).text()
            assert "2,000 of 2,000 groups" in page and "Page 1 of 40" in page
            assert brokers.requests == {"all_groups": 1, "consume_stats": PAGE_ROWS}
            page = await (await client.get("/group?name=group-0001")).text()
            assert "&lt;script&gt;" in page and HOSTILE not in page and ">2 online" in page
            clock.time_ms += 5000
            await client.get("/group?live&name=group-0001")
            lags = json.loads(await (await client.get("/lag?name=group-0001")).text())
            assert lags[1] == [25, 25]
            assert (await client.get("/group?name=group-0002")).status == 200

    asyncio.run(run())


def test_lags_are_sampled_in_turn_at_a_bounded_cost() -> None:
    async def run() -> None:
        brokers: Any = ManyGroups({("a", 0): "x:1"}, {"x:1": {}}, count=8)
        clock = SetClock()
        collector = collecting.Collector(brokers, clock)
        await collector.poll()
        found = readers.ClusterReaders.of(collector, None)
        for _ in range(12):  # the polls of a minute
            await found.lags.sample()
            clock.time_ms += 5000
        assert (brokers.requests["all_groups"], brokers.requests["consume_stats"]) == (1, 8)
        await found.lags.sample()
        await found.lags.sample()
        assert brokers.requests["consume_stats"] == 16
        for number in range(8):
            samples = found.groups.lag_samples(f"group-{number:04}")
            assert [lag for _, lag in samples] == [25, 25]
        brokers.count = 7
        clock.time_ms += 60_000
        await found.lags.sample()
        assert backlog_of(found.groups.latest_lags()) == Backlog(
            lag=175,
            behind=7,
            groups=7,
            largest=[(f"group-{number:04}", 25) for number in range(5)],
        )

    asyncio.run(run())


def test_the_overview_names_the_groups_with_the_largest_backlogs() -> None:
    async def run() -> None:
        brokers: Any = ManyGroups({("a", 0): "x:1"}, {"x:1": {}}, count=3)
        collector = collecting.Collector(brokers, SetClock())
        await collector.poll()
        async with browsing(collector) as client:
            assert "groups</a>" not in await (await client.get("/?live")).text()
            await client.get("/group?name=group-0001")
            page = await (await client.get("/?live")).text()
            assert "<b>25</b> messages wait for 1 of 1" in page
            assert '<a href="/group?name=group-0001">group-0001</a> (25).' in page
        assert backlog_of({"a": 0, "b": -5}) == Backlog(lag=0, behind=0, groups=2, largest=[])

    asyncio.run(run())


def test_every_poll_is_followed_by_samples() -> None:
    async def run() -> None:
        brokers: Any = ManyGroups({("a", 0): "x:1"}, {"x:1": {}}, count=20)
        collector = collecting.Collector(brokers, SetClock())
        found = readers.ClusterReaders.of(collector, None)
        async with found.lags.running():
            for polls in range(1, 4):
                await asyncio.sleep(0)
                await collector.poll()
                async with asyncio.timeout(60):
                    while brokers.requests["consume_stats"] < polls * 5:
                        await asyncio.sleep(0)
            assert brokers.requests["consume_stats"] == 15

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "second", "conflicts"),
    [("*", "*", 0), ("a", "b", 1), ("a || b", "a", 1)],
)
def test_different_subscriptions_are_a_conflict(first: str, second: str, conflicts: int) -> None:
    online = {"a": members(first, "c"), "b": members(second, "c")}
    found = group_view("g", [stats(20), stats(11, broker="b")], online)
    assert len(found.conflicts) == conflicts
    assert [(each.broker, each.lag) for each in found.lags] == [("a", 10), ("b", 1)]
    (member,) = found.members
    assert member.brokers == ["a", "b"]
