"""Every request that carries a name, with every name that breaks the rule: refused, and nothing
has happened to the disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzz.frames import NAMES_OUT_OF_RULE, TOPIC_NAMES_OUT_OF_RULE
from fuzz.requests import requests_with_names
from harness.hostile import Besiege, BesiegedSite

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import TopicConfig
from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand

TOPICAL = {
    "send",
    "send_v1",
    "send_batch",
    "create_topic",
    "delete_topic",
    "pull_topic",
    "heartbeat_topic",
    "offset_topic",
    "lock_topic",
}
KINDS = tuple(requests_with_names(Random(0), "T", "n"))


def contents(folder: Path) -> dict[str, bytes | None]:
    """All entries; of small files what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.suffix == ".json" else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("serialize_type", [SERIALIZE_JSON, SERIALIZE_ROCKETMQ])
def test_refused_before_the_disk(
    serialize_type: int, besiege: Besiege, connect: Callable[..., Any]
) -> None:
    async def test(site: BesiegedSite) -> None:
        clients = {True: await connect(site.addresses[1]), False: await connect(site.addresses[0])}
        await clients[False].call(requests_with_names(Random(0), "T", "n")["pull_topic"])
        groups = site.root / "store" / "config" / "subscriptionGroup.json"
        while not (groups.exists() and b'"Group"' in groups.read_bytes()):
            await asyncio.sleep(0.005)  # the group of the pulls is saved
        before = contents(site.root)
        asked = 0
        for kind in KINDS:
            for name in TOPIC_NAMES_OUT_OF_RULE if kind in TOPICAL else NAMES_OUT_OF_RULE:
                topic, other = (name, "n") if kind in TOPICAL else ("T", name)
                request = requests_with_names(Random(0), topic, other)[kind]
                request.serialize_type = serialize_type
                answer = await clients[kind.startswith("namesrv")].call(request)
                allowed = {ResponseCode.SYSTEM_ERROR}
                if kind == "pull_topic":  # it has no rule: such a topic is not there
                    allowed.add(ResponseCode.TOPIC_NOT_EXIST)
                assert answer.code in allowed, (kind, name[:40], answer)
                assert answer.remark, (kind, name[:40])
                asked += 1
        assert asked > 350
        assert contents(site.root) == before
        for client in clients.values():
            await client.close()

    besiege(test)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_requests_pass_with_good_names(
    kind: str, besiege: Besiege, connect: Callable[..., Any]
) -> None:
    async def test(site: BesiegedSite) -> None:
        client = await connect(site.addresses[kind.startswith("namesrv")])
        topic, name = "A-%good|topic_1", "A-%good|name_1"
        if kind in ("delete_topic", "pull_topic"):
            await client.call(requests_with_names(Random(0), topic, name)["create_topic"])
        if kind == "pull_group":
            await client.call(requests_with_names(Random(0), "Hostile", name)["create_topic"])
        answer = await client.call(requests_with_names(Random(0), topic, name)[kind])
        good = {ResponseCode.SUCCESS}
        if kind.startswith("pull"):
            good = {ResponseCode.PULL_NOT_FOUND}
        assert answer.code in good, answer
        await client.close()

    besiege(test)


def test_a_registration_loses_only_its_bad_topics(
    besiege: Besiege, connect: Callable[..., Any]
) -> None:
    """Java's brokers register whatever was created there: the others must still be routed."""
    table = {name: TopicConfig(name).to_json() for name in ("Good", "../x", "a\0b", "x" * 300, "")}
    body = {
        "topicConfigSerializeWrapper": {
            "dataVersion": DataVersion(1, 1).to_json(),
            "topicConfigTable": table,
        }
    }

    async def test(site: BesiegedSite) -> None:
        client = await connect(site.namesrv.address)
        request = requests_with_names(Random(0), "T", "broker-z")["namesrv_broker"]
        request.body = json.dumps(body).encode()
        assert (await client.call(request)).code == ResponseCode.SUCCESS
        listed = await client.call(
            RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        topics = set(json.loads(listed.body)["topicList"])
        assert topics & {*table} == {"Good"}
        await client.close()

    besiege(test)


def entries_with_names(name: str) -> list[RemotingCommand]:
    """Requests of tools and clients beside those above, with ``name`` wherever one stands."""
    code = RequestCode
    queue = {"topic": name, "queueId": 0}
    both = {"topic": name, "group": name, "consumerGroup": name, "producerGroup": name}
    view = {"clientId": "c", "msgId": "7F00000100002A9F0000000000000000", "offset": 0}
    times = {"timestamp": 0, "beginTimestamp": 0, "endTimestamp": 1, "isForce": "true"}
    clone = {"srcGroup": name, "destGroup": name, "offline": "true"}
    more = {"key": name, "maxNum": 1, "index": 0, "count": 1, "isOrder": "false", "delayLevel": 0}
    fields = {**both, **queue, **view, **times, **clone, **more, "compareGroup": name}
    fields |= {"clientAddr": name, "statsName": name, "statsKey": name, "originTopic": name}
    fields |= {"tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": 8}
    codes = (
        *(code.QUERY_MESSAGE, code.QUERY_CONSUMER_OFFSET, code.SEARCH_OFFSET_BY_TIMESTAMP),
        *(code.GET_MAX_OFFSET, code.GET_MIN_OFFSET, code.GET_EARLIEST_MSG_STORETIME),
        *(code.UNREGISTER_CLIENT, code.CONSUMER_SEND_MSG_BACK, code.END_TRANSACTION),
        *(code.GET_CONSUMER_LIST_BY_GROUP, code.GET_TOPIC_STATS_INFO, code.GET_CONSUME_STATS),
        *(code.GET_CONSUMER_CONNECTION_LIST, code.GET_PRODUCER_CONNECTION_LIST),
        *(code.INVOKE_BROKER_TO_RESET_OFFSET, code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
        *(code.QUERY_TOPIC_CONSUME_BY_WHO, code.QUERY_CONSUME_TIME_SPAN),
        *(code.QUERY_CORRECTION_OFFSET, code.CONSUME_MESSAGE_DIRECTLY, code.CLONE_GROUP_OFFSET),
        *(code.VIEW_BROKER_STATS_DATA, code.QUERY_CONSUME_QUEUE, code.GET_CONSUMER_RUNNING_INFO),
    )
    texts = {key: str(value) for key, value in fields.items()}
    return [RemotingCommand(int(each), ext_fields=dict(texts)) for each in codes]


def outside_of_tables(folder: Path) -> set[str]:
    """Files and folders, without the tables, which are written when they are due."""
    return {path for path in contents(folder) if not path.startswith("store/config/")}


@pytest.mark.slow
def test_no_other_entry_lets_a_name_into_a_table_or_onto_the_disk(
    besiege: Besiege, connect: Callable[..., Any]
) -> None:
    """Some only answer that there is no such thing; nothing may come of any."""

    async def test(site: BesiegedSite) -> None:
        client = await connect(site.broker.address)
        for request in entries_with_names("Unknown"):
            await client.call(request)  # what good names leave behind
        before = outside_of_tables(site.root)
        for name in TOPIC_NAMES_OUT_OF_RULE:
            for request in entries_with_names(name):
                answer = await client.call(request)
                assert answer.is_response
        assert outside_of_tables(site.root) == before
        site.check_tables()
        await client.close()

    besiege(test)
