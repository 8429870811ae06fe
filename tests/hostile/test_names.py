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

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import TopicConfig
from rmqpy.remoting.bodies.topics import DataVersion
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand
from rmqpy.testing.hostile_frames import NAMES_OUT_OF_RULE, TOPIC_NAMES_OUT_OF_RULE
from rmqpy.testing.hostile_requests import requests_with_names

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
    serialize_type: int, besiege: Callable[[Any], None], connect: Callable[..., Any]
) -> None:
    async def test(site: Any) -> None:
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
    kind: str, besiege: Callable[[Any], None], connect: Callable[..., Any]
) -> None:
    async def test(site: Any) -> None:
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
    besiege: Callable[[Any], None], connect: Callable[..., Any]
) -> None:
    """Java's brokers register whatever was created there: the others must still be routed."""
    table = {name: TopicConfig(name).to_json() for name in ("Good", "../x", "a\0b", "x" * 300, "")}
    body = {
        "topicConfigSerializeWrapper": {
            "dataVersion": DataVersion(1, 1).to_json(),
            "topicConfigTable": table,
        }
    }

    async def test(site: Any) -> None:
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
