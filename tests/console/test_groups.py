"""Groups: lists that cost requests per page, lags, members, and conflicting subscriptions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from attrs import define
from harness.console import CountedBrokers, SetClock, browsing, collecting

from rmqpy.console.views.groups import group_view
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

    async def all_groups(self, _address: str) -> SubscriptionGroupWrapper:
        self.requests["all_groups"] += 1
        names = [f"group-{number:04}" for number in range(GROUPS)]
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
