"""Valid requests of clients, brokers, and administrators, which :mod:`fuzz.frames` breaks.

Every request that carries a name can also be created with a chosen name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Final

from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, RemotingCommand

TOPIC: Final = "Hostile"
"""The only valid topic name in hostile frames; the topic need not exist."""


def good_request(rng: Random) -> RemotingCommand:
    """Return a request of a producer, consumer or broker, in one of the two serializations."""
    make = rng.choice((send, batch, _pull, _heartbeat, _commit_offset, _route, register, _kv))
    command = make(rng)
    command.opaque = rng.randrange(1 << 30)
    command.serialize_type = rng.choice((SERIALIZE_JSON, SERIALIZE_ROCKETMQ))
    return command


def plain_request(code: int, fields: Mapping[str, object], body: bytes = b"") -> RemotingCommand:
    """Return a request with exactly these fields."""
    texts = {key: str(value) for key, value in fields.items()}
    return RemotingCommand(int(code), ext_fields=texts, body=body)


def _send_fields(topic: str, properties: str = "") -> dict[str, object]:
    values = ("Group", topic, "TBW102", 4, 0, 0, 1700000000000, 0, properties, 0, "false")
    return dict(zip("abcdefghijk", values, strict=True))


def send(rng: Random, topic: str = TOPIC) -> RemotingCommand:
    """Return a send of one message with code 10 or 310."""
    body = rng.randbytes(rng.randrange(200))
    if rng.random() < 0.5:
        short = _send_fields(topic, _properties(rng))
        return plain_request(RequestCode.SEND_MESSAGE_V2, short, body)
    fields: dict[str, object] = {
        "producerGroup": "Group",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1700000000000,
        "flag": 0,
        "properties": _properties(rng),
    }
    return plain_request(RequestCode.SEND_MESSAGE, fields, body)


def _properties(rng: Random) -> str:
    """Return properties, some with misplaced separators."""
    pieces = ("KEYS\1k", "TAGS\1t", "\1", "\2", "\1\2", "\2\2", "\1v", "n\1", "a\1b\1c", "UNIQ_KEY")
    return "\2".join(rng.choices(pieces, k=rng.randrange(6)))


def batch(rng: Random, topic: str = TOPIC) -> RemotingCommand:
    """Return a send of several messages with code 320."""
    items = [BatchItem(0, rng.randbytes(20), b"TAGS\1t") for _ in range(rng.randrange(1, 5))]
    fields = _send_fields(topic) | {"m": "true"}
    return plain_request(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch_body(items))


def _pull(_rng: Random, topic: str = TOPIC) -> RemotingCommand:
    fields: dict[str, object] = {
        "consumerGroup": "Group",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    return plain_request(RequestCode.PULL_MESSAGE, fields)


def _heartbeat(_rng: Random, topic: str = TOPIC, group: str = "Group") -> RemotingCommand:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {"groupName": group, "subscriptionDataSet": [subscription]}
    body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
    return plain_request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def _producer_heartbeat(group: str) -> RemotingCommand:
    body = {"clientID": "c", "producerDataSet": [{"groupName": group}]}
    return plain_request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def _commit_offset(_rng: Random, topic: str = TOPIC, group: str = "Group") -> RemotingCommand:
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "commitOffset": 0,
    }
    return plain_request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def _route(_rng: Random) -> RemotingCommand:
    return plain_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})


def register(rng: Random, name: str = "broker-x", cluster: str = "c") -> RemotingCommand:
    """Return the registration of a broker with a name server."""
    fields: dict[str, object] = {
        "brokerName": name,
        "brokerAddr": f"127.0.0.1:{rng.randrange(1, 65536)}",
        "clusterName": cluster,
        "haServerAddr": "127.0.0.1:1",
        "brokerId": 0,
    }
    return plain_request(RequestCode.REGISTER_BROKER, fields)


def _kv(_rng: Random, namespace: str = "space", key: str = "key") -> RemotingCommand:
    fields: dict[str, object] = {"namespace": namespace, "key": key, "value": "v"}
    return plain_request(RequestCode.PUT_KV_CONFIG, fields)


def requests_with_names(rng: Random, topic: str, name: str) -> dict[str, RemotingCommand]:
    """Return every request that carries a name, by its kind.

    The topic is ``topic``; the group, broker, or setting is ``name``. The kinds of the name server
    start with ``namesrv``.
    """
    group = json.dumps({"groupName": name}).encode()
    queue = {"topic": topic, "brokerName": "b", "queueId": 0}
    lock = {"consumerGroup": "Group", "clientId": "c", "mqSet": [queue]}
    lock_group = {"consumerGroup": name, "clientId": "c", "mqSet": []}
    create: dict[str, object] = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    put_group = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": "b:1"}
    return {
        "send": plain_request(RequestCode.SEND_MESSAGE_V2, _send_fields(topic), b"x"),
        "send_v1": plain_request(RequestCode.SEND_MESSAGE, _send_v1_fields(topic), b"x"),
        "send_batch": batch(rng, topic),
        "create_topic": plain_request(RequestCode.UPDATE_AND_CREATE_TOPIC, create),
        "delete_topic": plain_request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
        "pull_topic": _pull(rng, topic),
        "pull_group": plain_request(
            RequestCode.PULL_MESSAGE, _pull(rng).ext_fields | {"consumerGroup": name}
        ),
        "heartbeat_group": _heartbeat(rng, group=name),
        "heartbeat_topic": _heartbeat(rng, topic),
        "heartbeat_producer": _producer_heartbeat(name),
        "offset_topic": _commit_offset(rng, topic),
        "offset_group": _commit_offset(rng, group=name),
        "lock_topic": plain_request(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(lock).encode()),
        "lock_group": plain_request(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(lock_group).encode()),
        "put_group": plain_request(put_group, {}, group),
        "delete_group": plain_request(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": name, "removeOffset": "true"}
        ),
        "namesrv_broker": register(rng, name),
        "namesrv_cluster": register(rng, cluster=name),
        "namesrv_kv_space": _kv(rng, name),
        "namesrv_kv_key": _kv(rng, key=name),
        "namesrv_order": plain_request(RequestCode.PUT_KV_CONFIG, {**order, "key": name}),
    }


def _send_v1_fields(topic: str) -> dict[str, object]:
    names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId")
    more = ("sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode")
    return dict(zip((*names, *more), _send_fields(topic).values(), strict=True))
