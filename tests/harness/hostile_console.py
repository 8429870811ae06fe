"""Brokers with hostile names for the console, and the pages that show them."""

from __future__ import annotations

import json
from typing import Final
from urllib.parse import quote

from attrs import define

from harness.console import CountedBrokers
from rmqpy.remoting.bodies import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicStatsTable,
)
from rmqpy.remoting.bodies.statistics import OffsetWrapper, TopicOffset
from rmqpy.remoting.bodies.topics import DataVersion

HOSTILE: Final = "<img src=x onerror=document.title='owned'>\"'\u202e\x1b[2J"
_NAME: Final = quote(HOSTILE)
HOSTILE_PATHS: Final = (
    "/",
    "/topics",
    f"/topic?name={_NAME}",
    f"/topics?search={_NAME}",
    "/groups",
    f"/group?name={_NAME}",
    f"/subscriptions?name={_NAME}",
    f"/dead-letters?group={_NAME}",
    "/replication",
    f"/elections?name={_NAME}",
    "/map",
)


@define
class HostileBrokers(CountedBrokers):
    """A broker, or one that pretends to be one, whose every name is hostile. Servers refuse such
    names, but what the console reads may have been written by anybody.
    """

    async def encoded_topics(self, _address: str) -> bytes:
        table = {HOSTILE: TopicConfig(HOSTILE, 4, 4)}
        return TopicConfigSerializeWrapper(DataVersion(0), table).encode()

    async def topic_stats(self, _address: str, topic: str) -> TopicStatsTable:
        return TopicStatsTable({MessageQueue(topic, HOSTILE, 0): TopicOffset(2, 9, 5)})

    async def all_groups(self, _address: str) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(DataVersion(0), {HOSTILE: SubscriptionGroupConfig(HOSTILE)})

    async def consume_stats(self, _address: str, _group: str) -> ConsumeStats:
        return ConsumeStats({MessageQueue(HOSTILE, HOSTILE, 0): OffsetWrapper(9, 2, 5)}, 1.0)

    async def consumer_connections(self, _address: str, _group: str) -> ConsumerConnection:
        return ConsumerConnection(
            connection_set=[Connection(HOSTILE, HOSTILE, HOSTILE, 399)],
            subscription_table={HOSTILE: SubscriptionData(HOSTILE, HOSTILE)},
            message_model=HOSTILE,
        )

    async def running_info(self, *_given: str) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(subscription_set=[SubscriptionData(HOSTILE, HOSTILE)])


def hostile_brokers() -> HostileBrokers:
    status = {"self": HOSTILE, "role": HOSTILE, "term": 5, "fault": HOSTILE}
    event = {"kind": "notice", "term": 5, "time_ms": 1, "last_ms": 1, "count": 1, "text": HOSTILE}
    record = {"group": HOSTILE, "self": HOSTILE, "events": [event]}
    info = {
        "brokerVersionDesc": HOSTILE,
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "70000",
        "dividedCommitlogOffset": HOSTILE,
    }
    return HostileBrokers(
        {(HOSTILE, 0): HOSTILE},
        {HOSTILE: info},
        settings={HOSTILE: {"enableControllerMode": "true", "controllerAddr": HOSTILE}},
        statuses={HOSTILE: json.dumps(status).encode()},
        records={HOSTILE: json.dumps(record).encode()},
        cluster=HOSTILE,
    )
