"""The scenario with every request code of a name server of the priorities P0 and P1."""

from __future__ import annotations

import json
import zlib
from typing import Final

from conformance.wire import Wire

NAME, ADDRESS, CLUSTER = "conf-broker", "127.0.0.1:9", "ConfCluster"
TOPIC: Final = "ConfTopic"
VERSION: Final = {"counter": 1, "timestamp": 1_700_000_000_000}


def _registration(counter: int) -> bytes:
    topic = {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": TOPIC,
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    wrapper = {
        "dataVersion": VERSION | {"counter": counter},
        "topicConfigTable": {TOPIC: topic},
    }
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def _packed(counter: int) -> bytes:
    version = json.dumps(VERSION | {"counter": counter}).encode()
    topic = f"{TOPIC} 2 2 6 SINGLE_TAG".encode()
    parts = [len(version).to_bytes(4), version, (1).to_bytes(4), len(topic).to_bytes(4), topic]
    parts += [(2).to_bytes(4), b"[]"]
    return zlib.compress(b"".join(parts), 9)


def run_namesrv_scenario(wire: Wire) -> None:
    """Send all requests; ``wire`` records the answers."""
    identity = {"brokerName": NAME, "brokerAddr": ADDRESS, "clusterName": CLUSTER, "brokerId": 0}
    body = _registration(1)
    for packed in (False, True):
        body = _packed(2) if packed else _registration(1)
        wire.exchange(
            wire.request(
                103,
                body,
                **identity,
                haServerAddr="127.0.0.1:10",
                compressed=packed,
                bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF,
            ),
            on="broker",
        )
        wire.exchange(wire.request(105, topic=TOPIC))
    wire.exchange(wire.request(103, body, **identity, compressed=True, bodyCrc32=7), on="broker")
    slave = identity | {"brokerId": 1, "brokerAddr": "127.0.0.1:8"}
    wire.exchange(
        wire.request(
            103, body, **slave, haServerAddr="127.0.0.1:11", compressed=True,
            bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF,
        ),
        on="slave",
    )  # fmt: skip
    for counter in (2, 3):
        version = json.dumps(VERSION | {"counter": counter}).encode()
        wire.exchange(wire.request(322, version, **identity))
    wire.exchange(wire.request(105, topic="no-such"))
    wire.exchange(wire.request(106))
    wire.exchange(wire.request(206))
    wire.exchange(wire.request(224, cluster=CLUSTER))
    wire.exchange(wire.request(304))
    for code in (205, 105, 327, 105):
        wire.exchange(wire.request(code, brokerName=NAME, topic=TOPIC))
    names = {"namespace": "ORDER_TOPIC_CONFIG", "key": TOPIC}
    wire.exchange(wire.request(100, **names, value=f"{NAME}:3"))
    wire.exchange(wire.request(101, **names))
    wire.exchange(wire.request(219, namespace=names["namespace"]))
    wire.exchange(wire.request(105, topic=TOPIC))
    wire.exchange(wire.request(102, **names))
    wire.exchange(wire.request(101, **names))
    wire.exchange(wire.request(219, namespace="no-such"))
    wire.exchange(wire.request(318, b"orderMessageEnable=true\n"))
    wire.exchange(wire.request(318, b"kvConfigPath=/x\n"))
    wire.exchange(wire.request(319), more=True)
    wire.exchange(wire.request(216, topic=TOPIC, clusterName=None))
    wire.exchange(wire.request(105, topic=TOPIC))
    for leaving in (slave, identity):
        wire.exchange(wire.request(104, **leaving))
    wire.exchange(wire.request(106))
