"""Invalid names in each request that has a name: the request is refused, and nothing is written to
disk.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from fuzz.frames import NAMES_OUT_OF_RULE, TOPIC_NAMES_OUT_OF_RULE
from fuzz.requests import requests_with_names
from harness.hostile import Besiege, BesiegedSite, HonestClient

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import TopicConfig
from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand

TOPIC_KINDS = {
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
TOPICS = "store/config/topics.json"
KINDS = tuple(requests_with_names(Random(0), "T", "n"))


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return all entries of ``folder``, with the content of JSON files.

    The checkpoint, which a flush creates at any time, is left out.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.suffix == ".json" else None
        for path in folder.rglob("*")
        if path.name != "checkpoint"
    }


@pytest.mark.parametrize("serialize_type", [SERIALIZE_JSON, SERIALIZE_ROCKETMQ])
def test_invalid_names_are_refused_before_anything_is_written(
    serialize_type: int, besiege: Besiege
) -> None:
    async def test(site: BesiegedSite) -> None:
        clients = {
            True: await HonestClient.connect(site.addresses[1]),
            False: await HonestClient.connect(site.addresses[0]),
        }
        await clients[False].call(requests_with_names(Random(0), "T", "n")["pull_topic"])
        groups = site.root / "store" / "config" / "subscriptionGroup.json"
        topics = site.root / TOPICS
        while not (groups.exists() and b'"Group"' in groups.read_bytes() and topics.exists()):
            await asyncio.sleep(0.005)  # The group of the pulls is saved, and the broker's topics.
        before = contents(site.root)
        count = 0
        for kind in KINDS:
            for name in TOPIC_NAMES_OUT_OF_RULE if kind in TOPIC_KINDS else NAMES_OUT_OF_RULE:
                topic, other = (name, "n") if kind in TOPIC_KINDS else ("T", name)
                request = requests_with_names(Random(0), topic, other)[kind]
                request.serialize_type = serialize_type
                answer = await clients[kind.startswith("namesrv")].call(request)
                allowed = {ResponseCode.SYSTEM_ERROR}
                if kind == "pull_topic":  # It has no rule for names: such a topic does not exist.
                    allowed.add(ResponseCode.TOPIC_NOT_EXIST)
                assert answer.code in allowed, (kind, name[:40], answer)
                assert answer.remark, (kind, name[:40])
                count += 1
        assert count > 350
        assert contents(site.root) == before
        for client in clients.values():
            await client.close()

    besiege(test)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_requests_succeed_with_valid_names(kind: str, besiege: Besiege) -> None:
    async def test(site: BesiegedSite) -> None:
        client = await HonestClient.connect(site.addresses[kind.startswith("namesrv")])
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


def test_a_registration_loses_only_its_invalid_topics(besiege: Besiege) -> None:
    """Java's brokers register any topic that was created there: valid ones must have a route."""
    table = {name: TopicConfig(name).to_json() for name in ("Good", "../x", "a\0b", "x" * 300, "")}
    body = {
        "topicConfigSerializeWrapper": {
            "dataVersion": DataVersion(1, 1).to_json(),
            "topicConfigTable": table,
        }
    }

    async def test(site: BesiegedSite) -> None:
        client = await HonestClient.connect(site.namesrv.address)
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


def further_requests(name: str) -> list[RemotingCommand]:
    """Return further requests of tools and clients, with ``name`` in each field for a name."""
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


def entries_except_tables(folder: Path) -> set[str]:
    """Return the files and folders except the tables, which are written periodically."""
    return {path for path in contents(folder) if not path.startswith("store/config/")}


@pytest.mark.slow
def test_no_other_request_stores_an_invalid_name(besiege: Besiege) -> None:
    """Some only answer that the name is unknown; none may store it."""

    async def test(site: BesiegedSite) -> None:
        client = await HonestClient.connect(site.broker.address)
        for request in further_requests("Unknown"):
            await client.call(request)  # Files that valid names create may exist.
        before = entries_except_tables(site.root)
        for name in TOPIC_NAMES_OUT_OF_RULE:
            for request in further_requests(name):
                answer = await client.call(request)
                assert answer.is_response
        assert entries_except_tables(site.root) == before
        site.check_tables()
        await client.close()

    besiege(test)
